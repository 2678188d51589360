#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many services: scale.py postgres|mysql [TASKS [SECONDS]].

2,000 services, which come one by one, with tasks that fall due over some seconds, on three nodes:
each node scans only what it owns, with one statement for 256 lanes, and everything is delivered by
its owner. Prints the statements per second and node.
"""

import concurrent.futures
import contextlib
import math
import random
import re
import sys
import time

from cluster import HOST, Cluster, Services, pause

import lib
from lib import check, diagnose, equal, parse_time, wait_until

N_SERVICES = 2000
LANES_A_SCAN = 256
LANES_A_SHARD = 2      # of the usual priority: first attempts and retries
SCAN_SECONDS = 1
MEASURED = 8           # seconds
BATCH = 1000
START = 5              # seconds ahead, for the submission itself
SERVICE = re.compile(rb"svc-\d+")
KINDS = ("submit", "claim", "finish", "scan", "call")
ENV = {
    "JOBFLOW_SCHEDULER_SCAN_INTERVAL": f"{SCAN_SECONDS}s",
    "JOBFLOW_SCHEDULER_FULL_READ": "60s",
    # Whoever is slow here has the whole of the machine against him.
    "JOBFLOW_DELIVERY_TIMEOUT": "20s",
    # A receiver in Python for all: it does not get faster by more connections.
    "JOBFLOW_DELIVERY_MAX_IN_FLIGHT": "256",
    "JOBFLOW_CLUSTER_TTL": "6s",
}


class Stage:
    def __init__(self, kind, folder, n_tasks, seconds):
        self.n_tasks = n_tasks
        self.seconds = seconds
        self.rng = random.Random(n_tasks)
        port = lib.free_port()
        self.receiver = Services(folder, port, [])
        # Not through a proxy: this much is too much for one.
        url = f"http://{HOST}:{port}/nodes/{{service}}"
        self.cluster = Cluster(kind, folder, port,
                               env={**ENV, "JOBFLOW_DELIVERY_URL_TEMPLATE": url})
        self.accepted = {}
        self.clients = [lib.Client(node.port) for node in self.cluster.nodes]

    def close(self):
        self.cluster.close()
        self.receiver.close()

    def submit(self, n, tasks):
        client = self.clients[n % len(self.clients)]
        answer = client.post("/api/delay-tasks/batch", {"tasks": tasks})
        equal(answer.status, 200, "status of a batch")
        for result in answer.body["results"]:
            equal(result["status"], 201, f"status in a batch: {result}")
            task = result["task"]
            self.accepted[task["traceId"]] = parse_time(task["executeTime"])

    def submit_all(self, n_tasks, delay_ms, prefix):
        for begin in range(0, n_tasks, BATCH):
            self.submit(begin // BATCH, [
                {"bizUuid": f"{prefix}-{n}", "serviceName": f"svc-{n % N_SERVICES}", "handler": "h",
                 "delay": f"{delay_ms()}ms"} for n in range(begin, min(begin + BATCH, n_tasks))])

    def shards(self):
        """Name → shards that it owns, as all nodes see it; None while they do not agree."""
        views = [{m["name"]: m["ownedShards"] for m in (self.cluster.view(n) or {"members": []})[
            "members"]} for n in self.cluster.nodes]
        return views[0] if views[1:] == views[:1] * 2 and sum(views[0].values()) == N_SERVICES \
            else None

    def left(self):
        return int(self.cluster.store.query("SELECT count(*) FROM job_delay_task")[0][0])


def batches(metrics, kind):
    return metrics[f'jobflow_store_batches_total{{kind="{kind}"}}']


def all_services_are_known(s):
    def some(number):
        for n in range(number, N_SERVICES, len(s.cluster.nodes)):
            s.cluster.nodes[number].submit(f"warm-{n}", f"svc-{n}", "warm")

    with concurrent.futures.ThreadPoolExecutor() as threads:
        list(threads.map(some, range(len(s.cluster.nodes))))
    shards = wait_until(s.shards, 30, "all nodes know and own all services")
    diagnose(shards)
    check(min(shards.values()) > N_SERVICES / 3 * 0.8, "one node owns much less than its part")
    wait_until(lambda: s.left() == 0, 60, "the first tasks are done")


def each_node_scans_what_it_owns(s):
    """As the database hears it."""
    names = {node.name: set() for node in s.cluster.nodes}
    for node in s.cluster.nodes:
        node.db.tap = lambda text, name=node.name: names[name].update(SERVICE.findall(text))
    pause(3 * SCAN_SECONDS)
    for node in s.cluster.nodes:
        node.db.tap = None
    shards = s.shards()
    equal({name: len(found) for name, found in names.items()}, shards, "services that are scanned")
    equal(len(set().union(*names.values())), N_SERVICES, "services that somebody scans")


def a_scan_reads_many_lanes(s):
    """While tasks fall due. One more round is allowed, for the edges of the measurement."""
    s.submit_all(s.n_tasks, lambda: START * 1000 + s.rng.randrange(s.seconds * 1000), "task")
    lanes = {name: n * LANES_A_SHARD for name, n in s.shards().items()}
    begin = time.monotonic()
    before = {node.name: node.metrics() for node in s.cluster.nodes}
    pause(MEASURED)
    after = {node.name: node.metrics() for node in s.cluster.nodes}
    seconds = time.monotonic() - begin
    rounds = seconds / SCAN_SECONDS + 1
    equal(s.shards(), {name: n // LANES_A_SHARD for name, n in lanes.items()}, "shards, afterwards")
    wrong = {}
    for name, n in lanes.items():
        made = {kind: batches(after[name], kind) - batches(before[name], kind) for kind in KINDS}
        diagnose(f"{name}: {n} lanes; statements a second: " +
                 ", ".join(f"{kind} {made[kind] / seconds:.1f}" for kind in KINDS))
        if made["scan"] > math.ceil(n / LANES_A_SCAN) * rounds:
            wrong[name] = made["scan"]
    equal(wrong, {}, f"more scans than {rounds:.1f} rounds need")


def every_task_is_delivered_by_its_owner(s):
    try:
        wait_until(lambda: s.left() == 0, s.seconds + 90, "all is done")
    except AssertionError:
        diagnose(s.cluster.store.query(
            "SELECT status, attempt, retry_count, claimed_by, count(*), min(next_attempt_time), "
            "max(next_attempt_time) FROM job_delay_task GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC LIMIT 20"))
        raise
    finally:
        failed = s.cluster.store.query("SELECT outcome, coalesce(error, ''), count(*) FROM "
                                       "job_attempt GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 5")
        diagnose(f"attempts that failed: {failed}")
    s.receiver.end()
    first = {}
    for r in s.receiver.requests():
        if r.handler == "h":
            check((r.trace, r.attempt) not in first, f"{r.trace} came twice")
            first[(r.trace, r.attempt)] = r
    equal({trace for trace, _ in first}, set(s.accepted), "tasks delivered")
    late = sorted(r.at - s.accepted[r.trace] for r in first.values() if r.attempt == 1)
    diagnose(f"{len(late)} tasks, late by p50 {late[len(late) // 2]}, p99 "
             f"{late[len(late) * 99 // 100]}, max {late[-1]} ms")
    check(late[0] >= 0, f"early by {-late[0]} ms")
    claimers = {}
    for service, claimed_by in s.cluster.store.query(
            "SELECT DISTINCT service_name, claimed_by FROM job_delay_task_history "
            "WHERE biz_uuid LIKE 'task-%'"):
        claimers.setdefault(service, set()).add(claimed_by.split("/")[0])
    foreign = []
    for service, names in claimers.items():
        answer = s.clients[0].get(f"/api/cluster?service={service}")
        owner = answer.body["services"][0]["owners"]
        if set(owner) != names:
            foreign.append((service, owner, names))
    equal(foreign, [], "services whose tasks others than the owner claimed")


CASES = [all_services_are_known, each_node_scans_what_it_owns, a_scan_reads_many_lanes,
         every_task_is_delivered_by_its_owner]


def main():
    n_tasks = int(sys.argv[2]) if len(sys.argv) > 2 else 20_000
    seconds = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    with lib.Workspace() as folder, \
            contextlib.closing(Stage(sys.argv[1], folder, n_tasks, seconds)) as stage:
        lib.run(lib.cases_of(CASES, stage))


if __name__ == "__main__":
    main()
