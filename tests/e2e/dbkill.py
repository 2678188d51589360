#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the whole database at any time: dbkill.py postgres|mysql [TASKS [KILLS]].

The same run as kill9.py, and the node is never started again.
"""

import kill9
from lib import check, equal


class DatabaseChaos(kill9.Chaos):
    # A claim whose answer comes late is given back, unless there is time left to send it.
    ENV = {"JOBFLOW_SCHEDULER_GHOST_MARGIN": "30s"}

    def __init__(self, *args):
        super().__init__(*args)
        self.process = self.node.process

    def strike(self):
        self.store.kill9()
        self.store.start()


def the_node_was_never_started_again(c):
    equal(c.process.poll(), None, "exit status of the node")
    check(c.node.events("store.up"), "the log says that the database is back")


def no_attempt_was_used_up(c):
    """An answer that got lost says nothing about the claim: it holds, and its attempt goes on."""
    equal((c.ledger.n_attempts(), c.receiver.count()), (c.n_tasks, c.n_tasks),
          "attempts, deliveries")


CASES = [*kill9.CASES, the_node_was_never_started_again, no_attempt_was_used_up]


if __name__ == "__main__":
    kill9.main(DatabaseChaos, CASES, 10)
