#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rolling restart under load: rolling.py postgres|mysql.

Each of three nodes in turn gets SIGTERM and is started again, while tasks fall due all the time:
none is late by more than a second, and no attempt is wasted.
"""

import contextlib
import sys

from cluster import Cluster

import lib
from lib import check, diagnose, equal, wait_until
from load import PACE, Load

MOST_LATE = 1000     # milliseconds
SETTLED = 2          # seconds between two restarts


class Stage:
    def __init__(self, kind, folder):
        self.receiver = lib.Receiver()
        self.cluster = Cluster(kind, folder, self.receiver.port)
        self.load = None

    def close(self):
        if self.load:
            self.load.stop.set()
        self.cluster.close()
        self.receiver.close()


def three_nodes_restart_one_by_one(s):
    s.load = Load(s.cluster, s.receiver, "roll")
    wait_until(lambda: s.receiver.count() > 100 or s.load.errors, 30, "tasks flow")
    for node in s.cluster.nodes:
        equal(node.terminate(), 0, f"exit status of {node.name}")
        node.start()
        s.cluster.wait_all_active(30)
        before = s.receiver.count()
        wait_until(lambda n=before: s.receiver.count() > n + SETTLED / PACE / 2 or s.load.errors,
                   30, "tasks flow on")
    s.load.end()


def no_task_is_late(s):
    s.load.ledger.wait_ended()
    late = s.load.lateness()
    diagnose(late)
    check(late.most <= MOST_LATE + late.stall, f"late by {late.most} ms")


def no_attempt_is_wasted(s):
    s.load.ledger.nothing_is_lost()
    s.load.ledger.each_is_success_once()
    s.load.ledger.nothing_is_early()
    s.load.ledger.no_attempt_is_delivered_twice()
    equal(s.receiver.count(), len(s.load.ledger.accepted), "deliveries")


CASES = [three_nodes_restart_one_by_one, no_task_is_late, no_attempt_is_wasted]


def main():
    with lib.Workspace() as folder, contextlib.closing(Stage(sys.argv[1], folder)) as stage:
        lib.run(lib.cases_of(CASES, stage))


if __name__ == "__main__":
    main()
