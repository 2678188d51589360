#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults that other schedulers were reported for, against whole nodes: bugs.py sqlite|postgres|mysql.

Each case is named after the kind of fault: what went wrong elsewhere stands in its docstring.
"""

import os
import signal
import socket
import sys
import threading
import time

import lib
from lib import check, equal, now_ms, wait_until


class Stage:
    """One database; nodes as the cases need them."""

    def __init__(self, kind, folder):
        self.folder = folder
        self.kind = kind
        self.store = lib.STORES[kind](folder)
        self.handlers = lib.Handlers()
        self.receiver = lib.Receiver(self.handlers)
        self.nodes = []

    def close(self):
        self.stop_nodes()
        self.receiver.close()
        self.store.close()

    def new_node(self, name="node-a", **env):
        node = lib.Node(self.folder, self.store.url, {f"JOBFLOW_{k}": v for k, v in env.items()},
                        name)
        self.nodes.append(node)
        return node

    def start_node(self, name="node-a", **env):
        node = self.new_node(name, **env).start()
        node.register("shop", self.receiver.url)
        return node

    def stop_nodes(self):
        for node in self.nodes:
            if node.process:
                node.process.send_signal(signal.SIGCONT)
                node.kill9()
        self.nodes.clear()


def case_with_nodes(function):
    """Ends the nodes of a case with it."""
    def case(stage):
        try:
            function(stage)
        finally:
            stage.stop_nodes()
    case.__name__ = function.__name__
    return case


@case_with_nodes
def claim_27_a_stopping_node_keeps_its_work(s):
    """A graceful stop ended the heartbeats while work still ran, and a second node ran it again."""
    release = threading.Event()
    s.handlers.set("claim-27", lambda d: release.wait(30) and None)
    a = s.start_node("a", SCHEDULER_GHOST_MARGIN="1s")
    trace = a.submit("claim-27", "shop", "claim-27", timeout="20s")["traceId"]
    wait_until(lambda: s.receiver.of(trace), 10, "the handler is called")
    b = s.start_node("b", SCHEDULER_GHOST_MARGIN="1s")
    process = a.process
    process.terminate()
    wait_until(lambda: a.events("node.stopping"), 5, "the first node stops")
    lib.stays(lambda: len(s.receiver.of(trace)) == 1, 3, "a second node ran it again")
    release.set()
    equal(process.wait(20), 0, "exit status")
    a.process = None
    b.wait_status("claim-27", "SUCCESS")
    equal(len(s.receiver.of(trace)), 1, "calls")


@case_with_nodes
def claim_29_a_slow_handler_is_no_ghost(s):
    """The rescue's limit was shorter than the job, so that it ran two or three times."""
    s.handlers.set("claim-29", lambda d: time.sleep(4))
    node = s.start_node(SCHEDULER_GHOST_MARGIN="500ms")
    trace = node.submit("claim-29", "shop", "claim-29", timeout="8s")["traceId"]
    equal(node.wait_status("claim-29", "SUCCESS")["attempt"], 1)
    equal(len(s.receiver.of(trace)), 1, "calls")


@case_with_nodes
def claim_31_a_thousand_at_once_on_two_nodes(s):
    """Row-by-row bookkeeping outlived the scan, and half of the jobs ran on both nodes."""
    a = s.start_node("a")
    b = s.start_node("b")
    at = now_ms() + 2000
    for node, half in ((a, 0), (b, 1)):
        answer = node.client.post("/api/delay-tasks/batch", {"tasks": [
            {"bizUuid": f"claim-31-{2 * n + half}", "serviceName": "shop", "handler": "claim-31",
             "executeTime": at} for n in range(500)]})
        equal({r["status"] for r in answer.body["results"]}, {201})
    wait_until(lambda: s.store.query(
        "SELECT count(*) FROM job_delay_task WHERE handler = 'claim-31'") == [("0",)], 30,
        "all have ended")
    deliveries = s.receiver.to("claim-31")
    equal((len(deliveries), len({d.trace for d in deliveries})), (1000, 1000), "calls, tasks")
    equal({d.attempt for d in deliveries}, {1}, "attempts")


@case_with_nodes
def claim_33_a_slot_is_one_task_however_often_it_fires(s):
    """A slow run overlapped the next look at the same slot, which fired twice; the slot after it was
    skipped. A slot is a key: (job, scheduled instant)."""
    release = threading.Event()
    s.handlers.set("claim-33", lambda d: release.wait(30) and None)
    a = s.start_node("a")
    b = s.start_node("b")
    slots = [f"report@{at}" for at in (now_ms() + 300, now_ms() + 900)]
    try:
        first = a.submit(slots[0], "shop", "claim-33", executeTime=int(slots[0].split("@")[1]))
        wait_until(lambda: s.receiver.of(first["traceId"]), 20, "the slow run is under way")
        for node in (a, b, a, b):
            again = node.submit(slots[0], "shop", "claim-33", wanted=200,
                                executeTime=int(slots[0].split("@")[1]))
            equal(again["traceId"], first["traceId"], "the slot's task")
        second = b.submit(slots[1], "shop", "claim-33", executeTime=int(slots[1].split("@")[1]))
        wait_until(lambda: s.receiver.of(second["traceId"]), 20, "the next slot is not skipped")
    finally:
        release.set()
    for slot, task in zip(slots, (first, second)):
        equal(a.wait_status(slot, "SUCCESS")["attempt"], 1, "attempts")
        equal(len(s.receiver.of(task["traceId"])), 1, "runs of the slot")


@case_with_nodes
def g5_a_paused_node_cannot_finish_what_another_took(s):
    """A node that stood still past the deadline came back and overwrote the other's result."""
    release = threading.Event()
    s.handlers.set("g5", lambda d: release.wait(30) and (422, {}), None)
    a = s.start_node("a", SCHEDULER_GHOST_MARGIN="500ms", CLUSTER_TTL="2s")
    task = a.submit("g5", "shop", "g5", timeout="1s")
    wait_until(lambda: s.receiver.of(task["traceId"]), 10, "the handler is called")
    a.process.send_signal(signal.SIGSTOP)
    try:
        b = s.start_node("b", SCHEDULER_GHOST_MARGIN="500ms", CLUSTER_TTL="2s")
        done = b.wait_status("g5", "SUCCESS", 40)
    finally:
        release.set()
        a.process.send_signal(signal.SIGCONT)
    equal(done["attempt"], 2)
    wait_until(lambda: a.events("attempt.lost", bizUuid="g5"), 10, "the first node notices")
    equal([d.attempt for d in s.receiver.of(task["traceId"])], [1, 2], "attempts delivered")
    equal(b.task("g5")["status"], "SUCCESS")


@case_with_nodes
def retry_43_a_task_that_kills_its_node_runs_out_of_tries(s):
    """The attempt was counted after the work, so that a deadly task crashed its workers for ever."""
    node = s.start_node()

    def kill(_):
        os.kill(node.process.pid, signal.SIGKILL)
        time.sleep(0.2)

    s.handlers.set("retry-43", kill)
    trace = node.submit("retry-43", "shop", "retry-43", maxRetry=3, delay="500ms")["traceId"]
    for _ in range(4):
        node.process.wait(20)
        node.start()
    failed = node.wait_status("retry-43", "FAILED")
    equal((failed["attempt"], failed["retryCount"]), (4, 3))
    equal([d.attempt for d in s.receiver.of(trace)], [1, 2, 3, 4])
    lib.stays(lambda: node.process.poll() is None, 1, "it was sent a fifth time")


@case_with_nodes
def http_60_expect_is_answered(s):
    """A client that waits for 100 Continue stalled for a second, or for ever."""
    node = s.start_node()
    body = b'{"bizUuid":"http-60","serviceName":"shop","handler":"http-60"}'
    head = (b"POST /api/delay-tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\nExpect: %s\r\n\r\n")
    with socket.create_connection((lib.HOST, node.port), timeout=5) as c:
        c.sendall(head % (len(body), b"100-continue"))
        interim = c.recv(4096)
        check(interim.startswith(b"HTTP/1.1 100 "), f"the interim answer: {interim}")
        c.sendall(body)
        check(c.recv(4096).startswith(b"HTTP/1.1 201 "), "the answer")
    with socket.create_connection((lib.HOST, node.port), timeout=5) as c:
        c.sendall(head % (len(body), b"a-miracle"))
        check(c.recv(4096).startswith(b"HTTP/1.1 417 "), "an unknown expectation")


@case_with_nodes
def http_61_nothing_is_sent_again_behind_our_back(s):
    """The HTTP library sent a POST again when a re-used connection broke: a duplicate that no counter
    saw."""
    def reset_when_reused(delivery):
        if delivery.nth > 1 and delivery.attempt == 1:
            raise lib.Reset

    s.handlers.set("http-61", reset_when_reused)
    node = s.start_node()
    broken = 0
    for n in range(10):
        done = None
        task = node.submit(f"http-61-{n}", "shop", "http-61")
        done = node.wait_status(f"http-61-{n}", "SUCCESS")
        deliveries = s.receiver.of(task["traceId"])
        equal([d.attempt for d in deliveries], list(range(1, done["attempt"] + 1)),
              "requests received, by attempt")
        broken += done["attempt"] - 1
        failures = node.task(f"http-61-{n}")["attempts"]
        equal(len(failures), done["attempt"] - 1, "failed attempts on record")
    check(broken > 0, "no connection was used again: nothing was proven")


@case_with_nodes
def http_64_the_internal_network_stays_out_of_reach(s):
    """A redirect carried a validated call to the metadata service."""
    s.handlers.set("http-64", (302, b"", {"Location": "http://169.254.169.254/latest/meta-data"}),
                   (307, b"", {"Location": f"{s.receiver.url}/stolen"}), None)
    node = s.start_node()
    node.submit("http-64", "shop", "http-64")
    equal(node.wait_status("http-64", "SUCCESS")["attempt"], 3)
    equal(s.receiver.to("stolen"), [], "redirects followed")
    for url in ("http://169.254.169.254/", "http://[::ffff:169.254.169.254]/", "http://[fe80::1]/",
                "http://0.0.0.0:8080/", "http://224.0.0.1/", "http://2852039166/"):
        answer = node.client.put("/api/services/inside", {"baseUrl": url})
        equal(answer.status, 400, url)


@case_with_nodes
def database_52_a_zero_character_is_refused(s):
    """PostgreSQL refuses U+0000 in texts: the end of an attempt could not be stored, for ever."""
    node = s.start_node()
    answer = node.client.post("/api/delay-tasks", b'{"bizUuid":"database-52","serviceName":"shop",'
                              b'"handler":"h","payload":{"a":"x\\u0000y"}}')
    equal((answer.status, answer.body["field"]), (400, "payload"))
    equal(node.client.get("/api/delay-tasks/database-52").status, 404)
    s.handlers.set("zero", (500, b'{"success":false,"retryable":false,"message":"a\\u0000b"}'))
    node.submit("database-52-answer", "shop", "zero", maxRetry=0)
    equal(node.wait_status("database-52-answer", "FAILED")["attempt"], 1)


@case_with_nodes
def database_53_works_without_named_statements(s):
    """Behind a transaction pooler prepared statements "already exist" or "do not exist"."""
    node = s.start_node(STORE_NAMED_STATEMENTS="false")
    for n in range(20):
        node.submit(f"database-53-{n}", "shop", "h")
    for n in range(20):
        node.wait_status(f"database-53-{n}", "SUCCESS")
    equal(node.client.delete("/api/delay-tasks/database-53-0").status, 409)


TRIGGERS = {
    "sqlite": ["CREATE TRIGGER refuse BEFORE INSERT ON job_delay_task_history "
               "WHEN NEW.biz_uuid = 'refused-end' BEGIN SELECT RAISE(ABORT, 'no'); END",
               "CREATE TRIGGER refuse2 BEFORE UPDATE ON job_delay_task WHEN NEW.biz_uuid = "
               "'refused-claim' BEGIN SELECT RAISE(ABORT, 'no'); END", "DROP TRIGGER refuse2"],
    "postgres": ["CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                 "$$ BEGIN RAISE EXCEPTION 'no'; END $$; CREATE TRIGGER refuse BEFORE INSERT ON "
                 "job_delay_task_history FOR EACH ROW WHEN (NEW.biz_uuid = 'refused-end') "
                 "EXECUTE FUNCTION refuse()",
                 "CREATE TRIGGER refuse2 BEFORE UPDATE ON job_delay_task FOR EACH ROW "
                 "WHEN (NEW.biz_uuid = 'refused-claim') EXECUTE FUNCTION refuse()",
                 "DROP TRIGGER refuse2 ON job_delay_task"],
    "mysql": ["CREATE TRIGGER refuse BEFORE INSERT ON job_delay_task_history FOR EACH ROW "
              "SET NEW.handler = IF(NEW.biz_uuid = 'refused-end', NULL, NEW.handler)",
              "CREATE TRIGGER refuse2 BEFORE UPDATE ON job_delay_task FOR EACH ROW "
              "SET NEW.handler = IF(NEW.biz_uuid = 'refused-claim', NULL, NEW.handler)",
              "DROP TRIGGER refuse2"],
}


@case_with_nodes
def a_row_that_the_database_refuses_fails_alone(s):
    """One row that could not be written failed its batch, which was tried again for ever."""
    node = s.start_node(SCHEDULER_GHOST_MARGIN="500ms", SCHEDULER_FULL_READ="1s")
    refuse_end, refuse_claim, allow_claim = TRIGGERS[s.kind]
    s.store.query(refuse_end)
    s.store.query(refuse_claim)
    tasks = [{"bizUuid": key, "serviceName": "shop", "handler": "h", "maxRetry": 1,
              "timeout": "1s"} for key in
             ["refused-end", "refused-claim", *(f"good-{n}" for n in range(50))]]
    equal(node.client.post("/api/delay-tasks/batch", {"tasks": tasks}).status, 200)
    for n in range(50):
        equal(node.wait_status(f"good-{n}", "SUCCESS")["attempt"], 1)
    equal(node.wait_status("refused-end", "FAILED")["attempt"], 2)
    check(node.events("store.refused"), "the log says so")
    equal((node.task("refused-claim")["status"], node.task("refused-claim")["attempt"]),
          ("PENDING", 0))
    equal(node.client.get("/readyz").status, 200)
    s.store.query(allow_claim)
    equal(node.wait_status("refused-claim", "SUCCESS")["attempt"], 1)


@case_with_nodes
def one_name_is_one_node(s):
    """Two processes under one name would rescue each other's work as their own orphans."""
    a = s.start_node("twin")
    s.start_node("twin")
    equal(a.process.wait(30), 3, "exit status of the first")
    a.process = None
    check(a.events("node.superseded"), "the log says why")


@case_with_nodes
def one_file_is_one_node(s):
    """Two processes on one SQLite file: the second waits, says so, and takes over from a dead first."""
    a = s.start_node("a")
    b = s.new_node("b").start(ready=False)
    ready = b.client.get("/readyz")
    equal(ready.status, 503, "/readyz of the second")
    check("another process" in ready.body["detail"], f"/readyz says: {ready.body}")
    a.submit("one-file", "shop", "one-file", delay="1s")
    a.kill9()
    equal(b.wait_status("one-file", "SUCCESS")["attempt"], 1)


TWO_NODES = [
    claim_27_a_stopping_node_keeps_its_work,
    claim_31_a_thousand_at_once_on_two_nodes,
    claim_33_a_slot_is_one_task_however_often_it_fires,
    g5_a_paused_node_cannot_finish_what_another_took,
    one_name_is_one_node,
]

ONE_NODE = [
    claim_29_a_slow_handler_is_no_ghost,
    retry_43_a_task_that_kills_its_node_runs_out_of_tries,
    http_60_expect_is_answered,
    http_61_nothing_is_sent_again_behind_our_back,
    http_64_the_internal_network_stays_out_of_reach,
    database_52_a_zero_character_is_refused,
    database_53_works_without_named_statements,
    a_row_that_the_database_refuses_fails_alone,
]

# An SQLite file serves one node.
CASES = {"sqlite": [*ONE_NODE, one_file_is_one_node], "postgres": [*ONE_NODE, *TWO_NODES],
         "mysql": [*ONE_NODE, *TWO_NODES]}


if __name__ == "__main__":
    lib.main(Stage, CASES[sys.argv[1]])
