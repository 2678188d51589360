# SPDX-License-Identifier: Apache-2.0
"""A steady load on a cluster, and how late its tasks were."""

import collections
import contextlib
import http.client
import threading
import time

import lib
from ledger import Ledger
from lib import check, parse_time, wait_until

SERVICES = [f"svc-{n}" for n in range(12)]
PACE = 0.02          # seconds between two tasks
AHEAD = 1500         # milliseconds
NO_ANSWER = (OSError, http.client.HTTPException)


class Lateness(collections.namedtuple("Lateness", "n p50 p99 most stall")):
    """Milliseconds; `stall` is for how long the machine itself stood still at most."""

    def __str__(self):
        return (f"{self.n} tasks, late by p50 {self.p50}, p99 {self.p99}, max {self.most} ms; the "
                f"machine stood still for {self.stall} ms at most")


class Load:
    """Tasks that fall due one after another, submitted through whichever node answers."""

    def __init__(self, cluster, receiver, name, services=SERVICES):
        self.cluster = cluster
        self.receiver = receiver
        self.name = name
        self.services = services
        self.ledger = Ledger(cluster.store, receiver, None)
        self.stop = threading.Event()
        self.errors = []
        self.waits = []  # milliseconds for which this machine kept a sleeping thread waiting
        self.threads = [threading.Thread(target=work) for work in (self.submit, self.watch)]
        for thread in self.threads:
            thread.start()

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        check(not self.errors, f"the load failed: {self.errors}")

    def submit(self):
        try:
            n = 0
            while not self.stop.is_set():
                n += 1
                self.one(n)
                time.sleep(PACE)
        except Exception as error:  # pylint: disable=broad-except
            self.errors.append(error)

    def one(self, n):
        task = {"bizUuid": f"{self.name}-{n}", "serviceName": self.services[n % len(self.services)],
                "handler": self.name, "delay": f"{AHEAD}ms"}
        end = time.monotonic() + 30
        while True:
            client = lib.Client(self.cluster.nodes[n % len(self.cluster.nodes)].port, timeout=5)
            with contextlib.closing(client), contextlib.suppress(*NO_ANSWER):
                answer = client.post("/api/delay-tasks", task)
                if answer.status in (200, 201):
                    self.ledger.enter(answer.body)
                    return
                check(answer.status == 503, f"{task}: {answer}")
            check(time.monotonic() < end, f"{task} was not answered")
            n += 1  # at the next node

    def watch(self):
        while not self.stop.is_set():
            before = time.monotonic()
            time.sleep(0.02)
            self.waits.append((time.monotonic() - before - 0.02) * 1000)

    def wait_delivered(self, seconds=60):
        """All that this load has submitted; other tasks may be about."""
        wait_until(lambda: set(self.ledger.accepted) <=
                   {d.trace for d in self.receiver.to(self.name)},
                   seconds, f"all of {self.name} is delivered")

    def lateness(self):
        """Of the first delivery of each task."""
        first = {}
        for delivery in self.receiver.to(self.name):
            first.setdefault(delivery.trace, delivery.at_ms)
        late = sorted(at - parse_time(self.ledger.accepted[trace]["executeTime"])
                      for trace, at in first.items())
        return Lateness(len(late), late[len(late) // 2], late[len(late) * 99 // 100], late[-1],
                        int(max(self.waits)))
