# SPDX-License-Identifier: Apache-2.0
"""The peers: tests/bench/peers/NAME with the programs `setup` and `run` (see docs/performance.md)."""

import os
import pathlib
import subprocess

from plan import Measurement
from programs import Failed, run
from rigs import HERE, Redis

FOLDER = HERE / "peers"
SETUP_SECONDS = 1200
RUN_SECONDS = 180
STAMP = ".ready"  # in a peer's home, once its setup has succeeded


class Peer:
    def __init__(self, folder, home):
        self.folder = folder
        self.name = folder.name
        self.home = home / folder.name
        self.env = {}

    @property
    def label(self):
        return self.name

    def is_installed(self):
        return (self.home / STAMP).exists()

    def needs(self):
        file = self.folder / "needs"
        return file.read_text(encoding="utf-8").split() if file.exists() else []

    def jobs(self, wanted):
        """How many it gets: a file may say that it is too slow for more, so that a run ends."""
        file = self.folder / "most_jobs"
        return min(wanted, int(file.read_text())) if file.exists() else wanted

    def setup(self):
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / STAMP).unlink(missing_ok=True)
        with open(self.home / "setup.log", "wb") as log:
            answer = subprocess.run(
                [self.folder / "setup"], check=False, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, timeout=SETUP_SECONDS, env={**os.environ, "PEER_HOME": str(self.home)})
        if answer.returncode:
            lines = (self.home / "setup.log").read_text(errors="replace").strip().splitlines()
            raise Failed(f"setup failed: {lines[-1] if lines else answer.returncode}")
        (self.home / STAMP).touch()

    def measure(self, *words):
        return run([self.folder / "run", *words], RUN_SECONDS,
                   {**self.env, "PEER_HOME": str(self.home)})[0]


def default_home():
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("PEER_HOME") or pathlib.Path(cache) / "jobflow-bench")


def all_peers(home):
    """Folders that hold both programs; what they share has a name of its own."""
    if not FOLDER.is_dir():
        return []
    return [Peer(folder, home) for folder in sorted(FOLDER.iterdir())
            if (folder / "run").exists() and not folder.name.startswith("lib")]


def prepare(plan, peers, install):
    """Those that can be measured; of the others the figures say why not."""
    ready = []
    for peer in peers:
        if not install and not peer.is_installed():
            plan.figures.notes.setdefault("not_installed", []).append(peer.label)
            continue
        try:
            if install:
                plan.say(f"setting up {peer.name}")
                peer.setup()
            ready.append(peer)
        except (Failed, OSError, subprocess.TimeoutExpired) as why:
            plan.miss("lifecycle", peer.label, str(why))
    return ready


def start(plan, peers, server, receiver_url, folder):
    """Gives each its database, and a Redis where one is needed. Returns what is to be closed."""
    opened = []
    for peer in list(peers):
        database = server.database("peer_" + peer.name.replace("-", "_"))
        peer.env = {"DATABASE_URL": database.url, "RECEIVER_URL": receiver_url}
        if "redis" in peer.needs():
            try:
                redis = Redis(folder / f"redis-{peer.name}")
            except OSError:
                plan.miss("lifecycle", peer.label, "redis-server is not installed")
                peers.remove(peer)
                continue
            peer.env["REDIS_URL"] = redis.url
            opened.append(redis)
    return opened


def measurements(plan, peer):
    """All of one peer, as (group, measurement)."""
    sizes, figures = plan.sizes, plan.figures
    jobs = peer.jobs(sizes.peer)

    def rate(row, *words):
        return plan.rate(row, peer.label, lambda: peer.measure(*words))

    def burst(row, measure):
        return Measurement(row, peer.label, lambda: figures.add(
            row, peer.label, peer.measure(measure, sizes.burst)["all_ms"]))

    def lateness():
        found = peer.measure("lateness", 500, sizes.lateness_s)
        for row, key in (("late_p50", "p50_ms"), ("late_p99", "p99_ms"),
                         ("late_p999", "p999_ms"), ("late_max", "max_ms")):
            figures.add(row, peer.label, found[key])

    return [
        ("submissions", rate("batch", "enqueue_batch", jobs)),
        ("submissions", rate("single", "enqueue_single", jobs)),
        ("lifecycles", rate("lifecycle", "lifecycle", jobs)),
        ("lifecycles", rate("lifecycle_http", "lifecycle_http", jobs)),
        ("lifecycles", rate("drain", "drain", jobs)),
        ("lateness", Measurement("late_p50", peer.label, lateness)),
        ("lateness", burst("burst", "burst")),
        ("lateness", burst("burst_http", "burst_http")),
    ]
