#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Deliveries to the instances of a service: instances.py sqlite|postgres|mysql.

One node serves all cases; each case uses a service of its own.
"""

import contextlib
import itertools
import json
import socket
import threading
import time

import lib
from lib import check, equal, wait_until

SET_ASIDE = 1.5  # seconds


class Beats:
    """Heartbeats of an instance from a thread of its own, until told to stop."""

    def __init__(self, node, service, name, url, ttl):
        self.over = threading.Event()
        self.statuses = []
        self.client = lib.Client(node.port)
        self.body = {"instance": name, "baseUrl": url, "ttl": f"{ttl}s"}
        self.path = f"/api/services/{service}/instances"
        self.period = ttl / 3
        self.beat()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def beat(self):
        self.statuses.append(self.client.post(self.path, self.body).status)

    def run(self):
        while not self.over.wait(self.period):
            self.beat()

    def stop(self):
        self.over.set()
        self.thread.join()
        self.client.close()


class Stage:
    """What the cases share."""

    def __init__(self, kind, folder):
        self.numbers = itertools.count(1)
        self.store = lib.STORES[kind](folder)
        env = {"JOBFLOW_DISPATCH_INSTANCE_SET_ASIDE": f"{SET_ASIDE}s",
               "JOBFLOW_DELIVERY_CONNECT_TIMEOUT": "1500ms"}
        self.node = lib.Node(folder, self.store.url, env).start()
        self.other = lib.Node(folder, self.store.url, env, name="node-b")

    def close(self):
        self.node.close()
        self.store.close()

    def join(self, service, name, url, wanted=201, ttl="10m"):
        answer = self.node.client.post(f"/api/services/{service}/instances",
                                       {"instance": name, "baseUrl": url, "ttl": ttl})
        equal(answer.status, wanted, f"registering {name}: {answer.body}")
        return answer.body

    def leave(self, service, name):
        path = f"/api/services/{service}/instances/{name}"
        equal(self.node.client.delete(path).status, 204, f"{name} leaves")

    def instances(self, service):
        answer = self.node.client.get(f"/api/services/{service}/instances")
        equal(answer.status, 200, "listing")
        return {instance["instance"]: instance for instance in answer.body["instances"]}

    def run_tasks(self, service, n, **more):
        """One after another; each has to succeed. Returns their records."""
        records = []
        for _ in range(n):
            key = f"{service}-{next(self.numbers)}"
            self.node.submit(key, service, **more)
            records.append(self.node.wait_status(key, "SUCCESS"))
        return records


def dead_url():
    """Where nobody listens."""
    return f"http://{lib.HOST}:{lib.free_port()}"


def counts(*receivers):
    return [receiver.count() for receiver in receivers]


def two_instances_are_called_in_turn(s):
    one, two = lib.Receiver(), lib.Receiver()
    s.join("turns", "one", one.url + "/a")
    s.join("turns", "two", two.url + "/b/")
    s.run_tasks("turns", 10)
    equal(counts(one, two), [5, 5], "shares")
    equal({d.path for d in one.deliveries}, {"/a/h"})
    equal({d.path for d in two.deliveries}, {"/b/h"})
    service = s.node.client.get("/api/services/turns").body
    equal((service["baseUrl"], service["name"]), (None, "turns"), "the service")
    one.close()
    two.close()


def a_dead_instance_costs_no_attempt(s):
    one, two = lib.Receiver(), lib.Receiver()
    s.join("dead", "one", one.url)
    s.join("dead", "two", two.url)
    s.run_tasks("dead", 4)
    equal(counts(one, two), [2, 2], "shares")
    two.close()
    before = two.count()
    records = s.run_tasks("dead", 6)
    for task in records:
        equal((task["attempt"], task["retryCount"], task.get("lastError")), (1, 0, None), task)
    equal(two.count(), before, "calls of the dead one")
    full = s.node.task(records[0]["bizUuid"])
    equal(full.get("attempts", []), [], "failed attempts")
    one.close()


def a_dead_instance_is_set_aside_and_comes_back(s):
    one, two = lib.Receiver(), lib.Receiver()
    port = two.port
    s.join("back", "one", one.url)
    s.join("back", "two", two.url)
    two.close()

    s.run_tasks("back", 2)
    instances = s.instances("back")
    until = lib.parse_time(instances["two"]["setAsideUntil"])
    check(until <= lib.now_ms() + SET_ASIDE * 1000, "it is set aside for too long")
    check("setAsideUntil" not in instances["one"], "the living one is set aside")
    equal(len(s.node.events("instance.set_aside", service="back")), 1, "lines in the log")
    two = lib.Receiver(port=port)

    def is_called():
        s.run_tasks("back", 1)
        return two.count()
    wait_until(is_called, 20, "it is called again")
    check(lib.now_ms() >= until, "it is called too early")
    check("setAsideUntil" not in s.instances("back")["two"], "it is set aside still")
    one.close()
    two.close()


def a_failure_after_sending_is_a_failed_attempt(s):
    """Whatever may have reached an instance is not sent to another within the attempt."""
    def reset(delivery):
        raise lib.Reset()
    one, two = lib.Receiver(reset), lib.Receiver(reset)
    s.join("sent", "one", one.url)
    s.join("sent", "two", two.url)
    s.node.submit("sent", "sent", maxRetry=1)
    task = s.node.wait_status("sent", "FAILED")
    equal((task["attempt"], sum(counts(one, two))), (2, 2), "attempts and calls")
    equal(len({d.attempt for d in one.deliveries + two.deliveries}), 2, "numbers of attempts")
    check(not any("setAsideUntil" in i for i in s.instances("sent").values()), "set aside")
    one.close()
    two.close()


def without_any_connection_the_attempt_fails(s):
    for i in range(3):
        s.join("none", f"i{i}", dead_url())
    s.node.submit("none", "none", maxRetry=1)
    task = s.node.wait_status("none", "FAILED")
    equal((task["attempt"], task["retryCount"]), (2, 1), "counted attempts")
    for attempt in task["attempts"]:
        check("no instance could be connected to, 3 tried" in attempt["error"], attempt)
    equal({attempt["attempt"] for attempt in task["attempts"]}, {1, 2})
    # All are set aside: they are used all the same.
    late = lib.Receiver()
    s.join("none", "i1", late.url, 200)
    s.run_tasks("none", 1)
    equal(late.count(), 1)
    late.close()


def at_most_eight_are_tried(s):
    for i in range(10):
        s.join("many", f"i{i}", dead_url())
    s.node.submit("many", "many", maxRetry=0)
    task = s.node.wait_status("many", "FAILED")
    equal(task["attempt"], 1)
    check("no instance could be connected to, 8 tried" in task["lastError"], task["lastError"])


def the_time_out_holds_over_all_tries(s):
    """Where instances take no connection, an attempt ends with its time-out."""
    with silence(s, "slow"):
        s.node.submit("slow", "slow", maxRetry=0, timeout="1s")
        task = s.node.wait_status("slow", "FAILED")
        check("no instance could be connected to, 1 tried" in task["lastError"], task["lastError"])
        equal(task["attempt"], 1)


def the_fence_holds_over_all_tries(s):
    """2 s after its claim no request may leave; that was a failed attempt, and not one unsent."""
    with silence(s, "fence"):
        s.node.submit("fence", "fence", maxRetry=1)
        task = s.node.wait_status("fence", "FAILED")
        equal((task["attempt"], len(task["attempts"])), (2, 2), "attempts")
        for attempt in task["attempts"]:
            check("no instance could be connected to, " in attempt["error"] and
                  "3 tried" not in attempt["error"], attempt)


@contextlib.contextmanager
def silence(s, service):
    """Three instances that take no connection: their queues are full."""
    with contextlib.ExitStack() as stack:
        for i in range(3):
            listener = stack.enter_context(socket.socket())
            listener.bind((lib.HOST, 0))
            listener.listen(0)
            for _ in range(4):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(listener.getsockname())
            s.join(service, f"i{i}", f"http://{lib.HOST}:{listener.getsockname()[1]}")
        yield


def without_heartbeats_it_is_dropped(s):
    base, one = lib.Receiver(), lib.Receiver()
    s.node.register("beats", base.url)
    beats = Beats(s.node, "beats", "one", one.url, 3)
    end = time.monotonic() + 4
    while time.monotonic() < end:
        s.run_tasks("beats", 1)
    equal(base.count(), 0, f"calls of the base URL; heartbeats {beats.statuses}")
    check(one.count() > 3, "calls of the instance")
    beats.stop()
    equal(beats.statuses[0], 201)
    equal(set(beats.statuses[1:]), {200}, "heartbeats")
    wait_until(lambda: not s.instances("beats"), 20, "it is dropped")
    before = one.count()
    s.run_tasks("beats", 3)
    equal((one.count(), base.count()), (before, 3), "calls of instance and base URL")
    equal(s.join("beats", "one", one.url)["serviceName"], "beats")  # 201: it had expired
    one.close()
    base.close()


def whoever_leaves_is_not_called_again(s):
    """At once by the node that was told."""
    base, one = lib.Receiver(), lib.Receiver()
    s.node.register("leave", base.url)
    for _ in range(5):
        s.join("leave", "one", one.url)
        s.run_tasks("leave", 1)
        s.leave("leave", "one")
        s.run_tasks("leave", 1)
    equal(counts(one, base), [5, 5])
    equal(s.node.client.delete("/api/services/leave/instances/one").status, 404)
    one.close()
    base.close()


def other_nodes_follow(s):
    """Also where the heartbeats of an instance come more often than a node reads by itself."""
    if s.store.kind == "sqlite":
        return
    one = lib.Receiver()
    before = s.node.metrics()["jobflow_instances"]
    s.other.start()
    try:
        beats = Beats(s.node, "follow", "one", one.url, 3)

        def known():
            return s.other.metrics()["jobflow_instances"] - before
        wait_until(lambda: known() == 1, 20, "the other node knows it")
        lib.stays(lambda: known() == 1, 6, "the other node lost it")
        equal(set(beats.statuses[1:]), {200}, "heartbeats")
        beats.stop()
        s.leave("follow", "one")
        wait_until(lambda: known() == 0, 20, "the other node knows that it has left")
    finally:
        s.other.close()
    one.close()


def signed_as_ever(s):
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    base, one = lib.Receiver(), lib.Receiver()
    s.node.register("signed", base.url, secret=secret)
    s.join("signed", "dead", dead_url())
    s.join("signed", "one", one.url)
    s.run_tasks("signed", 2, payload={"n": 1})
    equal(counts(one, base), [2, 0])
    for delivery in one.deliveries:
        check("webhook-signature" in delivery.headers, "it is not signed")
        equal(json.loads(delivery.body)["attempt"], 1)
    one.close()
    base.close()


def metrics_count_them(s):
    def live():
        return s.node.metrics()["jobflow_instances"]

    def set_aside():
        return s.node.metrics()["jobflow_instances_set_aside"]
    before = live()
    s.join("count", "a", dead_url())
    s.join("count", "b", dead_url())
    equal(live(), before + 2, "live instances")
    s.leave("count", "b")
    equal(live(), before + 1, "live instances")
    s.join("count", "b", dead_url())
    for i in range(20):
        s.node.submit(f"count-{i}", "count", maxRetry=0)
    wait_until(lambda: set_aside() >= 2, 20, "two are set aside")
    wait_until(lambda: set_aside() == 0, 20, "none is set aside any more")


def after_an_outage_the_last_known_ones_are_called(s):
    """Nobody could prolong anything: due tasks do not fail for want of an address."""
    one = lib.Receiver()
    s.join("away", "one", one.url, ttl="1s")
    keys = [f"away-{i}" for i in range(20)]
    for key in keys:
        s.node.submit(key, "away", delay="2s", maxRetry=0)
    s.node.terminate()
    time.sleep(3)  # the registration ends, and the tasks are due: what the case is about
    s.node.start()
    for key in keys:
        equal(s.node.wait_status(key, "SUCCESS")["attempt"], 1, "attempts")
    equal(one.count(), len(keys), "calls")
    one.close()


def rows_are_purged(s):
    """What has expired is gone from lists at once, and from the table in time: also with a start."""
    s.join("purge", "one", dead_url(), ttl="1s")
    wait_until(lambda: not s.instances("purge"), 20, "it has expired")
    s.node.terminate()
    s.node.start()
    wait_until(lambda: s.store.query(
        "SELECT count(*) FROM job_instance WHERE service_name = 'purge'") == [("0",)], 60,
        "its row is deleted")


CASES = [
    two_instances_are_called_in_turn,
    a_dead_instance_costs_no_attempt,
    a_dead_instance_is_set_aside_and_comes_back,
    a_failure_after_sending_is_a_failed_attempt,
    without_any_connection_the_attempt_fails,
    at_most_eight_are_tried,
    the_time_out_holds_over_all_tries,
    the_fence_holds_over_all_tries,
    without_heartbeats_it_is_dropped,
    whoever_leaves_is_not_called_again,
    other_nodes_follow,
    signed_as_ever,
    metrics_count_them,
    after_an_outage_the_last_known_ones_are_called,
    rows_are_purged,
]


if __name__ == "__main__":
    lib.main(Stage, CASES)
