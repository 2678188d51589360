#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults between the node and its database while tasks flow: faults.py postgres|mysql.

One node lives through all of it. After each fault every task that was accepted has been delivered,
none early and no attempt twice, and every key stands in history once.
"""

import contextlib
import queue
import signal
import threading
import time

import lib
from ledger import Ledger
from lib import check, diagnose, equal, wait_until
from proxy import Cut, MysqlWire, PostgresWire, Proxy

SERVICE = "shop"
N_CLIENTS = 4
N_CUTS = 30
ENV = {
    "JOBFLOW_STORE_GIVE_UP": "3s",
    "JOBFLOW_STORE_STATEMENT_TIMEOUT": "1s",
    "JOBFLOW_SCHEDULER_GHOST_MARGIN": "4s",
    "JOBFLOW_DELIVERY_TIMEOUT": "2s",
}

SUBMIT = b"INSERT INTO job_delay_task ("
CLAIM = b"SET status = 'SENDING'"
SUCCESS = b"INSERT INTO job_delay_task_history"
RETRY = b"INSERT INTO job_attempt"


class PostgresSide:
    sent = b"UPDATE job_delay_task SET status = b"
    wire = PostgresWire
    restarts = [signal.SIGINT, signal.SIGQUIT]

    def __init__(self, folder):
        self.store = lib.Postgres(folder)
        self.url = self.store.url

    def read_only(self, on):
        self.store.query(f"ALTER SYSTEM SET default_transaction_read_only = {int(on)}")
        self.store.query("SELECT pg_reload_conf()")


class MysqlSide:
    sent = b"SET status = 'SENT'"
    wire = MysqlWire
    restarts = [signal.SIGTERM, signal.SIGKILL]

    def __init__(self, folder):
        self.store = lib.Mysql(folder)
        # One whom read_only binds.
        self.store.query("CREATE USER jobflow@'%' IDENTIFIED BY 'secret'; "
                         "GRANT ALL ON jobflow.* TO jobflow@'%'")
        self.url = self.store.url.replace("root@", "jobflow:secret@")

    def read_only(self, on):
        self.store.query(f"SET GLOBAL read_only = {int(on)}")


class Stage:
    def __init__(self, kind, folder):
        self.side = {"postgres": PostgresSide, "mysql": MysqlSide}[kind](folder)
        self.store = self.side.store
        self.proxy = Proxy(self.store.port, self.side.wire)
        self.handlers = lib.Handlers()
        self.receiver = lib.Receiver(self.handlers)
        self.ledger = Ledger(self.store, self.receiver, SERVICE)
        url = self.side.url.replace(f":{self.store.port}/", f":{self.proxy.port}/")
        self.node = lib.Node(folder, url, ENV).start()
        self.process = self.node.process
        self.node.register(SERVICE, self.receiver.url)
        self.n_streams = 0

    def close(self):
        self.node.close()
        self.proxy.close()
        self.receiver.close()
        self.store.close()

    def one_by_one(self, client, key, handler):
        """The first answer and a repeat's are one and the same task."""
        task = self.ledger.task(key, handler, delay=f"{hash(key) % 200}ms", payload={"key": key})
        first = self.ledger.insist(client, task)
        again = self.ledger.insist(client, task)
        equal(again["traceId"], first["traceId"], f"the trace id of {key} when it is repeated")
        self.ledger.enter(first)

    def in_batches(self, client, key, handler):
        self.ledger.submit_batch(client, [
            self.ledger.task(f"{key}-{n}", handler, delay=f"{10 * n}ms") for n in range(10)])

    @contextlib.contextmanager
    def stream(self, submit=None, handler="h"):
        """Clients that submit as long as the body runs; after it, all has ended well."""
        submit = submit or self.one_by_one
        self.n_streams += 1
        number = self.n_streams
        stop = threading.Event()
        errors = []

        def run(client_number):
            client = lib.Client(self.node.port)
            n = 0
            try:
                while not stop.is_set():
                    submit(client, f"{number}-{client_number}-{n}", handler)
                    n += 1
            except Exception as error:  # pylint: disable=broad-except
                errors.append(error)
            finally:
                client.close()

        threads = [threading.Thread(target=run, args=(n,)) for n in range(N_CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield errors
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        check(not errors, f"a client failed: {errors}")
        self.ledger.all_is_well()

    def accepts_more(self, n=20):
        before = len(self.ledger.accepted)
        wait_until(lambda: len(self.ledger.accepted) >= before + n, 60, "tasks are accepted")

    def is_down(self):
        return self.node.client.get("/readyz").status == 503


# ---- Connections that are cut -------------------------------------------------------------------

def under_cuts(s, match, before=None, submit=None, handler="h"):
    n_tasks = len(s.ledger.accepted)
    rule = s.proxy.add(Cut(match, before=before, every=3, limit=N_CUTS))
    try:
        with s.stream(submit, handler) as errors:
            wait_until(lambda: rule.fired == N_CUTS or errors, 60, f"{N_CUTS} cuts")
    finally:
        s.proxy.remove(rule)
    diagnose(f"{len(s.ledger.accepted) - n_tasks} tasks, {rule.fired} cuts at {rule.seen} chances; "
             f"{s.ledger.repeats} submissions repeated so far")


def no_attempt_is_wasted(s):
    """All that were claimed were delivered, and all that failed did so by their handler's word."""
    equal(s.ledger.n_attempts(), s.receiver.count(), "attempts claimed, attempts delivered")
    check("ghost" not in s.ledger.causes(), f"failed attempts: {s.ledger.causes()}")


def a_submission_whose_commit_is_unknown(s):
    under_cuts(s, SUBMIT)


def a_batch_whose_commit_is_unknown(s):
    under_cuts(s, SUBMIT, submit=s.in_batches)


def a_claim_whose_commit_is_unknown(s):
    under_cuts(s, CLAIM)
    no_attempt_is_wasted(s)


def a_success_whose_commit_is_unknown(s):
    under_cuts(s, SUCCESS)
    no_attempt_is_wasted(s)


def fail_first(delivery):
    return 500 if delivery.attempt == 1 else None


def a_retry_whose_commit_is_unknown(s):
    s.handlers.set("retry", fail_first)
    under_cuts(s, RETRY, handler="retry")
    equal({d.attempt for d in s.receiver.to("retry")}, {1, 2}, "attempts")
    no_attempt_is_wasted(s)


@contextlib.contextmanager
def results_later(s, handler):
    """The handler answers 202, and its result comes by itself."""
    accepted = queue.Queue()
    errors = []

    def answer(delivery):
        accepted.put(delivery)
        return 202

    def report():
        client = lib.Client(s.node.port)
        try:
            while delivery := accepted.get():
                s.ledger.insist(client, {"success": True},
                                f"/api/attempts/{delivery.trace}/{delivery.attempt}/result")
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)
        finally:
            client.close()

    s.handlers.set(handler, answer)
    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield
    finally:
        accepted.put(None)
        thread.join()
    check(not errors, f"reporting results: {errors}")


def a_handover_whose_commit_is_unknown(s):
    with results_later(s, "sent"):
        under_cuts(s, s.side.sent, handler="sent")
    no_attempt_is_wasted(s)


def a_commit_that_never_arrived(s):
    """The connection breaks before the server hears of it."""
    under_cuts(s, SUBMIT, before=b"COMMIT")
    under_cuts(s, CLAIM, before=CLAIM)
    under_cuts(s, SUCCESS, before=SUCCESS)
    s.handlers.set("unheard", fail_first)
    under_cuts(s, RETRY, before=b"COMMIT", handler="unheard")
    no_attempt_is_wasted(s)


def all_connections_at_once(s):
    with s.stream():
        for _ in range(10):
            s.accepts_more()
            s.proxy.cut()
    no_attempt_is_wasted(s)


# ---- A network without a word -------------------------------------------------------------------

def a_transaction_that_nobody_ends(s):
    """The connection dies silently between a task's INSERT and its COMMIT. Its session in the
    server holds the key: it must not hold it for ever."""
    client = lib.Client(s.node.port)
    for n in range(3):
        rule = s.proxy.add(Cut(SUBMIT, before=b"COMMIT", silent=True))
        s.ledger.submit(client, f"nobody-{n}")
        s.proxy.remove(rule)
        equal(rule.fired, 1, "silent connections")
    client.close()
    s.ledger.all_is_well()


def a_black_hole(s):
    """Longer than a statement may take and a request waits."""
    s.ledger.slowest = 0
    with s.stream() as errors:
        s.accepts_more()
        s.proxy.hole()
        wait_until(lambda: s.is_down() or errors, 30, "/readyz says so")
        time.sleep(3)  # the fault's length
        s.proxy.heal()
        wait_until(lambda: s.node.is_ready() or errors, 30, "the node is ready again by itself")
        s.accepts_more()
    slowest = s.ledger.slowest
    diagnose(f"the slowest answer took {slowest:.1f} s; attempts that failed: {s.ledger.causes()}")
    check(1 < slowest < 20, f"an answer took {slowest:.1f} s")


def answers_that_come_late(s):
    """Later than anybody waits for them: what they say must not be taken for another answer."""
    with s.stream() as errors:
        s.accepts_more()
        s.proxy.stall()
        wait_until(lambda: s.is_down() or errors, 30, "/readyz says so")
        s.proxy.heal()
        wait_until(lambda: s.node.is_ready() or errors, 30, "the node is ready again")
        s.accepts_more()


def a_slow_network(s):
    """200 ms each way: work goes on."""
    n_down = len(s.node.events("store.down"))
    s.proxy.delay_ms = 200
    try:
        with s.stream(s.in_batches):
            s.accepts_more(100)
    finally:
        s.proxy.delay_ms = 0
    equal(len(s.node.events("store.down")), n_down, "times that the database was called down")


# ---- A server that goes away --------------------------------------------------------------------

def a_server_that_restarts(s):
    with s.stream():
        for how in s.side.restarts:
            for _ in range(2):
                s.accepts_more()
                s.store.stop(how)
                s.store.start()
        s.accepts_more()


def a_server_that_refuses(s):
    with s.stream() as errors:
        s.accepts_more()
        s.proxy.refuse()
        s.proxy.cut()
        wait_until(lambda: s.is_down() or errors, 30, "/readyz says so")
        s.proxy.heal()
        s.accepts_more()


def a_server_that_is_read_only(s):
    with s.stream() as errors:
        s.accepts_more()
        s.side.read_only(True)
        wait_until(lambda: s.is_down() or errors, 30, "/readyz says so")
        detail = s.node.client.get("/readyz").body["detail"]
        check("read-only" in detail or "read only" in detail, f"/readyz says: {detail}")
        s.side.read_only(False)
        s.accepts_more()


def the_node_came_through(s):
    equal(s.process.poll(), None, "exit status of the node")
    downs = s.node.events("store.down")
    others = [line for line in s.node.log() if line["level"] == "error" and line not in downs]
    check(not others, f"other errors in the log: {others[:5]}")
    for line in downs:
        check(line["error"], f"no reason: {line}")
    diagnose(f"{len(s.ledger.accepted)} tasks, {s.receiver.count()} deliveries, "
             f"{s.proxy.n_links} connections; down for: {sorted({d['error'] for d in downs})}")


CASES = [
    a_submission_whose_commit_is_unknown,
    a_batch_whose_commit_is_unknown,
    a_claim_whose_commit_is_unknown,
    a_success_whose_commit_is_unknown,
    a_retry_whose_commit_is_unknown,
    a_handover_whose_commit_is_unknown,
    a_commit_that_never_arrived,
    all_connections_at_once,
    a_slow_network,
    a_transaction_that_nobody_ends,
    a_server_that_refuses,
    a_server_that_restarts,
    a_server_that_is_read_only,
    answers_that_come_late,
    a_black_hole,
    the_node_came_through,
]


if __name__ == "__main__":
    lib.main(Stage, CASES)
