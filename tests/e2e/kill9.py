#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any time: kill9.py sqlite|postgres|mysql [TASKS [KILLS]].

Clients submit while the node is killed and started again; a client that gets no answer repeats with
the same bizUuid, as users are told to. In the end every task that was answered with 2xx has been
delivered, none early, and no attempt twice.
"""

import collections
import http.client
import random
import sys
import threading
import time

import lib
from lib import check, diagnose, equal, parse_time, wait_until

N_CLIENTS = 8
SERVICE = "shop"


class Chaos:
    def __init__(self, kind, folder, n_tasks, n_kills):
        self.random = random.Random(n_tasks * 1000 + n_kills)
        self.n_tasks = n_tasks
        self.n_kills = n_kills
        self.kills = 0
        self.accepted = {}  # trace id → record
        self.repeats = 0
        self.errors = []
        self.lock = threading.Lock()
        self.store = lib.STORES[kind](folder)
        # Long enough for a kill to fall into it.
        self.receiver = lib.Receiver(lambda delivery: time.sleep(random.random() * 0.03))
        self.node = lib.Node(folder, self.store.url).start()
        self.node.register(SERVICE, self.receiver.url)

    def close(self):
        self.node.close()
        self.receiver.close()
        self.store.close()

    def submit(self, client, biz_uuid, delay_ms):
        """Repeats until it is answered. A refusal is the test's fault or the node's."""
        end = time.monotonic() + 60
        body = {"bizUuid": biz_uuid, "serviceName": SERVICE, "handler": "h",
                "delay": f"{delay_ms}ms", "payload": {"key": biz_uuid}}
        while True:
            try:
                answer = client.post("/api/delay-tasks", body)
            except (OSError, http.client.HTTPException):
                answer = None
            if answer and answer.status in (200, 201):
                return answer.body
            check(not answer or answer.status == 503, f"{biz_uuid}: {answer}")
            check(time.monotonic() < end, f"{biz_uuid} was not answered for a minute")
            with self.lock:
                self.repeats += 1
            time.sleep(0.02)

    def client(self, number):
        client = lib.Client(self.node.port, timeout=10)
        rng = random.Random(number)
        try:
            for n in range(number, self.n_tasks, N_CLIENTS):
                # Never ahead of the kills, so that they spread over the whole run.
                wait_until(lambda n=n: n <= (self.kills + 1) * self.n_tasks // self.n_kills, 120,
                           "the next kill")
                record = self.submit(client, f"kill-{n}", rng.randrange(0, 1500))
                with self.lock:
                    self.accepted[record["traceId"]] = record
        except Exception as error:  # pylint: disable=broad-except
            self.errors.append(error)
        finally:
            client.close()

    def run(self):
        threads = [threading.Thread(target=self.client, args=(n,)) for n in range(N_CLIENTS)]
        for thread in threads:
            thread.start()
        while self.kills < self.n_kills and not self.errors:
            quota = (self.kills + 1) * self.n_tasks // self.n_kills
            kill_at = quota - self.random.randrange(1, self.n_tasks // self.n_kills)
            wait_until(lambda at=kill_at: len(self.accepted) >= at or self.errors, 120,
                       "submissions go on")
            self.node.kill9()
            self.node.start(ready=False)
            self.kills += 1
        for thread in threads:
            thread.join()
        check(not self.errors, f"a client failed: {self.errors}")

    def n_live(self):
        return int(self.store.query("SELECT count(*) FROM job_delay_task")[0][0])


def everything_is_submitted(c):
    c.run()
    equal((len(c.accepted), c.kills), (c.n_tasks, c.n_kills), "tasks accepted, kills")


def everything_is_delivered(c):
    wait_until(lambda: c.n_live() == 0, 120, "no task is live any more")
    delivered = {d.trace for d in c.receiver.deliveries}
    missing = set(c.accepted) - delivered
    check(not missing, f"{len(missing)} tasks were lost: {sorted(missing)[:5]}")
    check(not delivered - set(c.accepted), "something was delivered that nobody knows of")


def every_record_is_success(c):
    rows = dict(c.store.query("SELECT status, count(*) FROM job_delay_task_history GROUP BY status"))
    equal(rows, {"SUCCESS": str(c.n_tasks)}, "history")


def nothing_is_early(c):
    early = [(d.trace, d.at_ms - parse_time(c.accepted[d.trace]["executeTime"]))
             for d in c.receiver.deliveries
             if d.at_ms < parse_time(c.accepted[d.trace]["executeTime"])]
    check(not early, f"early: {early[:5]}")


def no_attempt_is_delivered_twice(c):
    counts = collections.Counter((d.trace, d.attempt) for d in c.receiver.deliveries)
    twice = {k: n for k, n in counts.items() if n > 1}
    check(not twice, f"delivered twice: {list(twice.items())[:5]}")


def extra_attempts_have_a_cause(c):
    """Each attempt but the last of a task stands in job_attempt with what became of it."""
    causes = dict(c.store.query("SELECT outcome, count(*) FROM job_attempt GROUP BY outcome"))
    attempts = int(c.store.query("SELECT sum(attempt) FROM job_delay_task_history")[0][0])
    extra = attempts - c.n_tasks
    diagnose(f"{c.n_tasks} tasks, {c.n_kills} kills, {c.repeats} submissions repeated; "
             f"{attempts} attempts, {c.receiver.count()} deliveries; "
             f"{extra} extra attempts by cause: {causes}")
    equal(sum(int(n) for n in causes.values()), extra, "extra attempts that have a cause")
    check(set(causes) <= {"ghost"}, f"attempts failed for another reason than a kill: {causes}")


def main():
    n_tasks = int(sys.argv[2]) if len(sys.argv) > 2 else 5000
    n_kills = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    with lib.Workspace() as folder:
        chaos = Chaos(sys.argv[1], folder, n_tasks, n_kills)
        try:
            lib.run(lib.cases_of([everything_is_submitted, everything_is_delivered,
                                  every_record_is_success, nothing_is_early,
                                  no_attempt_is_delivered_twice, extra_attempts_have_a_cause],
                                 chaos))
        finally:
            chaos.close()


if __name__ == "__main__":
    main()
