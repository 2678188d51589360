# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes: an etcd of one or three members, a database, nodes, and between each
node and everything it talks to a proxy of its own, so that one node can be cut off from one part.
"""

import base64
import collections
import contextlib
import functools
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import lib  # noqa: E402
import stalls  # noqa: E402
from lib import check, wait_until  # noqa: E402
from proxy import MysqlWire, PostgresWire, Proxy  # noqa: E402

HOST = lib.HOST
WIRES = {"postgres": PostgresWire, "mysql": MysqlWire}
FAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"

TTL = 2       # seconds
TIMEOUT = 2   # of an attempt
MARGIN = 2    # after it, until it counts as failed
SENDING_LIMIT = TIMEOUT + MARGIN
ENV = {
    "JOBFLOW_CLUSTER_TTL": f"{TTL}s",
    "JOBFLOW_CLUSTER_SECRET": "whsec_" + base64.b64encode(b"between nodes of a test").decode(),
    "JOBFLOW_DELIVERY_TIMEOUT": f"{TIMEOUT}s",
    "JOBFLOW_SCHEDULER_GHOST_MARGIN": f"{MARGIN}s",
    "JOBFLOW_STORE_GIVE_UP": "3s",
    "JOBFLOW_STORE_STATEMENT_TIMEOUT": "1s",
    "JOBFLOW_STOP_GRACE": "10s",
}


# ---- etcd ---------------------------------------------------------------------------------------

class Etcd:
    """One or three members. Without --unsafe-no-fsync, which Debian's version does not know."""

    def __init__(self, folder, n_members):
        self.folder = folder
        self.ports = [lib.free_port() for _ in range(n_members)]
        peers = [lib.free_port() for _ in range(n_members)]
        self.peer_urls = [f"http://{HOST}:{port}" for port in peers]
        self.initial = ",".join(f"m{i}={url}" for i, url in enumerate(self.peer_urls))
        self.processes = [None] * n_members
        self.members = range(n_members)

    def start(self, members=None, wait=True):
        for i in self.members if members is None else members:
            url = f"http://{HOST}:{self.ports[i]}"
            with open(self.folder / f"etcd-{i}.log", "ab") as log:
                self.processes[i] = lib.spawn(
                    ["etcd", "--name", f"m{i}", "--data-dir", self.folder / f"etcd-{i}",
                     "--listen-client-urls", url, "--advertise-client-urls", url,
                     "--listen-peer-urls", self.peer_urls[i],
                     "--initial-advertise-peer-urls", self.peer_urls[i],
                     "--initial-cluster", self.initial, "--log-level", "error"], log)
        if wait:
            wait_until(lambda: self.leader() is not None, 30, "etcd has a leader")
        return self

    def kill9(self, members=None):
        for i in self.members if members is None else members:
            if self.processes[i]:
                self.processes[i].kill()
                self.processes[i].wait()
                self.processes[i] = None

    def close(self):
        self.kill9()

    def ask(self, member, path, body):
        connection = http.client.HTTPConnection(HOST, self.ports[member], timeout=5)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            text = answer.read()
            check(answer.status == 200, f"etcd says {answer.status} to {path}: {text}")
            return json.loads(text)

    def leader(self):
        """The number of the member that leads and can commit; None while there is none."""
        for i in self.members:
            if not self.processes[i]:
                continue
            try:
                status = self.ask(i, "/v3/maintenance/status", {})
                if status["header"]["member_id"] == status.get("leader"):
                    self.ask(i, "/v3/kv/range", {"key": base64.b64encode(b"x").decode()})
                    return i
            except (OSError, http.client.HTTPException, AssertionError, KeyError):
                pass
        return None

    def compact(self, n_writes=20):
        """Writes something and forgets all that was before it."""
        member = wait_until(lambda: [i for i in [self.leader()] if i is not None], 20,
                            "etcd has a leader")[0]
        for n in range(n_writes):
            answer = self.ask(member, "/v3/kv/put", {
                "key": base64.b64encode(b"/other").decode(),
                "value": base64.b64encode(str(n).encode()).decode()})
        self.ask(member, "/v3/kv/compaction",
                 {"revision": answer["header"]["revision"], "physical": True})


# ---- Nodes --------------------------------------------------------------------------------------

class Member(lib.Node):
    """A node that reaches the database, etcd and the services through proxies of its own."""

    def __init__(self, cluster, name):
        store = cluster.store
        self.db = Proxy(store.port, WIRES[store.kind])
        self.etcd = [Proxy(port) for port in cluster.etcd.ports] if cluster.etcd else []
        self.services = Proxy(cluster.receiver_port)
        env = {**ENV, "JOBFLOW_DELIVERY_URL_TEMPLATE":
                   f"http://{HOST}:{self.services.port}/{name}/{{service}}", **cluster.env}
        super().__init__(cluster.folder, store.url.replace(f":{store.port}/", f":{self.db.port}/"),
                         env, name)
        if self.etcd:
            self.args += ["--etcd", ",".join(f"http://{HOST}:{p.port}" for p in self.etcd)]
        self.name = name
        self.exits = []  # statuses of processes that ended without being told to

    def proxies(self):
        return [self.db, *self.etcd, self.services]

    def set_clock(self, offset):
        """For the next start: None, or what libfaketime takes, such as +2h."""
        for name in fake_clock(""):
            self.env.pop(name, None)
        if offset:
            self.env.update(fake_clock(offset))

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def note_exit(self):
        """A process that is gone is started again: the run goes on, and the exit is kept."""
        if self.process and self.process.poll() is not None:
            self.exits.append((self.process.returncode, self.log_tail()))
            self.process = None
            self.start(ready=False)

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process = None
        self.client.close()
        for proxy in self.proxies():
            proxy.close()


def faketime():
    found = sorted(pathlib.Path("/").glob(FAKETIME.lstrip("/")))
    if not found:
        raise lib.NotHere("libfaketime is not installed")
    return str(found[0])


def fake_clock(offset):
    """The environment of a process whose wall clock is off: by what libfaketime takes, such as +2h."""
    return {"LD_PRELOAD": faketime(), "FAKETIME": offset, "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1"}


class Cluster:
    """Everything but the receiver, which listens on `receiver_port` wherever it runs. `stalls` are
    those of the proxies: (node, proxy, time, milliseconds)."""

    def __init__(self, kind, folder, receiver_port, n_nodes=3, n_etcd=1, env=None):
        self.folder = folder
        self.stalls = []
        self.receiver_port = receiver_port
        self.env = env or {}
        self.store = lib.STORES[kind](folder)
        self.etcd = Etcd(folder, n_etcd).start() if n_etcd else None
        self.nodes = [Member(self, f"node-{letter}") for letter in "abcdefgh"[:n_nodes]]
        for node in self.nodes:
            for proxy in node.proxies():
                proxy.also(stalls.watch(functools.partial(self.note_stall, node, proxy)))
            node.start(ready=False)
        self.wait_all_active(30)

    def note_stall(self, *stall):
        self.stalls.append(stall)

    def close(self):
        for node in self.nodes:
            node.close()
        if self.etcd:
            self.etcd.close()
        self.store.close()

    def view(self, node=None, service=None):
        """GET /api/cluster of a node, or of the first that answers; with a client of its own, for
        several threads. None when nobody does."""
        for member in [node] if node else self.nodes:
            client = lib.Client(member.port, timeout=3)
            with contextlib.closing(client):
                try:
                    answer = client.get("/api/cluster" + (f"?service={service}" if service else ""))
                except (OSError, http.client.HTTPException):
                    continue
                if answer.status == 200:
                    return answer.body
        return None

    def actives(self, node):
        view = self.view(node)
        return sorted(m["name"] for m in view["members"] if m["state"] == "active") if view else []

    def agree(self):
        """Whether all nodes see all of them active, by the same witness."""
        wanted = sorted(node.name for node in self.nodes)
        return all(self.actives(node) == wanted for node in self.nodes)

    def wait_all_active(self, seconds):
        try:
            wait_until(self.agree, seconds, "all nodes see each other active")
        except AssertionError:
            lib.diagnose({node.name: self.view(node) for node in self.nodes})
            raise

    def owners(self, node=None):
        """(service, shard) → name, as a node sees it."""
        view = self.view(node)
        return {(s["serviceName"], shard): owner for s in view["services"]
                for shard, owner in enumerate(s["owners"])} if view else {}

    def shards(self, service, node):
        """How many the node knows of; 0 while it does not know the service."""
        view = self.view(node, service)
        return len(view["services"][0]["owners"]) if view else 0

    def node(self, name):
        return next(node for node in self.nodes if node.name == name)


def pause(seconds):
    """The length of a fault, not a wait for something."""
    time.sleep(seconds)


def need_programs(*names):
    for name in names:
        if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin"):
            raise lib.NotHere(f"{name} is not installed")


# ---- The receiver -------------------------------------------------------------------------------

Request = collections.namedtuple("Request", "at node service handler trace attempt hash number")


class Services:
    """receiver.py and its log."""

    def __init__(self, folder, port, node_ports):
        self.log_file = folder / "receiver.log"
        with open(folder / "receiver.err", "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "receiver.py", str(port), self.log_file, str(TIMEOUT),
                 *map(str, node_ports)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.say(None)

    def say(self, mode):
        if mode:
            self.process.stdin.write(f"{mode}\n")
            self.process.stdin.flush()
        lib.equal(self.process.stdout.readline(), "done\n", "the receiver's answer")

    def end(self):
        if self.process.poll() is None:
            self.say("end")
            self.process.wait(60)

    def requests(self):
        return [Request(*fields) for kind, *fields in read_log(self.log_file) if kind == "r"]

    def close(self):
        self.process.kill()
        self.process.wait()


def read_log(path):
    """The lines that are whole."""
    with open(path, encoding="ascii") as log:
        return [json.loads(line) for line in log if line.endswith("\n")]
