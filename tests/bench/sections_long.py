# SPDX-License-Identifier: Apache-2.0
"""The sections about what changes with time, size, disk and number of nodes."""

import contextlib
import re
import shutil
import signal
import statistics
import subprocess
import time

from plan import Measurement, need
from programs import Failed
from rigs import Etcd, Postgres, Rig, Snapshot, lib
from sections import NODE, emptied, lifecycle, note_fsync

SHARDS = 12  # of the service in a cluster, so that each node owns some
PROFILE_LINES = 40
SNAPSHOT_RATE = 10_000  # tasks a second while a snapshot grows old


def slow_disk(plan, _wanted, _peers):
    """The main rows with 0, 1 and 5 ms added to each sync of the database, 256 connections."""
    with contextlib.ExitStack() as stack:
        found = []
        for ms in (0, 1, 5):
            name = f"{NODE}, {ms} ms added to each sync"
            plan.say(f"starting PostgreSQL with {ms} ms added to each sync")
            server = stack.enter_context(contextlib.closing(Postgres(
                plan.subfolder(f"slow-{ms}"), plan.programs.slowsync, ms * 1000)))
            note_fsync(plan, server, f"{ms} ms added")
            rig = stack.enter_context(contextlib.closing(Rig(
                plan.programs, plan.subfolder(f"slow-node-{ms}"), server.database("jobflow"))))
            found += [
                plan.rate("slow_single", name, lambda r=rig: emptied(
                    r, "submit", plan.sizes.single, size=1, connections=256)),
                plan.rate("slow_batch", name, lambda r=rig: emptied(
                    r, "submit", plan.sizes.batch, connections=4)),
                lifecycle(plan, rig, "slow_lifecycle", name, plan.sizes.lifecycle)]
        plan.by_turns("slower disks", sorted(found, key=lambda m: m.row))


def pending(plan, _wanted, _peers):
    """Lifecycles beside more and more tasks that are due in 30 days, and the node's memory."""
    sizes = plan.sizes
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(contextlib.closing(Postgres(plan.subfolder("pending"))))
        note_fsync(plan, server)
        rigs = [stack.enter_context(contextlib.closing(Rig(
            plan.programs, plan.subfolder(name), server.database(name)))) for name in
            ("few", "many")]
        few, many = rigs
        stored = {few: 0, many: 0}

        def fill(rig, total):
            n = total - stored[rig]
            plan.say(f"{n:,} more tasks for {rig.database.name}")
            if n:
                plan.programs.limit(rig.database, "fill", n, batch=1000, sessions=2)
            stored[rig] = total
            rig.database.settle()

        def run(rig, row):
            plan.figures.add(row, f"{NODE}, {stored[rig]:,} pending",
                             rig.bench("lifecycle", sizes.lifecycle)["per_second"])

        fill(few, sizes.pending[0])
        for total in sizes.pending:
            fill(many, total)
            plan.by_turns("pending tasks", [Measurement(
                "pending", f"{NODE}, {total:,} pending", lambda: run(many, "pending"))],
                repeat=min(3, plan.repeat))
        plan.by_turns("pending tasks", [
            Measurement("pending_pair", f"{NODE}, {stored[rig]:,} pending",
                        lambda r=rig: run(r, "pending_pair")) for rig in rigs])
        for rig in rigs:
            plan.figures.add("pending_memory", f"{NODE}, {stored[rig]:,} pending",
                             rig.nodes[0].memory_mb())
        plan.figures.notes["pending"] = list(sizes.pending)


def aged(plan, _wanted, _peers):
    """One database fresh, after many finished tasks, and then with a snapshot held open elsewhere."""
    sizes = plan.sizes
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(contextlib.closing(Postgres(plan.subfolder("aged"))))
        note_fsync(plan, server)
        rig = stack.enter_context(contextlib.closing(Rig(
            plan.programs, plan.subfolder("aged-node"), server.database("jobflow"))))

        def limit(n, **options):
            with rig.paused():
                return plan.programs.limit(rig.database, "lifecycle", n, batch=500, **options)[0]

        def measure(subject):
            plan.by_turns("ageing", [
                plan.rate("aged", subject, lambda: rig.bench("lifecycle", sizes.lifecycle)),
                plan.rate("aged_limit", subject, lambda: limit(sizes.limit))])

        def grow_old(snapshot, subject):
            """A minute at a time; the first one also warms up."""
            while snapshot.age() < sizes.snapshot_s:
                plan.say(f"{SNAPSHOT_RATE:,} a second, the snapshot is {snapshot.age():.0f} s old")
                seconds = max(1, min(60, round(sizes.snapshot_s - snapshot.age())))
                found = rig.bench("lateness", SNAPSHOT_RATE * seconds, rate=SNAPSHOT_RATE,
                                  size=SNAPSHOT_RATE // 1000, connections=16)
                for row in ("p50", "p99", "max"):
                    plan.figures.add(f"aged_{row}", subject, found[f"{row}_ms"])

        measure(f"{NODE}, fresh")
        plan.say(f"{sizes.finished:,} finished tasks")
        limit(sizes.finished, sessions=2)
        rig.database.settle()
        measure(f"{NODE}, {sizes.finished:,} finished")
        snapshot = stack.enter_context(contextlib.closing(Snapshot(rig.database)))
        grow_old(snapshot, f"{NODE}, {sizes.finished:,} finished and an old snapshot")
        measure(f"{NODE}, {sizes.finished:,} finished and an old snapshot")
        plan.figures.notes["aged"] = {"finished": sizes.finished,
                                      "snapshot_s": round(snapshot.age())}


def cluster(plan, _wanted, _peers):
    """Three nodes and etcd beside one node, each with a database of its own."""
    need("etcd")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(contextlib.closing(Postgres(plan.subfolder("cluster"))))
        note_fsync(plan, server)
        etcd = Etcd(plan.subfolder("etcd"), 1)
        stack.callback(etcd.close)
        etcd.start()
        one = stack.enter_context(contextlib.closing(Rig(
            plan.programs, plan.subfolder("one"), server.database("one"), shards=SHARDS)))
        three = stack.enter_context(contextlib.closing(Rig(
            plan.programs, plan.subfolder("three"), server.database("three"), 3, etcd, SHARDS)))

        def run_three():
            lost = three.total("jobflow_claims_lost_total")
            claims = three.total('jobflow_store_rows_total{kind="claim"}')
            found = emptied(three, "lifecycle", plan.sizes.lifecycle, connections=6)
            lost = three.total("jobflow_claims_lost_total") - lost
            claims = three.total('jobflow_store_rows_total{kind="claim"}') - claims
            plan.figures.add("cluster", f"{NODE}, 3 nodes", found["per_second"])
            plan.figures.add("wasted", f"{NODE}, 3 nodes", 100 * lost / max(1, claims))

        plan.by_turns("cluster", [
            plan.rate("cluster", f"{NODE}, 1 node", lambda: emptied(
                one, "lifecycle", plan.sizes.lifecycle, connections=6)),
            Measurement("cluster", f"{NODE}, 3 nodes", run_three)])


def profile(plan, _wanted, _peers):
    """Where the node's CPU time goes in lifecycles with one HTTP call each, by perf."""
    need("perf")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(contextlib.closing(Postgres(plan.subfolder("profile"))))
        rig = stack.enter_context(contextlib.closing(Rig(
            plan.programs, plan.subfolder("profile-node"), server.database("jobflow"))))
        data = plan.subfolder("profile") / "perf.data"
        plan.say("a profile of the node")
        with open(plan.subfolder("profile") / "perf.log", "wb") as log:
            perf = subprocess.Popen(
                [shutil.which("perf"), "record", "-F", "999", "-o", data, "-p",
                 str(rig.nodes[0].process.pid)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=lib.die_with_parent())
            rates = [emptied(rig, "lifecycle", plan.sizes.lifecycle)["per_second"]
                     for _ in range(2)]
            perf.send_signal(signal.SIGINT)
            perf.wait(60)
        plan.figures.notes["profile"] = {"per_second": statistics.median(rates),
                                         "lines": read_profile(data)}


def read_profile(data):
    """[[percent, object, symbol], …], the heaviest first."""
    answer = subprocess.run(
        ["perf", "report", "-i", data, "--stdio", "--sort", "dso,symbol", "--percent-limit", "0.3"],
        check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found = re.findall(r"^\s*([\d.]+)%\s+(\S+)\s+\[.\]\s+(.+?)(?:\s+-)*\s*$", answer.stdout, re.MULTILINE)
    if not found:
        raise Failed("perf saw nothing")
    return [[float(share), place, symbol] for share, place, symbol in found[:PROFILE_LINES]]


def guarded(plan, section, row, *args):
    """A section that cannot be set up is one that was not measured."""
    started = time.monotonic()
    try:
        section(plan, *args)
    except (Failed, AssertionError, OSError, subprocess.CalledProcessError) as why:
        text = str(why).strip().splitlines() or [type(why).__name__]
        plan.miss(row, NODE, text[-1])
    plan.figures.notes.setdefault("section_seconds", {})[section.__name__] = round(
        time.monotonic() - started, 1)
