#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wrong clocks and zones that change: clocks.py sqlite|postgres|mysql.

On SQLite the node's clock is the store's: nodes live through the nights in which their host's zone
changes to and from summer time. On a server the database's clock counts, whatever the node's says.
"""

import contextlib
import datetime
import sys

import lib
from lib import check, equal, now_ms, parse_time

sys.path.insert(0, str(lib.ROOT / "tests" / "chaos"))
from cluster import fake_clock  # noqa: E402  pylint: disable=wrong-import-position,import-error

AHEAD_S = 8          # enough for a node to start on a busy machine
BEHIND_S = 90
N_SLOTS = 8
SLOT_MS = 400


class Stage:
    def __init__(self, kind, folder):
        self.kind = kind
        self.folder = folder
        self.store = lib.STORES[kind](folder)
        self.receiver = lib.Receiver()

    @contextlib.contextmanager
    def node(self, name, clock=None, **env):
        """`clock`: seconds that the node's clock is ahead."""
        fake = fake_clock(f"{clock:+d}") if clock else {}
        node = lib.Node(self.folder, self.store.url, {**fake, **env}, name).start()
        try:
            node.register("shop", self.receiver.url)
            yield node
        finally:
            node.close()

    def close(self):
        self.receiver.close()
        self.store.close()


def a_night(s, name, zone, change, soon, later):
    """A host in `zone`, AHEAD_S before `change`. Each of `soon` runs once and not before its time, in
    their order; each of `later` waits."""
    ahead = int(parse_time(change) / 1000 - now_ms() / 1000) - AHEAD_S
    with s.node(name, ahead, TZ=zone) as node:
        tasks = [node.submit(f"{name}-{at}", "shop", executeTime=at) for at in (*soon, *later)]
        for task, at in zip(tasks, (*soon, *later)):
            equal(parse_time(task["executeTime"]),
                  round(datetime.datetime.fromisoformat(at).timestamp() * 1000), at)
        for at in soon:
            equal(node.wait_status(f"{name}-{at}", "SUCCESS")["attempt"], 1, "attempts")
        for at in later:
            equal(node.task(f"{name}-{at}")["status"], "PENDING", f"the task of {at}")
        calls = [s.receiver.of(task["traceId"]) for task in tasks]
        equal([len(c) for c in calls], [1] * len(soon) + [0] * len(later), "calls")
        for task, call in zip(tasks, calls[:len(soon)]):
            sent = parse_time(call[0].envelope()["sentTime"])
            check(sent >= parse_time(task["executeTime"]), f"{task['bizUuid']} was sent early")
        sent = [call[0].at_ms for call in calls[:len(soon)]]
        equal(sent, sorted(sent), "the order")


def clocks_34_nothing_is_skipped_in_the_spring_gap(s):
    """02:30 does not exist on that day; the first instant after the gap does, once."""
    a_night(s, "spring", "America/New_York", "2025-03-09T07:00:00.000Z",
            ["2025-03-09T01:59:59.500-05:00", "2025-03-09T03:00:00.000-04:00",
             "2025-03-09T03:00:00.500-04:00"], ["2025-03-09T04:00:00.000-04:00"])


def clocks_34_nothing_is_doubled_in_the_autumn_overlap(s):
    """01:59:59 comes twice: two instants, an hour apart."""
    a_night(s, "autumn", "America/New_York", "2025-11-02T06:00:00.000Z",
            ["2025-11-02T01:59:59.500-04:00", "2025-11-02T01:00:00.500-05:00"],
            ["2025-11-02T01:59:59.500-05:00"])


def clocks_36_the_hosts_zone_has_no_influence(s):
    """Tasks in UTC were skipped because the host's own zone fell back."""
    a_night(s, "london", "Europe/London", "2022-10-30T01:00:00.000Z",
            ["2022-10-30T00:59:59.500+00:00", "2022-10-30T01:00:00.500+00:00"],
            ["2022-10-30T01:30:00.000+00:00"])


def clocks_38_a_node_that_lags_fires_each_slot_once(s):
    """Whether a slot was due came from the database's clock, the next one from the node's, which was
    behind: so the same slot fired again."""
    with s.node("late", -BEHIND_S) as late, s.node("right") as right:
        tasks = []
        for n in range(N_SLOTS):
            before = now_ms()
            task = (late, right)[n % 2].submit(f"slot-{n}", "shop", delay=f"{(n + 1) * SLOT_MS}ms")
            tasks.append(task)
            off = parse_time(task["executeTime"]) - before - (n + 1) * SLOT_MS
            check(abs(off) < BEHIND_S * 500, f"slot {n} is off by {off} ms")
            repeat = (right, late)[n % 2].submit(
                f"slot-{n}", "shop", wanted=200, executeTime=parse_time(task["executeTime"]))
            equal(repeat["traceId"], task["traceId"], "the slot's task")
        for n, task in enumerate(tasks):
            equal(right.wait_status(f"slot-{n}", "SUCCESS")["attempt"], 1, "attempts")
            calls = s.receiver.of(task["traceId"])
            equal(len(calls), 1, f"runs of slot {n}")
            check(calls[0].at_ms >= parse_time(task["executeTime"]), f"slot {n} was early")
        nodes = {right.task(f"slot-{n}")["claimedBy"].split("/")[0] for n in range(N_SLOTS)}
        lib.diagnose(f"claimed by {sorted(nodes)}")


def clocks_38_a_node_that_lags_retries_in_time(s):
    """The next attempt is reckoned by the database's clock too."""
    answers = iter((500, 200))
    s.receiver.behave = lambda delivery: next(answers)
    with s.node("late", -BEHIND_S) as late:
        task = late.submit("retry", "shop")
        late.wait_status("retry", "SUCCESS")
        first, second = s.receiver.of(task["traceId"])
        check(second.at_ms > first.at_ms, "the retry came first")


NIGHTS = [clocks_34_nothing_is_skipped_in_the_spring_gap,
          clocks_34_nothing_is_doubled_in_the_autumn_overlap,
          clocks_36_the_hosts_zone_has_no_influence]
SERVERS = [clocks_38_a_node_that_lags_fires_each_slot_once,
           clocks_38_a_node_that_lags_retries_in_time]


if __name__ == "__main__":
    lib.main(Stage, NIGHTS if sys.argv[1] == "sqlite" else SERVERS)
