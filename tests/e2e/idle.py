#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the node costs when it has nothing to do, and the claims' updates: idle.py sqlite|postgres.

The bounds are the product's own promise: under 20 MB and under 1 % of one core with 100,000 tasks that
lie far ahead; on PostgreSQL at least 95 % of the claims are HOT updates.
"""

import sys
import time

import lib
from lib import check, diagnose, equal, now_ms, wait_until

N_FAR = 100_000
BATCH = 1000
N_BURST = 5000
MEMORY_MAX = 20_000_000
CPU_MAX = 0.01
CPU_SECONDS = 10


class Stage:
    def __init__(self, kind, folder):
        self.kind = kind
        self.store = lib.STORES[kind](folder)
        self.receiver = lib.Receiver()
        self.node = lib.Node(folder, self.store.url, quick=False).start()
        self.node.register("shop", self.receiver.url)

    def close(self):
        self.node.close()
        self.receiver.close()
        self.store.close()

    def submit_batches(self, prefix, n, execute_time):
        for start in range(0, n, BATCH):
            tasks = [{"bizUuid": f"{prefix}-{i}", "serviceName": "shop", "handler": "h",
                      "executeTime": execute_time + i, "payload": {"orderId": i}}
                     for i in range(start, min(start + BATCH, n))]
            answer = self.node.client.post("/api/delay-tasks/batch", {"tasks": tasks})
            equal(answer.status, 200, answer.body)
            wrong = [r for r in answer.body["results"] if r["status"] != 201]
            check(not wrong, f"refused: {wrong[:3]}")


def far_off_tasks_are_stored(s):
    s.submit_batches("far", N_FAR, now_ms() + 24 * 3600 * 1000)
    rows = s.store.query("SELECT count(*) FROM job_delay_task")
    equal(rows, [(str(N_FAR),)], "stored")


def memory_is_bounded(s):
    used = lib.memory_bytes(s.node.process.pid)
    diagnose(f"{used / 1e6:.1f} MB resident with {N_FAR} far-off tasks")
    check(used < MEMORY_MAX, f"{used} bytes resident, {MEMORY_MAX} allowed")


def an_idle_node_takes_no_time(s):
    pid = s.node.process.pid
    before = lib.cpu_seconds(pid)
    started = time.monotonic()
    time.sleep(CPU_SECONDS)
    share = (lib.cpu_seconds(pid) - before) / (time.monotonic() - started)
    diagnose(f"{share:.2%} of one core")
    check(share < CPU_MAX, f"{share:.2%} of one core, {CPU_MAX:.0%} allowed")


def update_counts(s):
    row, = s.store.query("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "
                         "WHERE relname = 'job_delay_task'")
    return int(row[0]), int(row[1])


def claims_are_hot_updates(s):
    before = update_counts(s)
    s.submit_batches("burst", N_BURST, now_ms())
    wait_until(lambda: s.store.query("SELECT count(*) FROM job_delay_task_history") ==
               [(str(N_BURST),)], 60, "the burst is done")

    def counted():
        updates, hot = update_counts(s)
        updates, hot = updates - before[0], hot - before[1]
        return (updates, hot) if updates >= N_BURST else None

    updates, hot = wait_until(counted, 30, "the statistics are there")
    diagnose(f"{hot} of {updates} updates were HOT: {hot / updates:.1%}")
    check(hot >= 0.95 * updates, f"only {hot} of {updates} updates were HOT")


CASES = [far_off_tasks_are_stored, memory_is_bounded, an_idle_node_takes_no_time]
POSTGRES = [claims_are_hot_updates]


if __name__ == "__main__":
    lib.main(Stage, CASES + POSTGRES if sys.argv[1] == "postgres" else CASES)
