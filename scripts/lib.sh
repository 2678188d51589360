# SPDX-License-Identifier: Apache-2.0
# What the scripts share. Sourced, with -euo pipefail on.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() {
    printf '%s\n' "$*"
}

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Runs a command as root, through sudo where needed.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "needs root or sudo for: $*"
    fi
}

# A free TCP port on 127.0.0.1.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# True if something listens on 127.0.0.1:$1.
port_is_taken() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# wait_for SECONDS WHAT COMMAND...: runs the command until it succeeds.
wait_for() {
    local seconds=$1 what=$2 end
    shift 2
    end=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || die "$what: not within $seconds s"
        sleep 0.1
    done
}

# configure DIR OPTIONS...: sets the build folder up, again when the options have changed.
configure() {
    local dir=$1 stamp=$1/.options
    shift
    if [ -f "$dir/build.ninja" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$*" ]; then
        return
    fi
    if [ -f "$dir/build.ninja" ]; then
        meson setup --reconfigure "$dir" "$ROOT" "$@" >"$dir/configure.log" ||
            { cat "$dir/configure.log" >&2; die "meson failed"; }
    else
        mkdir -p "$dir"
        meson setup "$dir" "$ROOT" "$@" >"$dir/configure.log" ||
            { cat "$dir/configure.log" >&2; die "meson failed"; }
    fi
    printf '%s\n' "$*" >"$stamp"
}

# Where Debian and others keep PostgreSQL's server programs.
postgres_bin() {
    local dir
    for dir in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin; do
        [ -x "$dir/initdb" ] && { printf '%s\n' "$dir"; return; }
    done
    command -v initdb >/dev/null || die "PostgreSQL's server is not installed: ./scripts/setup --postgres"
    dirname "$(command -v initdb)"
}

# PostgreSQL refuses to run as root.
as_postgres() {
    if [ "$(id -u)" -eq 0 ]; then
        setpriv --reuid=postgres --regid=postgres --clear-groups "$@"
    else
        "$@"
    fi
}

# postgres_start DIR: a server of its own in DIR (which exists), on a free port. Sets POSTGRES_PID and
# POSTGRES_URL. End it with: kill -INT "$POSTGRES_PID".
# shellcheck disable=SC2034
postgres_start() {
    local dir=$1 bin port
    bin=$(postgres_bin)
    port=$(free_port)
    if [ "$(id -u)" -eq 0 ]; then
        chown postgres "$dir"
    fi
    as_postgres "$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --no-locale \
        >"$dir/initdb.log" 2>&1 || { cat "$dir/initdb.log" >&2; die "initdb failed"; }
    (cd "$dir" && exec_as_postgres "$bin/postgres" -D "$dir/data" -p "$port" -k "$dir" \
        -c listen_addresses=127.0.0.1 >"$dir/postgres.log" 2>&1) &
    POSTGRES_PID=$!
    POSTGRES_URL=postgres://postgres@127.0.0.1:$port/postgres
    wait_for 30 "PostgreSQL" "$bin/pg_isready" -q -h 127.0.0.1 -p "$port"
}

# As as_postgres, in place of the (sub)shell, so that its process id is the server's.
exec_as_postgres() {
    if [ "$(id -u)" -eq 0 ]; then
        exec setpriv --reuid=postgres --regid=postgres --clear-groups "$@"
    else
        exec "$@"
    fi
}

# etcd_start DIR: a server of its own in DIR, on free ports. Sets ETCD_PID and ETCD_URL.
# shellcheck disable=SC2034
etcd_start() {
    local dir=$1 port peer
    command -v etcd >/dev/null || die "etcd is not installed: ./scripts/setup --cluster"
    port=$(free_port)
    peer=$(free_port)
    mkdir -p "$dir"
    ETCD_URL=http://127.0.0.1:$port
    etcd --data-dir "$dir/data" --log-level error --listen-client-urls "$ETCD_URL" \
        --advertise-client-urls "$ETCD_URL" --listen-peer-urls "http://127.0.0.1:$peer" \
        >"$dir/etcd.log" 2>&1 &
    ETCD_PID=$!
    wait_for 30 "etcd" curl -sf "$ETCD_URL/health"
}

# The package of MariaDB's server alone makes no user.
mysql_user() {
    if id mysql >/dev/null 2>&1; then echo mysql; else echo nobody; fi
}

# As a user of its own when we are root, in place of the (sub)shell.
exec_as_mysql() {
    local user
    if [ "$(id -u)" -eq 0 ]; then
        user=$(mysql_user)
        exec setpriv --reuid="$(id -u "$user")" --regid="$(id -g "$user")" --clear-groups "$@"
    else
        exec "$@"
    fi
}

# mysql_start DIR: a MariaDB of its own in DIR (which exists), on a free port. Sets MYSQL_PID and
# MYSQL_URL. End it with: kill -TERM "$MYSQL_PID" (it takes SIGINT for nothing).
# shellcheck disable=SC2034
mysql_start() {
    local dir=$1 port server
    server=$(PATH=$PATH:/usr/sbin:/usr/libexec command -v mariadbd) ||
        die "MariaDB's server is not installed: ./scripts/setup --mysql"
    port=$(free_port)
    if [ "$(id -u)" -eq 0 ]; then
        chown "$(mysql_user)" "$dir"
    fi
    (cd "$dir" && exec_as_mysql mariadb-install-db --no-defaults --datadir="$dir/data" \
        --tmpdir="$dir" \
        --auth-root-authentication-method=normal --skip-test-db --skip-name-resolve) \
        >"$dir/install.log" 2>&1 || { cat "$dir/install.log" >&2; die "mariadb-install-db failed"; }
    (cd "$dir" && exec_as_mysql "$server" --no-defaults --datadir="$dir/data" --port="$port" \
        --socket="$dir/socket" --pid-file="$dir/pid" --bind-address=127.0.0.1 \
        --tmpdir="$dir" --skip-name-resolve --skip-log-bin >"$dir/mysql.log" 2>&1) &
    MYSQL_PID=$!
    MYSQL_URL=mysql://root@127.0.0.1:$port/jobflow
    wait_for 30 "MariaDB" mariadb --no-defaults -h 127.0.0.1 -P "$port" -u root \
        -e "CREATE DATABASE IF NOT EXISTS jobflow"
}
