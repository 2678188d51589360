#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who works for whom: foreign.py postgres|mysql.

Tasks that are old under a healthy owner are nobody else's business; without etcd work goes on; a
service gets more shards while it runs. In the end every task was claimed by the node that
GET /api/cluster names as the owner of its shard.
"""

import contextlib
import sys
import time

from cluster import Cluster, pause

import lib
from lib import check, diagnose, equal, parse_time, wait_until
from load import Load

TTL = 3
N_BACKLOG = 300
N_SLOW = 40
SLOW = 0.3           # seconds of each, two at a time: the backlog outlives any TTL
NEIGHBOURS_MS = 100
SCAN_MS = 200 + 500  # the interval of scans, and their time on a busy machine


class Stage:
    def __init__(self, kind, folder):
        self.handlers = lib.Handlers()
        self.receiver = lib.Receiver(self.handlers)
        self.cluster = Cluster(kind, folder, self.receiver.port,
                               env={"JOBFLOW_CLUSTER_TTL": f"{TTL}s"})
        self.node = self.cluster.nodes[0]
        self.loads = []

    def close(self):
        for load in self.loads:
            load.stop.set()
        self.cluster.close()
        self.receiver.close()

    @contextlib.contextmanager
    def load(self, name, **more):
        """While the body runs."""
        load = Load(self.cluster, self.receiver, name, **more)
        self.loads.append(load)
        try:
            yield load
        finally:
            load.end()

    def submit_many(self, service, handler, n):
        answer = self.node.client.post("/api/delay-tasks/batch", {"tasks": [
            {"bizUuid": f"{service}-{i}", "serviceName": service, "handler": handler}
            for i in range(n)]})
        equal({r["status"] for r in answer.body["results"]}, {201}, "statuses")

    def owner(self, service):
        owners = [self.cluster.view(n, service)["services"][0]["owners"]
                  for n in self.cluster.nodes]
        equal(owners[1:], owners[:1] * 2, f"owners of {service} by each node")
        return owners[0]

    def claims(self):
        """(service, shard, node) of all tasks that were ever claimed → number."""
        counts = {}
        for table in ("job_delay_task", "job_delay_task_history"):
            for service, shard, claimed_by, n in self.cluster.store.query(
                    f"SELECT service_name, shard, claimed_by, count(*) FROM {table} "
                    "WHERE attempt > 0 GROUP BY 1, 2, 3"):
                key = (service, int(shard), claimed_by.split("/")[0])
                counts[key] = counts.get(key, 0) + int(n)
        return counts

    def count(self, where):
        return int(self.cluster.store.query(
            f"SELECT count(*) FROM job_delay_task WHERE {where}")[0][0])


def the_backlog_of_a_paused_service_is_left_alone(s):
    s.node.register("paused", f"{s.receiver.url}/x/paused")
    equal(s.node.client.post("/api/services/paused/pause").status, 200, "status of pause")
    s.node.submit("paused", "paused", "paused", delay="1h")

    def is_known(node):
        why = node.client.get("/api/delay-tasks/paused/explain").body
        return why.get("gate") == "paused"

    wait_until(lambda: all(map(is_known, s.cluster.nodes)), 20, "all nodes know of the pause")
    equal(s.node.client.delete("/api/delay-tasks/paused").status, 200, "status of cancelling it")
    s.submit_many("paused", "paused", N_BACKLOG)
    lib.stays(lambda: s.count("service_name = 'paused' AND attempt > 0") == 0, 2 * TTL,
              "nobody claims tasks of a paused service")
    equal(s.node.client.post("/api/services/paused/resume").status, 200, "status of resume")
    wait_until(lambda: s.count("service_name = 'paused'") == 0, 30, "all are done")
    equal(len(s.receiver.to("paused")), N_BACKLOG, "deliveries")


def a_full_backlog_slows_nobody_else(s):
    """G10: it delays the tasks of its owner's other services by 100 ms at most."""
    with s.load("alone") as alone:
        pause(5)
    alone.wait_delivered()
    s.handlers.set("slow", lambda delivery: time.sleep(SLOW))
    s.node.register("slow", f"{s.receiver.url}/x/slow", concurrency=2)
    s.submit_many("slow", "slow", N_SLOW)
    with s.load("amid") as amid:
        pause(5)
        check(s.count("service_name = 'slow'") > 5, "the backlog is gone too soon")
    amid.wait_delivered()
    wait_until(lambda: s.count("service_name = 'slow'") == 0, 30, "the backlog is done")
    equal(len(s.receiver.to("slow")), N_SLOW, "deliveries of the slow ones")
    before, after = alone.lateness(), amid.lateness()
    diagnose(f"without: {before}")
    diagnose(f"with: {after}")
    check(after.p99 <= before.p99 + NEIGHBOURS_MS + after.stall,
          f"p99 went from {before.p99} to {after.p99} ms")


def without_etcd_tasks_still_fire(s):
    with s.load("hole") as load:
        pause(2)
        s.cluster.etcd.kill9()
        wait_until(lambda: all((s.cluster.view(n) or {}).get("source") == "rows"
                               for n in s.cluster.nodes), 20, "the rows decide")
        pause(TTL)
        s.cluster.etcd.start()
        wait_until(lambda: all((s.cluster.view(n) or {}).get("source") == "etcd"
                               for n in s.cluster.nodes), 20, "etcd decides again")
        pause(2)
    load.wait_delivered()
    late = load.lateness()
    diagnose(late)
    check(late.most <= TTL * 1000 + SCAN_MS + late.stall, f"late by {late.most} ms")
    load.ledger.no_attempt_is_delivered_twice()


def a_node_without_its_database_gives_up_what_it_owns(s):
    """etcd says that it lives: that alone must not keep its tasks from the others."""
    cut = s.cluster.nodes[1]
    names = [f"cut-{n}" for n in range(12)]
    for name in names:
        s.node.submit(f"first-{name}", name, "first")
    wait_until(lambda: all(s.cluster.shards(name, n) for name in names for n in s.cluster.nodes),
               20, "all nodes know the services")
    owned = [name for name in names if s.owner(name) == [cut.name]]
    check(owned, "the node owns none of the services")
    cut.db.hole()
    try:
        begin = time.monotonic()
        for name in owned:
            s.node.submit(f"second-{name}", name, "cut")
        wait_until(lambda: len(s.receiver.to("cut")) == len(owned), 60, "others do its work")
        took = time.monotonic() - begin
    finally:
        cut.db.heal()
        s.cluster.wait_all_active(30)
    diagnose(f"{len(owned)} tasks of the node that was cut off were out after {took:.1f} s")
    check(took <= 2 * TTL + 2, f"others did its work after {took:.1f} s only")


def a_wrong_clock_moves_no_task(s):
    """A node that starts asks the database for the time before it reckons with any."""
    node = s.cluster.nodes[2]
    s.node.submit("clock", "clock", "h", delay="1h")
    equal(node.terminate(), 0, "exit status")
    node.set_clock("+2h")
    node.db.delay_ms = 200  # the database answers, and takes its time
    n_up = len(node.events("store.up"))
    node.start(ready=False)
    wait_until(lambda: len(node.events("store.up")) > n_up, 20, "the database answers")

    def moved():
        answer = node.client.patch("/api/delay-tasks/clock", {"delay": "10m"})
        if answer.status == 503:
            return False
        off = abs(parse_time(answer.body["executeTime"]) - lib.now_ms() - 600_000)
        check(off < 5000, f"moved to a time that is {off} ms off")
        return True

    wait_until(moved, 20, "the node knows the time")
    node.db.delay_ms = 0
    wait_until(node.is_ready, 30, "the node is ready")
    equal(node.client.delete("/api/delay-tasks/clock").status, 200, "status of cancelling it")
    s.cluster.wait_all_active(30)


def shards_are_added_while_it_runs(s):
    s.node.register("hot", f"{s.receiver.url}/x/hot")
    with s.load("hot", services=["hot"]) as load:
        wait_until(lambda: len(s.receiver.to("hot")) > 20, 20, "tasks flow")
        s.node.register("hot", f"{s.receiver.url}/x/hot", shards=8)
        wait_until(lambda: all(s.cluster.shards("hot", n) == 8 for n in s.cluster.nodes), 20,
                   "all nodes know of 8 shards")
        n_before = len(s.receiver.to("hot"))
        wait_until(lambda: len(s.receiver.to("hot")) > n_before + 150, 30, "tasks flow on")
    load.wait_delivered()
    load.ledger.no_attempt_is_delivered_twice()
    equal(len(s.receiver.to("hot")), len(load.ledger.accepted), "deliveries")
    late = load.lateness()
    diagnose(late)
    check(len({shard for service, shard, _ in s.claims() if service == "hot"}) == 8,
          "tasks went to all shards")


def every_claim_was_its_owners(s):
    wait_until(lambda: s.count("1 = 1") == 0, 30, "all is done")
    foreign = {key: n for key, n in s.claims().items()
               if not key[0].startswith("cut-") and s.owner(key[0])[key[1]] != key[2]}
    diagnose(f"{sum(s.claims().values())} tasks, claimed by others than their owner: {foreign}")
    equal(foreign, {}, "claims by others than the owner")
    equal(s.cluster.store.query("SELECT count(*) FROM job_attempt"), [("0",)], "failed attempts")


CASES = [
    the_backlog_of_a_paused_service_is_left_alone,
    a_full_backlog_slows_nobody_else,
    without_etcd_tasks_still_fire,
    a_node_without_its_database_gives_up_what_it_owns,
    a_wrong_clock_moves_no_task,
    shards_are_added_while_it_runs,
    every_claim_was_its_owners,
]


def main():
    with lib.Workspace() as folder, contextlib.closing(Stage(sys.argv[1], folder)) as stage:
        lib.run(lib.cases_of(CASES, stage))


if __name__ == "__main__":
    main()
