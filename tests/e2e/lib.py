# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end suites share: TAP, databases, nodes, an HTTP client, a receiver.

A suite is a list of functions that take the store's kind; `run` reports each as a case. Everything
started here ends with the process, even if that is killed.
"""

import calendar
import collections
import contextlib
import ctypes
import fcntl
import functools
import glob
import http.client
import json
import os
import pathlib
import pwd
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


# ---- TAP ----------------------------------------------------------------------------------------

class NotHere(Exception):
    """Raised by a case that cannot be run on this machine, saying what is missing."""


def run(cases):
    """Runs the cases (name, function) and ends the process."""
    print(f"1..{len(cases)}", flush=True)
    failed = 0
    for number, (name, case) in enumerate(cases, 1):
        started = time.monotonic()
        result, reason = "ok", ""
        try:
            case()
        except NotHere as missing:
            print(f"ok {number} - {name} # SKIP {missing}", flush=True)
            continue
        except Exception as why:  # pylint: disable=broad-except
            failed += 1
            result, reason = "not ok", ", " + " ".join(f"{type(why).__name__}: {why}".split())[:400]
            diagnose(traceback.format_exc())
        print(f"{result} {number} - {name} # {time.monotonic() - started:.1f} s{reason}", flush=True)
    sys.exit(1 if failed else 0)


def diagnose(text):
    for line in str(text).rstrip("\n").split("\n"):
        print(f"# {line}", flush=True)


def cases_of(functions, *args):
    return [(function.__name__.replace("_", " "), lambda f=function: f(*args))
            for function in functions]


def main(stage_class, cases, *args):
    """A whole suite: its cases on one stage, which is made for the store that the command line names
    and a folder of its own, and closed at the end. `cases`: functions that take the stage, or one
    that makes (name, function) of it."""
    with Workspace() as folder:
        with contextlib.closing(stage_class(sys.argv[1], folder, *args)) as stage:
            run(list(cases(stage)) if callable(cases) else cases_of(cases, stage))


def equal(got, wanted, what="value"):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def wait_until(probe, seconds, what):
    """Polls until the probe gives something true, and returns it."""
    end = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def stays(probe, seconds, what):
    """Holds as long as the probe stays true for the time: for what must not happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        check(probe(), what)
        time.sleep(0.05)


# Below those that the kernel gives to whoever asks for any: a node that is down for a while, or a
# server that starts slowly, finds its port free. A lock on the byte of that number keeps other tests
# of this user away from it until this process ends.
PORTS = range(10240, 32768)
PORTS_FILE = pathlib.Path(tempfile.gettempdir()) / f"jobflow-test-ports-{os.getuid()}"
taken_ports = set()
ports_lock = threading.Lock()


@functools.cache
def ports_file():
    """Stays open: closing it would end the locks."""
    return open(PORTS_FILE, "ab")


def is_free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            s.bind((HOST, port))
            return True
    return False


def free_port():
    with ports_lock:
        for _ in range(1000):
            port = random.choice(PORTS)
            if port not in taken_ports and is_free(port):
                with contextlib.suppress(OSError):
                    fcntl.lockf(ports_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                    taken_ports.add(port)
                    return port
    raise AssertionError("no port is free")


def now_ms():
    return time.time_ns() // 1_000_000


def parse_time(text):
    """RFC 3339 with milliseconds, in milliseconds."""
    seconds, rest = text.split(".")
    check(rest.endswith("Z") and len(rest) == 4, f"{text} is no time in UTC with milliseconds")
    parsed = time.strptime(seconds, "%Y-%m-%dT%H:%M:%S")
    return calendar.timegm(parsed) * 1000 + int(rest[:3])


# ---- Processes ----------------------------------------------------------------------------------

def die_with_parent(user=None):
    """For a child, between fork and exec: optionally becomes a user, and ends when we do."""
    def prepare():
        if user:
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return prepare


def spawn(command, stderr, user=None, **more):
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
                            preexec_fn=die_with_parent(user), **more)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return [int(child) for child in children.read().split()]


def is_running(pid):
    """Of anybody's child: one that has ended and waits for its parent to notice does not count."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def python_with_packages():
    """The interpreter that has the packages of tests/requirements.txt (scripts/test makes it)."""
    venv = ROOT / "build" / "venv" / "bin" / "python3"
    return venv if venv.exists() else sys.executable


class Workspace:
    """A folder that goes away with its user."""

    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="jobflow-e2e-"))
        self.path.chmod(0o755)

    def __enter__(self):
        return self.path

    def __exit__(self, *exc):
        shutil.rmtree(self.path, ignore_errors=True)


# ---- Databases ----------------------------------------------------------------------------------

class Sqlite:
    kind = "sqlite"

    def __init__(self, folder):
        self.file = folder / "jobflow.db"
        self.url = f"sqlite:{self.file}"

    def query(self, sql):
        """Rows as tuples of text."""
        with contextlib.closing(sqlite3.connect(self.file, timeout=30)) as db:
            rows = [tuple("" if v is None else str(v) for v in row) for row in db.execute(sql)]
            db.commit()
            return rows

    def close(self):
        pass


def server_user(name):
    """Whom a server runs as when we are root, since it refuses that. Its package may have made no user."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return pwd.getpwnam("nobody")


class Postgres:
    """A server of its own, run as the user postgres when we are root (it refuses root)."""

    kind = "postgres"

    def __init__(self, folder, start=True):
        self.bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
        self.folder = folder / "postgres"
        self.folder.mkdir()
        self.user = server_user("postgres")
        if self.user:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        self.port = free_port()
        self.url = f"postgres://postgres@{HOST}:{self.port}/postgres"
        self.log = open(folder / "postgres.log", "ab")
        self.process = None
        self.command([f"{self.bin}/initdb", "-D", self.folder / "data", "-U", "postgres", "-A",
                      "trust", "-E", "UTF8", "--no-locale"])
        if start:
            self.start()

    def command(self, words):
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=self.log,
                       stderr=self.log, cwd=self.folder, preexec_fn=die_with_parent(self.user))

    def start(self):
        self.process = spawn(
            [f"{self.bin}/postgres", "-D", self.folder / "data", "-p", str(self.port), "-k",
             self.folder, "-c", f"listen_addresses={HOST}", "-c", "autovacuum_naptime=1s"],
            self.log, self.user, cwd=self.folder)
        wait_until(lambda: subprocess.run(
            [f"{self.bin}/pg_isready", "-q", "-h", HOST, "-p", str(self.port)],
            check=False).returncode == 0, 30, "PostgreSQL is ready")

    def stop(self, how=signal.SIGINT):
        """SIGINT: fast; SIGQUIT: as after a crash."""
        if self.process:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def kill9(self):
        """The server with all of its processes, at once."""
        self.process.send_signal(signal.SIGSTOP)  # so that no more are made
        pids = children_of(self.process.pid)
        for pid in [self.process.pid, *pids]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait(60)
        self.process = None
        wait_until(lambda: not any(map(is_running, pids)), 30, "the server's processes have ended")

    def query(self, sql):
        answer = subprocess.run(
            [f"{self.bin}/psql", "-h", HOST, "-p", str(self.port), "-U", "postgres", "-XAtq",
             "-F", "\t", "-v", "ON_ERROR_STOP=1", "-c", sql, "postgres"],
            check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return [tuple(line.split("\t")) for line in answer.stdout.splitlines()]

    def close(self):
        self.stop()
        self.log.close()


class Mysql:
    """A MariaDB of its own, run as the user mysql when we are root."""

    kind = "mysql"

    def __init__(self, folder, start=True):
        self.folder = folder / "mysql"
        self.folder.mkdir()
        self.user = server_user("mysql")
        if self.user:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        self.port = free_port()
        self.url = f"mysql://root@{HOST}:{self.port}/jobflow"
        self.log = open(folder / "mysql.log", "ab")
        self.process = None
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={self.folder / 'data'}",
             # A server that starts deletes the temporary tables in its tmpdir, also those of others.
             f"--tmpdir={self.folder}",
             "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"],
            check=True, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            cwd=self.folder, preexec_fn=die_with_parent(self.user))
        self.start()
        self.query("CREATE DATABASE jobflow", database="mysql")
        if not start:
            self.stop()

    def start(self):
        server = shutil.which("mariadbd", path=os.environ["PATH"] + ":/usr/sbin:/usr/libexec")
        self.process = spawn(
            [server, "--no-defaults", f"--datadir={self.folder / 'data'}",
             f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'pid'}",
             f"--port={self.port}", f"--bind-address={HOST}", f"--tmpdir={self.folder}",
             "--skip-name-resolve", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=1"],
            self.log, self.user, cwd=self.folder)
        wait_until(lambda: self.client("SELECT 1", "mysql").returncode == 0, 30,
                   "MariaDB is ready")

    def stop(self, how=signal.SIGTERM):
        """SIGTERM: in order; SIGKILL: as after a crash."""
        if self.process:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def kill9(self):
        self.stop(signal.SIGKILL)

    def client(self, sql, database):
        return subprocess.run(
            ["mariadb", "--no-defaults", "-h", HOST, "-P", str(self.port), "-u", "root",
             "--default-character-set=utf8mb4", "-BN", "-e",
             f"SET time_zone = '+00:00'; {sql}", database],
            check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def query(self, sql, database="jobflow"):
        answer = self.client(sql, database)
        equal(answer.returncode, 0, f"{sql}: {answer.stderr}")
        return [tuple("" if v == "NULL" else v for v in line.split("\t"))
                for line in answer.stdout.splitlines()]

    def close(self):
        self.stop()
        self.log.close()


STORES = {store.kind: store for store in (Sqlite, Postgres, Mysql)}


def open_store(kind, folder):
    return contextlib.closing(STORES[kind](folder))


# ---- Client -------------------------------------------------------------------------------------

Answer = collections.namedtuple("Answer", "status body headers")


class Client:
    """One kept-alive connection; not for several threads. `body` of an answer is JSON where it is."""

    def __init__(self, port, timeout=30):
        self.port = port
        self.timeout = timeout
        self.connection = None

    def close(self):
        if self.connection:
            self.connection.close()
            self.connection = None

    def request(self, method, path, body=None, headers=None):
        """Raises OSError or HTTPException when no answer comes; never sends twice."""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if data is not None else {}
        sent.update(headers or {})
        if not self.connection:
            self.connection = http.client.HTTPConnection(HOST, self.port, timeout=self.timeout)
        try:
            self.connection.request(method, path, data, sent)
            answer = self.connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        if answer.will_close:
            self.close()
        content_type = answer.getheader("Content-Type") or ""
        parsed = json.loads(text) if "json" in content_type else text.decode()
        return Answer(answer.status, parsed, {k.lower(): v for k, v in answer.getheaders()})

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body=None):
        return self.request("POST", path, body)

    def put(self, path, body=None):
        return self.request("PUT", path, body)

    def patch(self, path, body):
        return self.request("PATCH", path, body)

    def delete(self, path):
        return self.request("DELETE", path)


# ---- Node ---------------------------------------------------------------------------------------

# Short enough for tests to wait for; what a case is about it sets itself.
QUICK = {
    "JOBFLOW_SCHEDULER_SCAN_INTERVAL": "200ms",
    "JOBFLOW_SCHEDULER_FULL_READ": "2s",
    "JOBFLOW_SCHEDULER_GHOST_MARGIN": "2s",
    "JOBFLOW_POLICIES_DEFAULT_INITIAL": "200ms",
    "JOBFLOW_POLICIES_DEFAULT_CAP": "2s",
    "JOBFLOW_POLICIES_DEFAULT_JITTER": "0",
}


def binary():
    path = os.environ.get("JOBFLOWD") or ROOT / "build" / "node" / "jobflowd"
    check(os.access(path, os.X_OK), f"{path} is no program: set JOBFLOWD")
    return path


class Node:
    """A jobflowd. With quick=False it runs with its own defaults."""

    def __init__(self, folder, store_url, env=None, name="node-a", quick=True):
        self.folder = folder
        self.port = free_port()
        self.log_file = folder / f"{name}-{self.port}.log"
        self.args = [binary(), "--listen", f"{HOST}:{self.port}", "--store", str(store_url),
                     "--node-name", name, "--log-format", "json"]
        self.env = {**{k: v for k, v in os.environ.items() if not k.startswith("JOBFLOW_")},
                    **(QUICK if quick else {}), **(env or {})}
        self.process = None
        self.client = Client(self.port)

    def start(self, ready=True):
        self.client.close()
        with open(self.log_file, "ab") as log:
            self.process = spawn(self.args, log, env=self.env, cwd=self.folder)
        wait_until(self.is_ready if ready else self.is_up, 30,
                   f"the node {'is ready' if ready else 'listens'}")
        return self

    def is_up(self):
        check(self.process.poll() is None, f"the node ended: {self.log_tail()}")
        try:
            return self.client.get("/healthz").status == 200
        except OSError:
            return False

    def is_ready(self):
        return self.is_up() and self.client.get("/readyz").status == 200

    def kill9(self):
        self.process.kill()
        self.process.wait()
        self.process = None
        self.client.close()

    def terminate(self, seconds=60):
        """SIGTERM; returns the exit status."""
        self.process.terminate()
        status = self.process.wait(seconds)
        self.process = None
        self.client.close()
        return status

    def close(self):
        if self.process:
            self.terminate()

    def log(self):
        """The whole lines so far, parsed. A line that is not JSON fails."""
        with open(self.log_file, "rb") as log:
            *lines, _unfinished = log.read().split(b"\n")
        return [json.loads(line) for line in lines if line]

    def log_tail(self):
        with open(self.log_file, "r", encoding="utf-8", errors="replace") as log:
            return "".join(log.readlines()[-10:])

    def events(self, event, **fields):
        return [line for line in self.log() if line["event"] == event
                and all(line.get(k) == v for k, v in fields.items())]

    def metrics(self):
        """Series with labels → value."""
        series = {}
        for line in self.client.get("/metrics").body.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                series[name] = float(value)
        return series

    # The calls that most cases make.

    def submit(self, biz_uuid, service, handler="h", wanted=201, **more):
        answer = self.client.post("/api/delay-tasks", {
            "bizUuid": biz_uuid, "serviceName": service, "handler": handler, **more})
        equal(answer.status, wanted, f"submitting {biz_uuid}: {answer.body}")
        return answer.body

    def task(self, biz_uuid):
        return self.client.get(f"/api/delay-tasks/{biz_uuid}").body

    def wait_status(self, biz_uuid, status, seconds=20):
        def probe():
            task = self.task(biz_uuid)
            return task if task.get("status") == status else None
        try:
            return wait_until(probe, seconds, f"{biz_uuid} is {status}")
        except AssertionError:
            diagnose(self.task(biz_uuid))
            raise

    def register(self, service, base_url, **more):
        answer = self.client.put(f"/api/services/{service}", {"baseUrl": base_url, **more})
        check(answer.status in (200, 201), f"registering {service}: {answer}")
        return answer.body


def memory_bytes(pid):
    """What the process keeps resident, shared pages of libraries included."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return sum(int(fields[k].split()[0]) for k in ("RssAnon", "RssFile")) * 1024


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- Receiver -----------------------------------------------------------------------------------

class Delivery:
    """One request as the receiver saw it."""

    def __init__(self, path, headers, body, connection, nth):
        self.at_ms = now_ms()
        self.path = path
        self.headers = headers
        self.body = body
        self.connection = connection  # number of the connection
        self.nth = nth                # request of that connection, from 1
        self.trace = headers.get("x-trace-id")
        self.attempt = int(headers.get("x-jobflow-attempt", 0))

    @property
    def handler(self):
        return self.path.rsplit("/", 1)[1]

    def envelope(self):
        return json.loads(self.body)


class Reset(Exception):
    """Raised by a behaviour: break the connection with RST instead of answering."""


class Receiver:
    """A business service. `behave(delivery)` returns None (200), a status, or (status, body, headers);
    it runs on the connection's own thread and may wait."""

    def __init__(self, behave=None, port=0, host=HOST):
        self.behave = behave or (lambda delivery: None)
        self.lock = threading.Lock()
        self.deliveries = []
        self.n_connections = 0
        self.open = set()
        self.listener = socket.create_server((host, port), backlog=512)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        # shutdown wakes accept(), which close alone does not.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            connections = list(self.open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.n_connections += 1
                number = self.n_connections
                self.open.add(connection)
            threading.Thread(target=self.serve, args=(connection, number), daemon=True).start()

    def serve(self, connection, number):
        stream = connection.makefile("rb")
        try:
            nth = 0
            while True:
                nth += 1
                delivery = self.read(stream, number, nth)
                if not delivery:
                    return
                with self.lock:
                    self.deliveries.append(delivery)
                connection.sendall(self.answer(self.behave(delivery)))
        except Reset:
            # Linger 0: close sends RST.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        except OSError:
            pass
        finally:
            with self.lock:
                self.open.discard(connection)
            stream.close()
            connection.close()

    @staticmethod
    def read(stream, number, nth):
        request = stream.readline()
        if not request:
            return None
        headers = {}
        while True:
            line = stream.readline()
            if line in (b"\r\n", b""):
                break
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        body = stream.read(length)
        if len(body) < length:
            return None
        return Delivery(request.split()[1].decode(), headers, body, number, nth)

    @staticmethod
    def answer(said):
        status, body, headers = 200, b"{}", {}
        if isinstance(said, int):
            status = said
        elif said is not None:
            status, body = said[0], said[1] if isinstance(said[1], bytes) else json.dumps(said[1]).encode()
            headers = said[2] if len(said) > 2 else {}
        lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json",
                 f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def of(self, trace):
        """Deliveries of one task, in order."""
        with self.lock:
            return [d for d in self.deliveries if d.trace == trace]

    def to(self, handler):
        with self.lock:
            return [d for d in self.deliveries if d.handler == handler]

    def count(self):
        with self.lock:
            return len(self.deliveries)


class Handlers:
    """A behaviour by handler: each test names its handlers after itself and sets what they answer.
    A list is used up answer by answer; its last one stays."""

    def __init__(self):
        self.lock = threading.Lock()
        self.table = {}

    def set(self, handler, *answers):
        with self.lock:
            self.table[handler] = list(answers)

    def __call__(self, delivery):
        with self.lock:
            answers = self.table.get(delivery.handler)
            if not answers:
                return None
            said = answers.pop(0) if len(answers) > 1 else answers[0]
        return said(delivery) if callable(said) else said
