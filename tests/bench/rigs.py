# SPDX-License-Identifier: Apache-2.0
"""Database servers with the settings of the bench, databases on them, and nodes.

Each server is durable, and all have the same settings, whoever is measured on them.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE.parent / "chaos")]

import lib  # noqa: E402
from cluster import Etcd  # noqa: E402
from lib import HOST, wait_until  # noqa: E402

POSTGRES_SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "min_wal_size": "1GB",
                     "fsync": "on", "synchronous_commit": "on", "max_connections": "200"}
WAL_SEGMENTS = 64  # as many as min_wal_size keeps
MARIADB_SETTINGS = {"innodb-buffer-pool-size": "1G", "innodb-log-file-size": "1G",
                    "innodb-flush-log-at-trx-commit": "1", "max-connections": "200"}
TABLES = ("job_delay_task", "job_delay_task_history", "job_attempt", "job_alert")


# ---- Servers ------------------------------------------------------------------------------------

class Postgres(lib.Postgres):
    """With slow_us, each of its syncs takes so many microseconds longer."""

    def __init__(self, folder, slowsync=None, slow_us=0):
        folder.mkdir(exist_ok=True)
        self.slow_us = slow_us
        self.preload = None
        if slow_us:  # where the server's user may read it
            self.preload = shutil.copy(slowsync, folder)
            os.chmod(self.preload, 0o755)
        super().__init__(folder)

    def env(self):
        more = {"LD_PRELOAD": self.preload, "SLOWSYNC_US": str(self.slow_us)} if self.preload else {}
        return {**os.environ, **more}

    def start(self):
        settings = [word for name, value in POSTGRES_SETTINGS.items()
                    for word in ("-c", f"{name}={value}")]
        self.process = lib.spawn(
            [f"{self.bin}/postgres", "-D", self.folder / "data", "-p", str(self.port), "-k",
             self.folder, "-c", f"listen_addresses={HOST}", *settings],
            self.log, self.user, cwd=self.folder, env=self.env())
        wait_until(lambda: subprocess.run(
            [f"{self.bin}/pg_isready", "-q", "-h", HOST, "-p", str(self.port)],
            check=False).returncode == 0, 30, "PostgreSQL is ready")
        self.age()

    def age(self):
        """As one that has run for a while: segments of its log are used again. Of a fresh one each
        commit that needs a new segment waits until 16 MB of zeros are on the disk, and all others
        wait with it."""
        self.query(f"DO $$ BEGIN FOR i IN 1..{WAL_SEGMENTS} LOOP "
                   "PERFORM pg_logical_emit_message(false, 'bench', ''), pg_switch_wal(); "
                   "END LOOP; END $$")
        self.query("CHECKPOINT")

    def database(self, name):
        self.query(f"CREATE DATABASE {name}")
        return PostgresDatabase(self, name)


class Mariadb(lib.Mysql):
    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        super().__init__(folder)

    def start(self):
        server = shutil.which("mariadbd", path=os.environ["PATH"] + ":/usr/sbin:/usr/libexec")
        self.process = lib.spawn(
            [server, "--no-defaults", f"--datadir={self.folder / 'data'}",
             f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'pid'}",
             f"--port={self.port}", f"--bind-address={HOST}", "--skip-name-resolve",
             "--skip-log-bin", *(f"--{name}={value}" for name, value in MARIADB_SETTINGS.items())],
            self.log, self.user, cwd=self.folder)
        wait_until(lambda: self.client("SELECT 1", "mysql").returncode == 0, 60, "MariaDB is ready")

    def database(self, name):
        self.query(f"CREATE DATABASE {name}")
        return MariadbDatabase(self, name)


class Redis:
    """As a queue that must lose nothing needs it."""

    def __init__(self, folder):
        self.port = lib.free_port()
        self.url = f"redis://{HOST}:{self.port}/0"
        folder.mkdir(exist_ok=True)
        self.log = open(folder / "redis.log", "ab")
        self.process = lib.spawn(
            ["redis-server", "--port", str(self.port), "--bind", HOST, "--dir", folder,
             "--appendonly", "yes", "--appendfsync", "always", "--save", "",
             "--maxmemory-policy", "noeviction"], self.log)
        wait_until(self.is_up, 30, "Redis is ready")

    def is_up(self):
        lib.check(self.process.poll() is None, "redis-server has ended")
        with contextlib.suppress(OSError), lib.socket.create_connection((HOST, self.port), 1):
            return True
        return False

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


# ---- Databases ----------------------------------------------------------------------------------

class PostgresDatabase:
    def __init__(self, server, name):
        self.server = server
        self.name = name
        self.url = f"postgres://postgres@{HOST}:{server.port}/{name}"

    def query(self, sql):
        answer = subprocess.run(
            [f"{self.server.bin}/psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql, self.url],
            check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return answer.stdout.splitlines()

    def empty(self):
        self.query(f"TRUNCATE {', '.join(TABLES)}")
        self.query("CHECKPOINT")

    def settle(self):
        """After a mass of rows was put in."""
        self.query("VACUUM ANALYZE")
        self.query("CHECKPOINT")


class MariadbDatabase:
    def __init__(self, server, name):
        self.server = server
        self.name = name
        self.url = f"mysql://root@{HOST}:{server.port}/{name}"

    def empty(self):
        for table in TABLES:
            self.server.query(f"TRUNCATE {table}", self.name)


class SqliteDatabase:
    """A file that begins anew each time it is emptied."""

    def __init__(self, folder, name):
        self.folder = folder
        self.name = name
        self.url = f"sqlite:{folder / name}.db"

    def empty(self):
        for file in self.folder.glob(f"{self.name}.db*"):
            file.unlink()


# ---- Nodes --------------------------------------------------------------------------------------

class Node(lib.Node):
    def __init__(self, folder, database, name="node-a", etcd=None, env=None):
        super().__init__(folder, database.url, env, name, quick=False)
        self.args += ["--log-level", "warn"]
        if etcd:
            self.args += ["--etcd", f"http://{HOST}:{etcd.ports[0]}"]

    def metrics(self):
        self.client.close()  # one that has been idle for long may be closed on the other side
        return super().metrics()

    def cpu(self):
        return lib.cpu_seconds(self.process.pid)

    def memory_mb(self):
        return lib.memory_bytes(self.process.pid) / 1e6


class Rig:
    """A node, or several of one cluster, on a database of their own."""

    def __init__(self, programs, folder, database, n_nodes=1, etcd=None, shards=1):
        self.programs = programs
        self.database = database
        self.shards = shards
        self.receiver_port = lib.free_port()  # always the same: all nodes know it beforehand
        env = {"JOBFLOW_CLUSTER_SECRET": "whsec_" + "c2VjcmV0IG9mIHRoZSBiZW5jaA=="}
        folder.mkdir(exist_ok=True)
        self.nodes = [Node(folder, database, f"{database.name}-{i}".replace("_", "-"), etcd, env)
                      for i in range(n_nodes)]
        for node in self.nodes:
            node.start()
        if n_nodes > 1:
            self.join()

    def join(self):
        """Waits until all nodes agree on who is there and who owns the service's shards."""
        wanted = len(self.nodes)
        wait_until(lambda: all(self.count(node, "members") == wanted for node in self.nodes), 30,
                   "all nodes see each other")
        self.register()
        wait_until(lambda: all(self.count(node, "owners") == self.shards for node in self.nodes),
                   30, "all nodes know the service")

    def register(self):
        self.nodes[0].register("bench-push", f"http://{HOST}:{self.receiver_port}/jobflow",
                               shards=self.shards, concurrency=256)

    @contextlib.contextmanager
    def paused(self):
        """The service is there, and its tasks are left to somebody else."""
        self.nodes[0].client.close()  # idle for long: the other side may have closed it
        self.register()
        self.order("pause")
        try:
            yield
        finally:
            self.nodes[0].client.close()
            self.order("resume")

    def order(self, what):
        answer = self.nodes[0].client.post(f"/api/services/bench-push/{what}")
        lib.check(answer.status == 200, f"{what}: {answer.status} {answer.body}")

    def count(self, node, what):
        view = node.client.get("/api/cluster").body
        if what == "members":
            return sum(m["state"] == "active" for m in view.get("members", []))
        return sum(len(s["owners"]) for s in view.get("services", [])
                   if s["serviceName"] == "bench-push")

    def bench(self, measure, n, **options):
        return self.programs.bench(self.nodes, measure, n, receiver=self.receiver_port,
                                   shards=self.shards, **options)

    def empty(self):
        """Tasks of before are gone, and the database's writes with them."""
        if isinstance(self.database, SqliteDatabase):
            self.nodes[0].terminate()
            self.database.empty()
            self.nodes[0].start()
        else:
            self.database.empty()

    def cpu(self):
        return sum(node.cpu() for node in self.nodes)

    def total(self, series):
        return sum(node.metrics().get(series, 0) for node in self.nodes)

    def close(self):
        for node in self.nodes:
            node.close()


class Snapshot:
    """A transaction of another session that goes on seeing what was there when it began."""

    def __init__(self, database):
        self.process = subprocess.Popen(
            [f"{database.server.bin}/psql", "-XAtq", database.url], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, preexec_fn=lib.die_with_parent())
        self.since = time.monotonic()
        self.process.stdin.write("BEGIN ISOLATION LEVEL REPEATABLE READ;\n"
                                 "SELECT 'seen' FROM (SELECT count(*) FROM job_service) AS s;\n")
        self.process.stdin.flush()
        lib.equal(self.process.stdout.readline(), "seen\n", "the snapshot's answer")

    def age(self):
        return time.monotonic() - self.since

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


__all__ = ["Etcd", "HOST", "Mariadb", "Node", "Postgres", "Redis", "Rig", "Snapshot",
           "SqliteDatabase", "lib"]
