#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Members of a cluster: members.py postgres|mysql.

Three nodes, one etcd, one database; what a person sees of them, and how near tasks get to their owner.
"""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys

import lib
from lib import check, equal, now_ms, stays, wait_until
from proxy import Proxy

sys.path.insert(0, str(lib.ROOT / "tests" / "chaos"))
from cluster import Etcd  # noqa: E402  pylint: disable=wrong-import-position,import-error

TTL_S = 2
NAMES = ("node-a", "node-b", "node-c")
PAUSES = 4
REFRESH_MS = 5000    # between a node's own looks at the services
SERVICES = [f"svc-{i}" for i in range(12)]
ENV = {"JOBFLOW_CLUSTER_TTL": f"{TTL_S}s", "JOBFLOW_CLUSTER_SECRET": "a secret of this test only",
       # Far apart: what comes sooner came by a hint.
       "JOBFLOW_SCHEDULER_SCAN_INTERVAL": "2s", "JOBFLOW_SCHEDULER_LOOKAHEAD": "5s"}


class Stage:
    def __init__(self, kind, folder):
        self.folder = folder
        self.store = lib.STORES[kind](folder)
        self.etcd = Etcd(folder, 1).start()
        self.endpoint = f"http://{lib.HOST}:{self.etcd.ports[0]}"
        self.receiver = lib.Receiver()
        self.nodes = {name: self.node(name).start() for name in NAMES}
        for service in SERVICES:
            self.nodes["node-a"].register(service, self.receiver.url)
        self.settle(NAMES)

    def node(self, name, **env):
        return lib.Node(self.folder, self.store.url,
                        {**ENV, "JOBFLOW_CLUSTER_ETCD": self.endpoint, **env}, name)

    def view(self, name, service=None):
        return self.nodes[name].client.get(
            "/api/cluster" + (f"?service={service}" if service else "")).body

    def owner(self, name, service):
        services = self.view(name, service).get("services")
        return services[0]["owners"][0] if services else None

    def active(self, name):
        return sorted(m["name"] for m in self.view(name)["members"] if m["state"] == "active")

    def settle(self, names, services=True):
        """Until all these see exactly themselves, and know all services."""
        for name in names:
            wait_until(lambda n=name: self.active(n) == sorted(names), 30, f"{name} sees {names}")
            if services:
                wait_until(lambda n=name: len(self.view(n)["services"]) >= len(SERVICES), 30,
                           f"{name} knows all services")

    def foreign(self, name):
        """A service that another node owns."""
        return next(s for s in SERVICES if self.owner(name, s) not in (None, name))

    def close(self):
        for node in self.nodes.values():
            node.close()
        self.receiver.close()
        self.etcd.close()
        self.store.close()


def all_agree_on_the_owners(stage):
    owners = {service: {stage.owner(name, service) for name in NAMES} for service in SERVICES}
    check(all(len(o) == 1 and None not in o for o in owners.values()), f"they differ: {owners}")
    check(len({next(iter(o)) for o in owners.values()}) == 3, f"one owns nothing: {owners}")
    for name in NAMES:
        members = {m["name"]: m["ownedShards"] for m in stage.view(name)["members"]}
        equal(sum(members.values()), len(SERVICES), f"shards owned, as {name} sees it")
        equal(stage.view(name)["source"], "etcd", "source")
        wait_until(lambda n=name, m=members: m[n] == int(
            stage.nodes[n].metrics()["jobflow_owned_shards"]), 20, f"{name} counts the same itself")


def etcdctl(stage, *args):
    return subprocess.run(["etcdctl", "--endpoints", stage.endpoint, *args],
                          env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True,
                          check=True, timeout=30).stdout


def etcd_51_etcdctl_reads_well(stage):
    text = etcdctl(stage, "get", "--prefix", "/jobflow/").splitlines()
    equal(text[0::2], [f"/jobflow/default/nodes/{name}" for name in NAMES], "keys")
    for name, line in zip(NAMES, text[1::2]):
        check(f'"name":"{name}"' in line and '"state":"active"' in line and '"epoch":' in line, line)


def lateness(stage, name, service, tag, count=40):
    """Of near tasks submitted to one node, in ascending order."""
    node = stage.nodes[name]
    late = []
    for i in range(count):
        task = node.submit(f"{tag}-{i}", service, delay=0.15)
        wanted = lib.parse_time(task["executeTime"])
        delivery = wait_until(lambda t=task: stage.receiver.of(t["traceId"]), 20, "the delivery")[0]
        check(delivery.at_ms >= wanted, f"{tag}-{i} is {wanted - delivery.at_ms} ms early")
        late.append(delivery.at_ms - wanted)
    return sorted(late)


def near_tasks_reach_their_owner_at_once(stage):
    service = stage.foreign("node-a")
    owner = stage.owner("node-a", service)
    own = lateness(stage, owner, service, "own")
    other = lateness(stage, "node-a", service, "other")
    lib.diagnose(f"late through the owner: median {own[20]} ms, most {own[-1]} ms; through another "
                 f"node: median {other[20]} ms, most {other[-1]} ms")
    # Without hints a task waits for the owner's next scan, half of 2 s on average.
    check(other[20] <= own[20] + 100, "through another node they come later")


def a_wrong_secret_only_costs_time(stage):
    other = stage.node("node-d", JOBFLOW_CLUSTER_SECRET="not the secret of the others").start()
    stage.nodes["node-d"] = other
    try:
        wait_until(lambda: "node-d" in stage.active("node-d") and len(stage.active("node-d")) == 4, 30,
                   "node-d sees all")
        wait_until(lambda: len(stage.view("node-d")["services"]) >= len(SERVICES), 30, "services")
        service = stage.foreign("node-d")
        task = other.submit("wrong-secret", service, delay=0.3)
        wait_until(lambda: stage.receiver.of(task["traceId"]), 20, "the delivery, by a scan")
        check(other.metrics()["jobflow_hints_failed_total"] >= 1, "the hint was taken")
        wait_until(lambda: any(n.events("cluster.refused") for n in stage.nodes.values()), 20,
                   "the owner says so")
    finally:
        other.close()
        del stage.nodes["node-d"]
    stage.settle(NAMES)


def a_second_process_of_a_name_waits(stage):
    second = stage.node("node-b")
    second.start(ready=False)
    wait_until(lambda: second.events("cluster.name_taken"), 20, "it says so")
    stays(lambda: second.client.get("/readyz").status == 503, TTL_S + 1, "the second one is ready")
    check(stage.nodes["node-b"].process.poll() is None, "the first one ended")
    first = stage.nodes["node-b"]
    first.kill9()
    wait_until(second.is_ready, 20, "the second one takes the name over")
    stage.nodes["node-b"] = second
    stage.settle(NAMES)


def drain_and_resume(stage):
    node = stage.nodes["node-c"]
    mine = [s for s in SERVICES if stage.owner("node-c", s) == "node-c"]
    equal(node.client.post("/api/cluster/drain").status, 202, "drain")
    for name in NAMES:
        wait_until(lambda n=name: stage.active(n) == ["node-a", "node-b"], 20, f"{name} hears of it")
    wait_until(lambda: node.metrics()["jobflow_owned_shards"] == 0, 20, "it owns nothing")
    task = node.submit("while-drained", mine[0], delay=0.2)  # it still takes tasks
    wait_until(lambda: stage.receiver.of(task["traceId"]), 20, "the delivery, by another node")
    claimed_by = stage.nodes["node-a"].wait_status("while-drained", "SUCCESS").get("claimedBy", "")
    check(not claimed_by.startswith("node-c/"), f"the drained node claimed it: {claimed_by}")
    equal(node.client.post("/api/cluster/resume").status, 202, "resume")
    stage.settle(NAMES)
    equal([s for s in SERVICES if stage.owner("node-c", s) == "node-c"], mine, "what it owns again")


def no_space(stage, action):
    """etcd is read and kept alive, and takes no writes, as when its quota is used up."""
    stage.etcd.ask(0, "/v3/maintenance/alarm", {"action": action, "alarm": "NOSPACE"})


def a_drain_that_etcd_does_not_hear(stage):
    node = stage.nodes["node-c"]
    mine = [s for s in SERVICES if stage.owner("node-a", s) == "node-c"]

    def count(event):
        return len(node.events(event))

    down, up = count("etcd.down"), count("etcd.up")
    no_space(stage, "ACTIVATE")
    try:
        equal(node.client.post("/api/cluster/drain").status, 202, "drain")
        for name in ("node-a", "node-b"):
            wait_until(lambda n=name: stage.active(n) == ["node-a", "node-b"], 20, f"{name} hears of it")
            equal(stage.view(name)["source"], "etcd", f"what {name} goes by")
            check(stage.owner(name, mine[0]) in ("node-a", "node-b"), f"{name} hands on what it owned")
        task = node.submit("unheard", mine[0], delay=0.2)
        wait_until(lambda: stage.receiver.of(task["traceId"]), 20, "the delivery, by another node")
        check('"state":"active"' in etcdctl(stage, "get", "/jobflow/default/nodes/node-c"),
              "etcd did hear of it")
        # Readings and keep-alives work all the time: they do not end the trouble of writing.
        wait_until(lambda: count("etcd.down") > down, 20, "node-c says so")
        stays(lambda: (count("etcd.down"), count("etcd.up")) == (down + 1, up), 2 * TTL_S, "one line")
    finally:
        no_space(stage, "DEACTIVATE")
    wait_until(lambda: count("etcd.up") > up, 20, "node-c says that it is over")
    equal(node.client.post("/api/cluster/resume").status, 202, "resume")
    stage.settle(NAMES)
    equal((count("etcd.down"), count("etcd.up")), (down + 1, up + 1), "lines about etcd")


def member(name, state):
    return (f'{{"name":"{name}","address":"{name}:80","state":"{state}","epoch":1,"version":"1.0",'
            '"hashVersion":1,"startedAt":"2026-01-01T00:00:00.000Z"}')


def a_key_left_by_hand_owns_nothing(stage):
    etcdctl(stage, "put", "/jobflow/default/nodes/ghost", member("ghost", "active"))
    try:
        for name in NAMES:
            wait_until(lambda n=name: any("nodes/ghost: left out" in e["msg"]
                                          for e in stage.nodes[n].events("cluster.bad_key")),
                       20, f"{name} says so")
            stays(lambda n=name: stage.active(n) == sorted(NAMES), 1, f"the members of {name}")
    finally:
        etcdctl(stage, "del", "/jobflow/default/nodes/ghost")
    key = "/jobflow/default/nodes/node-a"
    etcdctl(stage, "put", key, member("node-a", "active").replace('"epoch":1', '"epoch":999'))
    wait_until(lambda: '"epoch":999' not in etcdctl(stage, "get", key), 20, "node-a takes its key back")
    wait_until(lambda: '"lease"' in etcdctl(stage, "get", "-w", "json", key), 20, "under a lease")
    stage.settle(NAMES)


def more_members_than_there_is_room_for(stage):
    lease = etcdctl(stage, "lease", "grant", "60").split()[1]
    names = [f"zz-{i:03}" for i in range(260)]
    for i in range(0, len(names), 100):
        stage.etcd.ask(0, "/v3/kv/txn", {"success": [{"request_put": {
            "key": base64.b64encode(f"/jobflow/default/nodes/{name}".encode()).decode(),
            "value": base64.b64encode(member(name, "joining").encode()).decode(),
            "lease": str(int(lease, 16))}} for name in names[i:i + 100]]})
    for name in NAMES:
        said = wait_until(lambda n=name: stage.nodes[n].events("cluster.too_many"), 20, f"{name} says so")
        equal((said[0]["level"], said[0]["most"]), ("error", 256), "the line")
        equal(len(stage.view(name)["members"]), 256, f"members that {name} shows")
        stays(lambda n=name: stage.active(n) == sorted(NAMES) and
              len(stage.nodes[n].events("cluster.too_many")) == 1, TTL_S, f"{name} says it once")
    etcdctl(stage, "lease", "revoke", lease)
    stage.settle(NAMES)


def explain_names_the_owner(stage):
    service = stage.foreign("node-a")
    owner = stage.owner("node-a", service)
    stage.nodes["node-a"].submit("explained", service, delay="1h")
    for name in NAMES:
        answer = stage.nodes[name].client.get("/api/delay-tasks/explained/explain").body
        equal((answer["owner"], answer["gate"]), (owner, "time"), f"explained by {name}")


def a_pause_reaches_all_nodes_at_once(stage):
    """Each reads the services every 5 s by itself: without being told, a change takes 3 s or so."""
    service = stage.foreign("node-a")
    stage.nodes["node-a"].submit("paused", service, delay="1h")
    started = now_ms()
    for verb, gate in (("pause", "paused"), ("resume", "time")) * PAUSES:
        equal(stage.nodes["node-a"].client.post(f"/api/services/{service}/{verb}").status, 200, verb)
        for name in NAMES:
            client = stage.nodes[name].client
            wait_until(lambda c=client, g=gate:
                       c.get("/api/delay-tasks/paused/explain").body["gate"] == g,
                       20, f"{name} knows of the {verb}")
    took = now_ms() - started
    lib.diagnose(f"{2 * PAUSES} changes were known everywhere after {took} ms")
    check(took < 2 * PAUSES * REFRESH_MS / 4, f"that took {took} ms")


def burst(stage, tag, count=60):
    """Tasks of all services, due within the next two seconds."""
    return [stage.nodes["node-a"].submit(f"{tag}-{i}", SERVICES[i % len(SERVICES)],
                                         delay=0.1 + 1.9 * i / count) for i in range(count)]


def all_delivered_once(stage, tasks):
    wait_until(lambda: all(stage.receiver.of(t["traceId"]) for t in tasks), 30, "all are delivered")
    twice = [t["traceId"] for t in tasks
             if len({d.attempt for d in stage.receiver.of(t["traceId"])})
             != len(stage.receiver.of(t["traceId"]))]
    equal(twice, [], "tasks of which an attempt was delivered twice")


def lease_of(stage, name):
    kvs = json.loads(etcdctl(stage, "get", "-w", "json", f"/jobflow/default/nodes/{name}")).get("kvs")
    return kvs[0].get("lease", 0) if kvs else None


def etcd_46_a_live_node_loses_its_key(stage):
    lease = lease_of(stage, "node-b")
    tasks = burst(stage, "etcd-46")
    etcdctl(stage, "lease", "revoke", f"{lease:x}")
    wait_until(lambda: lease_of(stage, "node-b") not in (None, lease), 20, "it registers again")
    check(stage.nodes["node-b"].events("cluster.lost"), "it does not say so")
    stage.settle(NAMES)
    all_delivered_once(stage, tasks)


def etcd_47_a_compacted_watch(stage):
    node = stage.nodes["node-a"]
    node.process.send_signal(signal.SIGSTOP)  # its watch cannot go on before the history is gone
    try:
        stage.etcd.kill9()
        stage.etcd.start()
        stage.etcd.compact()
    finally:
        node.process.send_signal(signal.SIGCONT)
    stage.settle(NAMES)
    equal(stage.nodes["node-c"].client.post("/api/cluster/drain").status, 202, "drain")
    wait_until(lambda: stage.active("node-a") == ["node-a", "node-b"], 20, "node-a hears of changes")
    equal(stage.nodes["node-c"].client.post("/api/cluster/resume").status, 202, "resume")
    stage.settle(NAMES)


def etcd_49_a_silent_etcd(stage):
    etcd = stage.etcd.processes[0]
    etcd.send_signal(signal.SIGSTOP)
    try:
        tasks = burst(stage, "etcd-49")
        for name in NAMES:
            wait_until(lambda n=name: stage.view(n)["source"] == "rows", TTL_S * 5, f"{name} goes by rows")
            equal(stage.nodes[name].client.get("/readyz").status, 200, f"/readyz of {name}")
        all_delivered_once(stage, tasks)
    finally:
        etcd.send_signal(signal.SIGCONT)
    for name in NAMES:
        wait_until(lambda n=name: stage.view(n)["source"] == "etcd", 30, f"{name} goes by etcd again")
    stage.settle(NAMES)


def a_lost_etcd_hands_over_to_the_rows(stage):
    service = stage.foreign("node-a")
    stage.etcd.kill9()
    for name in NAMES:
        wait_until(lambda n=name: stage.view(n)["source"] == "rows", TTL_S * 5, f"{name} goes by rows")
        wait_until(lambda n=name: stage.active(n) == sorted(NAMES), 20, f"{name} sees all")
    task = stage.nodes["node-a"].submit("without-etcd", service, delay=0.2)
    wait_until(lambda: stage.receiver.of(task["traceId"]), 20, "the delivery without etcd")
    stage.etcd.start()
    for name in NAMES:
        wait_until(lambda n=name: stage.view(n)["source"] == "etcd", 30, f"{name} goes by etcd again")
    stage.settle(NAMES)


def a_node_cut_off_from_the_database_is_taken_over_from(stage):
    with contextlib.closing(Proxy(stage.store.port)) as proxy:
        url = stage.store.url.replace(f":{stage.store.port}/", f":{proxy.port}/")
        node = lib.Node(stage.folder, url, {**ENV, "JOBFLOW_CLUSTER_ETCD": stage.endpoint}, "node-e")
        stage.nodes["node-e"] = node.start()
        try:
            wait_until(lambda: stage.active("node-a") == sorted([*NAMES, "node-e"]), 30, "it joins")
            mine = wait_until(lambda: [s for s in SERVICES if stage.owner("node-a", s) == "node-e"],
                              30, "it owns something")
            proxy.refuse()
            proxy.cut()
            wait_until(lambda: stage.owner("node-a", mine[0]) not in (None, "node-e"), TTL_S * 10,
                       "another node takes over")
            task = stage.nodes["node-a"].submit("cut-off", mine[0], delay=0.2)
            wait_until(lambda: stage.receiver.of(task["traceId"]), 20, "the delivery")
            proxy.heal()
            wait_until(lambda: stage.owner("node-a", mine[0]) == "node-e", 30, "it owns again")
        finally:
            node.close()
            del stage.nodes["node-e"]
    stage.settle(NAMES)


def sigterm_leaves_at_once(stage):
    node = stage.nodes["node-c"]
    started = now_ms()
    node.process.send_signal(signal.SIGTERM)
    for name in ("node-a", "node-b"):
        wait_until(lambda n=name: stage.active(n) == ["node-a", "node-b"], 20, f"{name} hears of it")
    lib.diagnose(f"the others know after {now_ms() - started} ms; the lease would last {TTL_S} s")
    equal(node.process.wait(30), 0, "exit status")
    node.process = None
    keys = etcdctl(stage, "get", "--prefix", "--keys-only", "/jobflow/")
    check("node-c" not in keys, f"its key still stands: {keys}")


CASES = (
    all_agree_on_the_owners,
    etcd_51_etcdctl_reads_well,
    near_tasks_reach_their_owner_at_once,
    a_wrong_secret_only_costs_time,
    a_second_process_of_a_name_waits,
    drain_and_resume,
    a_drain_that_etcd_does_not_hear,
    a_key_left_by_hand_owns_nothing,
    more_members_than_there_is_room_for,
    explain_names_the_owner,
    a_pause_reaches_all_nodes_at_once,
    etcd_46_a_live_node_loses_its_key,
    etcd_47_a_compacted_watch,
    etcd_49_a_silent_etcd,
    a_lost_etcd_hands_over_to_the_rows,
    a_node_cut_off_from_the_database_is_taken_over_from,
    sigterm_leaves_at_once,
)


if __name__ == "__main__":
    lib.main(Stage, CASES)
