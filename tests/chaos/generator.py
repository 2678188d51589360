#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The clients of a chaos run, as a process of their own: generator.py ORDER, a file of JSON with
`seed`, `tasks`, `seconds`, `ports`, `services`, `log`.

They submit through all nodes, singly and in batches, at times that the seed sets; some tasks twice,
some are cancelled or moved while they wait. Whoever gets no answer, or 503, repeats the same at
another node, as users are told to.

The log has one JSON array a line:

    ["sub", key, service, handler, sent, answered, status, trace, executeTime, wanted, hash,
     maxRetry]                  `wanted` is [earliest, latest] of what executeTime may be
    ["cancel", key, sent, answered, status, attempt]
    ["move", key, sent, answered, status, newTime]
    ["lost", text]              a request that nobody answered in a minute, or a wrong answer
"""

import http.client
import json
import random
import sys
import threading
import time

import cluster  # pylint: disable=unused-import  # it finds lib
import lib
from lib import now_ms
from receiver import hash_of

N_CLIENTS = 6
PATIENCE = 60
BATCH = (10, 30)
MAX_DELAY = 20_000
TAIL = 2_000        # nothing is due later than this after the end
CHANGE_AHEAD = 3_000
DOOMED_RETRIES = 2
HANDLERS = ["ok"] * 70 + ["slow"] * 12 + ["first"] * 8 + ["later"] * 8 + ["doomed"] * 2


class Wrong(Exception):
    pass


class Client:
    def __init__(self, order, number, log):
        self.rng = random.Random(f"{order['seed']}/{number}")
        self.number = number
        self.log = log
        self.services = order["services"]
        self.clients = [lib.Client(port, timeout=4) for port in order["ports"]]
        self.n_tasks = order["tasks"] // N_CLIENTS + (number < order["tasks"] % N_CLIENTS)
        self.begin = time.monotonic()
        self.end = self.begin + order["seconds"]
        self.later = []  # (time, what), sorted
        self.n = 0

    def note(self, *fields):
        self.log.write(json.dumps(fields) + "\n")

    # ---- Asking

    def insist(self, method, path, body=None):
        """(sent, answered, answer): of the first time it was sent, and the definite answer."""
        sent = now_ms()
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            client = self.rng.choice(self.clients)
            try:
                answer = client.request(method, path, body)
            except (OSError, http.client.HTTPException):
                continue
            if answer.status < 500:
                return sent, now_ms(), answer
            if answer.status != 503:
                raise Wrong(f"{method} {path}: {answer}")
            time.sleep(0.05)
        raise Wrong(f"{method} {path}: no answer for {PATIENCE} s")

    # ---- Tasks

    def left_ms(self):
        """Until nothing may be due any more; at least 1."""
        return max(1, int((self.end - time.monotonic()) * 1000) + TAIL)

    def delay_ms(self):
        most = min(MAX_DELAY, self.left_ms())
        return self.rng.choice([0, self.rng.randrange(min(1000, most)), self.rng.randrange(most),
                                self.rng.randrange(most)])

    def task(self):
        self.n += 1
        key = f"c{self.number}-{self.n}"
        handler = self.rng.choice(HANDLERS)
        task = {"bizUuid": key, "serviceName": self.rng.choice(self.services), "handler": handler,
                "delay": f"{self.delay_ms()}ms", "payload": {"key": key, "n": self.n}}
        if handler == "doomed":
            task["maxRetry"] = DOOMED_RETRIES
        return task

    def batch(self, size):
        """Some are tasks of one service that are all due at the same time."""
        tasks = [self.task() for _ in range(size)]
        if self.rng.random() < 0.4:
            due = now_ms() + self.rng.randrange(min(MAX_DELAY, self.left_ms()))
            for task in tasks:
                del task["delay"]
                task.update(serviceName=tasks[0]["serviceName"], executeTime=due)
        return tasks

    def note_task(self, task, sent, answered, status, record):
        if status not in (200, 201):
            raise Wrong(f"{task}: {status} {record}")
        self.note("sub", task["bizUuid"], task["serviceName"], task["handler"], sent, answered,
                  status, record["traceId"], lib.parse_time(record["executeTime"]),
                  self.wanted(task, sent, answered), hash_of(task["payload"]),
                  record["maxRetry"])

    @staticmethod
    def wanted(task, sent, answered):
        if "executeTime" in task:  # or the time of the submission, if that is later
            return [task["executeTime"], max(task["executeTime"], answered)]
        delay = int(task["delay"][:-2])
        return [sent + delay, answered + delay]

    def submit(self, task):
        sent, answered, answer = self.insist("POST", "/api/delay-tasks", task)
        self.note_task(task, sent, answered, answer.status, answer.body)

    def submit_batch(self, tasks):
        until = time.monotonic() + PATIENCE
        first = None
        while tasks:
            sent, answered, answer = self.insist("POST", "/api/delay-tasks/batch", {"tasks": tasks})
            first = first or sent
            if answer.status != 200:
                raise Wrong(f"a batch: {answer}")
            again = []
            for task, result in zip(tasks, answer.body["results"]):
                if result["status"] == 503:
                    again.append(task)
                else:
                    self.note_task(task, first, answered, result["status"], result.get("task"))
            tasks = again
            if tasks and time.monotonic() > until:
                raise Wrong(f"{len(tasks)} tasks of a batch: no answer for {PATIENCE} s")

    def cancel(self, key):
        sent, answered, answer = self.insist("DELETE", f"/api/delay-tasks/{key}")
        if answer.status not in (200, 409):
            raise Wrong(f"cancelling {key}: {answer}")
        self.note("cancel", key, sent, answered, answer.status, answer.body.get("attempt"))

    def move(self, key):
        new = now_ms() + self.rng.randrange(min(MAX_DELAY // 2, self.left_ms()))
        sent, answered, answer = self.insist("PATCH", f"/api/delay-tasks/{key}",
                                             {"executeTime": new})
        if answer.status not in (200, 409):
            raise Wrong(f"moving {key}: {answer}")
        self.note("move", key, sent, answered, answer.status, new)

    # ---- The day

    def plan_changes(self, task):
        """Some tasks that wait long enough are cancelled or moved, and some are sent again."""
        delay = task["executeTime"] - now_ms() if "executeTime" in task else int(task["delay"][:-2])
        now = time.monotonic()
        dice = self.rng.random()
        if dice < 0.04:
            self.later.append((now + self.rng.random() * 5, lambda: self.submit(task)))
        elif delay >= CHANGE_AHEAD and dice < 0.12:
            change = self.cancel if dice < 0.08 else self.move
            at = now + self.rng.random() * delay / 1000
            self.later.append((at, lambda: change(task["bizUuid"])))
        self.later.sort(key=lambda entry: entry[0])

    def do_later(self, until):
        """What has been put off, as it falls due before the given time."""
        while self.later and self.later[0][0] <= until:
            at, what = self.later.pop(0)
            time.sleep(max(0, at - time.monotonic()))
            what()
        time.sleep(max(0, until - time.monotonic()))

    def run(self):
        sizes = []
        while sum(sizes) < self.n_tasks:
            size = self.rng.randint(*BATCH) if self.rng.random() < 0.05 else 1
            sizes.append(min(size, self.n_tasks - sum(sizes)))
        try:
            for n, size in enumerate(sizes):
                self.do_later(self.begin + (self.end - self.begin) * n / len(sizes))
                tasks = self.batch(size) if size > 1 else [self.task()]
                if size == 1:
                    self.submit(tasks[0])
                else:
                    self.submit_batch(tasks)
                for task in tasks:
                    self.plan_changes(task)
            self.do_later(self.end)
            while self.later:
                self.later.pop(0)[1]()
        except Exception as error:  # pylint: disable=broad-except
            self.note("lost", repr(error))


def main():
    lib.LIBC.prctl(lib.PR_SET_PDEATHSIG, 9)
    with open(sys.argv[1], encoding="ascii") as file:
        order = json.load(file)
    with open(order["log"], "w", encoding="ascii", buffering=1) as log:
        clients = [Client(order, number, log) for number in range(N_CLIENTS)]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
