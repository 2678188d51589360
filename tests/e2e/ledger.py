# SPDX-License-Identifier: Apache-2.0
"""The books of a run under faults: what was accepted and what was delivered, and the checks that
hold for every run: nothing lost, nothing early, no attempt twice."""

import collections
import http.client
import threading
import time

import lib
from lib import check, equal, parse_time, wait_until

PATIENCE = 60  # seconds for an answer


class Ledger:
    def __init__(self, store, receiver, service):
        self.store = store
        self.receiver = receiver
        self.service = service
        self.lock = threading.Lock()
        self.accepted = {}  # trace id → record
        self.repeats = 0
        self.slowest = 0  # seconds that any answer took, refusals included

    def insist(self, client, body, path="/api/delay-tasks"):
        """Repeats until it is answered with 2xx, as users are told to. A refusal other than 503 is
        the test's fault or the node's."""
        end = time.monotonic() + PATIENCE
        while True:
            began = time.monotonic()
            try:
                answer = client.post(path, body)
            except (OSError, http.client.HTTPException):
                answer = None
            with self.lock:
                self.slowest = max(self.slowest, time.monotonic() - began)
            if answer and answer.status in (200, 201):
                return answer.body
            check(not answer or answer.status == 503, f"{body}: {answer}")
            check(time.monotonic() < end, f"{body} was not answered for {PATIENCE} s")
            with self.lock:
                self.repeats += 1
            time.sleep(0.02)

    def task(self, biz_uuid, handler="h", **more):
        return {"bizUuid": biz_uuid, "serviceName": self.service, "handler": handler, **more}

    def enter(self, record):
        with self.lock:
            self.accepted[record["traceId"]] = record

    def submit(self, client, biz_uuid, handler="h", **more):
        record = self.insist(client, self.task(biz_uuid, handler, **more))
        self.enter(record)
        return record

    def submit_batch(self, client, tasks):
        """As one request; those of its tasks that get 503 are sent again."""
        end = time.monotonic() + PATIENCE
        while tasks:
            results = self.insist(client, {"tasks": tasks}, "/api/delay-tasks/batch")["results"]
            for result in results:
                check(result["status"] in (200, 201, 503), f"in a batch: {result}")
                if result["status"] != 503:
                    self.enter(result["task"])
            tasks = [t for t, r in zip(tasks, results) if r["status"] == 503]
            check(time.monotonic() < end, f"{tasks} were not answered for {PATIENCE} s")

    # ---- Checks

    def wait_ended(self, seconds=120):
        wait_until(lambda: self.store.query("SELECT count(*) FROM job_delay_task") == [("0",)],
                   seconds, "no task is live any more")

    def nothing_is_lost(self):
        with self.receiver.lock:
            delivered = {d.trace for d in self.receiver.deliveries}
        missing = set(self.accepted) - delivered
        check(not missing, f"{len(missing)} tasks were lost: {sorted(missing)[:5]}")
        check(not delivered - set(self.accepted), "something was delivered that nobody knows of")

    def each_is_success_once(self):
        """Every key stands in history once, under the trace id that its client was told."""
        rows = self.store.query("SELECT biz_uuid, trace_id, status FROM job_delay_task_history")
        equal(len(rows), len(self.accepted), "rows in history")
        equal({(key, trace) for key, trace, _ in rows},
              {(r["bizUuid"], trace) for trace, r in self.accepted.items()}, "keys and trace ids")
        equal({status for _, _, status in rows}, {"SUCCESS"}, "their states")
        equal(self.store.query("SELECT count(*) FROM job_delay_task"), [("0",)], "live rows")

    def nothing_is_early(self):
        early = [(d.trace, d.at_ms - parse_time(self.accepted[d.trace]["executeTime"]))
                 for d in self.receiver.deliveries
                 if d.at_ms < parse_time(self.accepted[d.trace]["executeTime"])]
        check(not early, f"early: {early[:5]}")

    def no_attempt_is_delivered_twice(self):
        counts = collections.Counter((d.trace, d.attempt) for d in self.receiver.deliveries)
        twice = {k: n for k, n in counts.items() if n > 1}
        check(not twice, f"delivered twice: {list(twice.items())[:5]}")

    def all_is_well(self):
        self.wait_ended()
        self.nothing_is_lost()
        self.each_is_success_once()
        self.nothing_is_early()
        self.no_attempt_is_delivered_twice()

    def n_attempts(self):
        return int(self.store.query("SELECT sum(attempt) FROM job_delay_task_history")[0][0] or 0)

    def causes(self):
        """What became of the attempts that were not the last of their tasks."""
        rows = self.store.query("SELECT outcome, count(*) FROM job_attempt GROUP BY outcome")
        return {outcome: int(n) for outcome, n in rows}
