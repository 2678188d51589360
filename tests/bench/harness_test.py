#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries the bench itself, at sizes whose figures mean nothing. Speaks TAP."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
from xml.etree import ElementTree

import goals
import peerset
import plots
import report
from figures import Figures
from plan import TINY, Plan
from programs import Programs
from rigs import HERE, HOST, lib
from sections import LIMIT, MODES, NODE

PROGRAMS = pathlib.Path(os.environ.get("BENCH_PROGRAMS", HERE.parents[1] / "build-bench"))
ROWS_WANTED = {
    ("batch", LIMIT), ("claim", LIMIT), ("finish", LIMIT), ("lifecycle", LIMIT), ("batch", NODE),
    ("single", NODE), ("lifecycle_http", NODE), ("lifecycle", MODES["batch"]),
    ("lifecycle", MODES["pull"]), ("drain", NODE), ("cpu", NODE), ("stores", f"{NODE}, SQLite"),
    ("stores", "limit, SQLite")}


def a_run_measures_all_rows_and_writes_them():
    with lib.Workspace() as folder:
        marked = folder / "page.md"
        marked.write_text(f"before\n{report.BEGIN}\nto be replaced\n{report.END}\nafter\n", encoding="utf-8")
        answer = subprocess.run(
            [sys.executable, "-B", HERE / "bench.py", "--tiny", "--repeat", "1", "--programs",
             PROGRAMS, "--only", "limit,submissions,lifecycles,sqlite", "--json", folder / "o.json",
             "--markdown", marked], check=False, stdin=subprocess.DEVNULL, capture_output=True,
            text=True)
        lib.equal(answer.returncode, 0, answer.stderr + answer.stdout)
        document = json.loads((folder / "o.json").read_text(encoding="utf-8"))
        found = {(f["row"], f["subject"]) for f in document["figures"]}
        lib.check(ROWS_WANTED <= found, f"no figures of {ROWS_WANTED - found}")
        for figure in document["figures"]:
            lib.check(0 <= figure["min"] <= figure["median"] <= figure["max"], figure)
        lib.equal(document["not_measured"], [], "what was not measured")
        lib.equal(len(document["goals"]), len(goals.GOALS), "goals")
        page = marked.read_text(encoding="utf-8")
        lib.check(page.startswith("before\n") and page.endswith("after\n"), page)
        lib.check("to be replaced" not in page and answer.stdout in page, page)


def a_run_that_is_ended_leaves_what_it_has_measured():
    with lib.Workspace() as folder:
        written = folder / "o.json"
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-B", HERE / "bench.py", "--tiny", "--repeat", "1", "--programs",
                 PROGRAMS, "--only", "limit,sqlite", "--json", written],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            lib.wait_until(written.exists, 120, "the first section is written")
        finally:
            process.terminate()
            status = process.wait(60)
        lib.equal(status, 128 + signal.SIGTERM, "exit status")
        found = {(f["row"], f["subject"])
                 for f in json.loads(written.read_text(encoding="utf-8"))["figures"]}
        lib.check(("batch", LIMIT) in found, found)


def goals_compare_by_pairs():
    figures = Figures()
    for own, bare in ((10, 10), (30, 20), (50, 100)):
        figures.add("batch", NODE, own)
        figures.add("batch", LIMIT, bare)
    for peer, value in (("slow", 4), ("quick", 10)):
        figures.add("single", peer, value)
    figures.add("single", NODE, 60)
    for pending, memory in ((10, 50), (1000, 71)):
        figures.add("pending_memory", f"{NODE}, {pending} pending", memory)
    judged = {goal["goal"]: goal for goal in goals.judge(figures)}
    batch = judged["batch submission ÷ limit, one session"]
    lib.equal((batch["min"], batch["value"], batch["max"]), (0.5, 1.0, 1.5), "ratios of the pairs")
    lib.equal(batch["reached"], True, "reached")
    best = judged["single submissions ÷ the best peer's single enqueues"]
    lib.equal((best["beside"], best["value"]), ("quick", 6.0), "the best peer")
    memory = judged["memory of the node with the most pending − with the fewest"]
    lib.equal((memory["value"], memory["reached"]), (21.0, False), "memory")
    lib.equal(judged["CPU of the node per lifecycle"]["reached"], None, "what was not measured")


def a_run_is_made_in_parts():
    """What was measured before stands beside what is measured now, and never in its place."""
    before, now = Figures(), Figures()
    before.add("batch", NODE, 1)
    before.add("aged", NODE, 2)
    before.notes.update(fsync={"old": 1}, profile="theirs")
    before.miss("cluster", NODE, "no etcd")
    now.add("batch", NODE, 3)
    now.notes.update(fsync={"new": 2})
    now.take_over(json.loads(json.dumps(before.document())))
    lib.equal((now.get("batch", NODE), now.get("aged", NODE)), ([3.0], [2.0]), "figures")
    lib.equal(now.missing, {("cluster", NODE): "no etcd"}, "what is missing")
    lib.equal(now.notes, {"fsync": {"old": 1, "new": 2}, "profile": "theirs"}, "notes")


def plots_are_well_formed():
    figures = Figures()
    lib.equal((plots.pending(figures), plots.lateness(figures)), (None, None), "plots of nothing")
    for n in (10_000, 1_000_000):
        figures.add("pending", f"{NODE}, {n:,} pending", 12_345)
    for row in ("late_p50", "late_p99", "late_p999", "late_max"):
        figures.add(row, "a <peer> & more", 50)
    figures.notes["histograms"] = {NODE: [[-1, 3], [0, 90], [7, 6], [2000, 1]]}
    for svg in (plots.pending(figures), plots.lateness(figures)):
        root = ElementTree.fromstring(svg)
        width, height = float(root.get("width")), float(root.get("height"))
        lines = [e for e in root.iter() if e.tag.endswith("polyline")]
        lib.check(lines, "lines")
        for line in lines:
            for point in line.get("points").split():
                x, y = map(float, point.split(","))
                lib.check(0 <= x <= width and 0 <= y <= height, f"{point} lies outside")
    lib.equal(plots.quantiles([[1, 1], [5, 3]]), [(1, 0), (1, 0.25), (5, 0.25), (5, 1)], "quantiles")


PEER_RUN = """#!/bin/sh
case $1 in
drain) echo "nothing to drain" >&2; exit 1 ;;
lateness) echo '{"measure":"lateness","p50_ms":1,"p99_ms":2,"p999_ms":3,"max_ms":4}' ;;
burst*) echo '{"measure":"burst","all_ms":7}' ;;
*) echo "{\\"measure\\":\\"$1\\",\\"n\\":$2,\\"per_second\\":$2}" ;;
esac
"""


def a_peer_is_measured_by_its_programs():
    with lib.Workspace() as folder:
        place = folder / "toy"
        place.mkdir()
        for name, text in (("run", PEER_RUN), ("setup", "#!/bin/sh\ntouch \"$PEER_HOME/made\"\n")):
            (place / name).write_text(text, encoding="utf-8")
            (place / name).chmod(0o755)
        broken = folder / "broken"
        broken.mkdir()
        (broken / "setup").write_text("#!/bin/sh\necho no such registry; exit 1\n", encoding="utf-8")
        (broken / "setup").chmod(0o755)
        figures = Figures()
        plan = Plan(None, figures, folder, TINY, 1, None)
        peers = [peerset.Peer(place, folder / "home"), peerset.Peer(broken, folder / "home")]
        lib.equal(peerset.prepare(plan, peers, install=False), [], "what is installed at first")
        lib.equal(figures.missing, {}, "what could not be measured")
        lib.equal(report.absent_peers(figures), ["toy", "broken"], "what is not installed")
        ready = peerset.prepare(plan, peers, install=True)
        lib.equal([peer.name for peer in ready], ["toy"], "what can be installed")
        lib.check((folder / "home" / "toy" / "made").exists(), "PEER_HOME was not told")
        lib.equal(figures.missing[("lifecycle", "broken")], "setup failed: no such registry", "why")
        lib.equal(len(peerset.prepare(plan, peers[:1], install=False)), 1, "it is installed now")
        plan.by_turns("toy", [m for _, m in peerset.measurements(plan, ready[0])], repeat=2)
        lib.equal(figures.get("batch", "toy"), [float(TINY.peer)] * 2, "enqueue_batch")
        lib.equal(figures.get("late_p999", "toy"), [3.0, 3.0], "lateness")
        lib.equal(figures.get("burst_http", "toy"), [7.0, 7.0], "burst")
        lib.equal(report.absent_peers(figures), ["broken"], "a peer with figures is there")
        lib.equal(figures.missing[("drain", "toy")], "nothing to drain", "what failed")
        lib.equal(plan.failed, False, "a peer's failure is no failure of the run")


def the_receiver_answers_for_one_and_for_many():
    process, url = Programs(PROGRAMS).receiver()
    port = int(url.split(":")[2].split("/")[0])
    connection = http.client.HTTPConnection(HOST, port, timeout=10)

    def post(body):
        connection.request("POST", "/jobflow/run", body, {"content-length": str(len(body))})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    with contextlib.closing(connection):
        ids = [f"{n:032x}" for n in (1, 2)]
        tasks = ",".join(f'{{"traceId":"{trace_id}","payload":null}}' for trace_id in ids)
        lib.equal(post('{"orderId":"1"}'), (200, {}), "one")
        lib.equal(post(f'{{"tasks":[{tasks}]}}'),
                  (200, {"results": [{"traceId": i, "success": True} for i in ids]}), "many")
    process.terminate()
    lib.equal(process.wait(10), 0, "its exit status")


def a_slow_disk_is_slow():
    with lib.Workspace() as folder:
        script = ("import os, sys, time\nfd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
                  "for sync in (os.fsync, os.fdatasync):\n"
                  "    began = time.monotonic(); sync(fd); print(time.monotonic() - began)\n")
        answer = subprocess.run(
            [sys.executable, "-c", script, folder / "file"], check=True, capture_output=True,
            text=True, env={**os.environ, "LD_PRELOAD": str(Programs(PROGRAMS).slowsync),
                            "SLOWSYNC_US": "30000"})
        for seconds in map(float, answer.stdout.split()):
            lib.check(seconds >= 0.03, f"a sync took {seconds} s")


if __name__ == "__main__":
    lib.run(lib.cases_of([a_run_measures_all_rows_and_writes_them,
                          a_run_that_is_ended_leaves_what_it_has_measured,
                          goals_compare_by_pairs, a_run_is_made_in_parts, plots_are_well_formed,
                          a_peer_is_measured_by_its_programs,
                          the_receiver_answers_for_one_and_for_many, a_slow_disk_is_slow]))
