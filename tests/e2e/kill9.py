#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the node at any time: kill9.py sqlite|postgres|mysql [TASKS [KILLS]].

Clients submit while the node is killed and started again; a client that gets no answer repeats with
the same bizUuid, as users are told to. In the end every task that was answered with 2xx has been
delivered, none early, and no attempt twice. dbkill.py does the same to the database.
"""

import random
import sys
import threading
import time

import lib
from ledger import Ledger
from lib import check, diagnose, equal, wait_until

N_CLIENTS = 8
SERVICE = "shop"


class Chaos:
    """A run; `strike` is what is done to it again and again."""

    ENV = {}

    def __init__(self, kind, folder, n_tasks, n_kills):
        self.random = random.Random(n_tasks * 1000 + n_kills)
        self.n_tasks = n_tasks
        self.n_kills = n_kills
        self.kills = 0
        self.errors = []
        self.store = lib.STORES[kind](folder)
        # Long enough for a kill to fall into it.
        self.receiver = lib.Receiver(lambda delivery: time.sleep(random.random() * 0.03))
        self.ledger = Ledger(self.store, self.receiver, SERVICE)
        self.node = lib.Node(folder, self.store.url, self.ENV).start()
        self.node.register(SERVICE, self.receiver.url)

    def close(self):
        self.node.close()
        self.receiver.close()
        self.store.close()

    def strike(self):
        self.node.kill9()
        self.node.start(ready=False)

    def client(self, number):
        client = lib.Client(self.node.port, timeout=10)
        rng = random.Random(number)
        try:
            for n in range(number, self.n_tasks, N_CLIENTS):
                # Never ahead of the kills, so that they spread over the whole run.
                wait_until(lambda n=n: n <= (self.kills + 1) * self.n_tasks // self.n_kills, 120,
                           "the next kill")
                self.ledger.submit(client, f"kill-{n}", delay=f"{rng.randrange(0, 1500)}ms",
                                   payload={"key": f"kill-{n}"})
        except Exception as error:  # pylint: disable=broad-except
            self.errors.append(error)
        finally:
            client.close()

    def run(self):
        threads = [threading.Thread(target=self.client, args=(n,)) for n in range(N_CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            while self.kills < self.n_kills and not self.errors:
                quota = (self.kills + 1) * self.n_tasks // self.n_kills
                kill_at = quota - self.random.randrange(1, self.n_tasks // self.n_kills)
                wait_until(lambda at=kill_at: len(self.ledger.accepted) >= at or self.errors, 120,
                           "submissions go on")
                self.strike()
                self.kills += 1
        finally:
            for thread in threads:
                thread.join()
        check(not self.errors, f"a client failed: {self.errors}")


def everything_is_submitted(c):
    c.run()
    equal((len(c.ledger.accepted), c.kills), (c.n_tasks, c.n_kills), "tasks accepted, kills")


def everything_is_delivered(c):
    c.ledger.wait_ended()
    c.ledger.nothing_is_lost()


def every_key_is_success_once(c):
    c.ledger.each_is_success_once()


def nothing_is_early(c):
    c.ledger.nothing_is_early()


def no_attempt_is_delivered_twice(c):
    c.ledger.no_attempt_is_delivered_twice()


def extra_attempts_have_a_cause(c):
    """Each attempt but the last of a task stands in job_attempt with what became of it."""
    causes = c.ledger.causes()
    attempts = c.ledger.n_attempts()
    extra = attempts - c.n_tasks
    diagnose(f"{c.n_tasks} tasks, {c.n_kills} kills, {c.ledger.repeats} submissions repeated; "
             f"{attempts} attempts, {c.receiver.count()} deliveries; "
             f"{extra} extra attempts by cause: {causes}")
    equal(sum(causes.values()), extra, "extra attempts that have a cause")
    check(set(causes) <= {"ghost"}, f"attempts failed for another reason than a kill: {causes}")


CASES = [everything_is_submitted, everything_is_delivered, every_key_is_success_once,
         nothing_is_early, no_attempt_is_delivered_twice, extra_attempts_have_a_cause]


def main(chaos_class, cases, n_kills):
    n_tasks = int(sys.argv[2]) if len(sys.argv) > 2 else 5000
    n_kills = int(sys.argv[3]) if len(sys.argv) > 3 else n_kills
    lib.main(chaos_class, cases, n_tasks, n_kills)


if __name__ == "__main__":
    main(Chaos, CASES, 20)
