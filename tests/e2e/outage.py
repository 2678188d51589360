#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The database is away, at start and later: outage.py sqlite|postgres|mysql."""

import signal
import sqlite3
import threading
import time

import lib
from lib import check, equal, wait_until

SERVICE = "shop"
QUICK_STORE = {"JOBFLOW_STORE_GIVE_UP": "1s", "JOBFLOW_STORE_STATEMENT_TIMEOUT": "500ms"}


class PostgresOutage:
    """A server that is not there yet; later it is stopped, or crashes."""

    def __init__(self, folder):
        self.store = lib.Postgres(folder, start=False)

    def down(self, how=signal.SIGINT):
        self.store.stop(how)

    def crash(self):
        self.down(signal.SIGQUIT)

    def up(self):
        self.store.start()


class MysqlOutage(PostgresOutage):
    def __init__(self, folder):  # pylint: disable=super-init-not-called
        self.store = lib.Mysql(folder, start=False)

    def down(self, how=signal.SIGTERM):
        self.store.stop(how)

    def crash(self):
        self.down(signal.SIGKILL)


class SqliteOutage:
    """A folder that is not there yet; later somebody else holds the lock on the file."""

    def __init__(self, folder):
        self.folder = folder / "not-yet"
        self.store = lib.Sqlite(self.folder)
        self.holder = None

    def down(self):
        self.holder = sqlite3.connect(self.store.file, isolation_level=None, timeout=30)
        self.holder.execute("BEGIN EXCLUSIVE")

    crash = down

    def up(self):
        self.folder.mkdir(exist_ok=True)
        if self.holder:
            self.holder.execute("ROLLBACK")
            self.holder.close()
            self.holder = None


class Stage:
    def __init__(self, kind, folder):
        self.outage = {"sqlite": SqliteOutage, "postgres": PostgresOutage,
                       "mysql": MysqlOutage}[kind](folder)
        self.handlers = lib.Handlers()
        self.receiver = lib.Receiver(self.handlers)
        self.node = lib.Node(folder, self.outage.store.url, QUICK_STORE)

    def close(self):
        self.node.close()
        self.receiver.close()
        self.outage.store.close()

    def submit(self, key, **more):
        return self.node.client.post("/api/delay-tasks", {
            "bizUuid": key, "serviceName": SERVICE, "handler": key, **more})

    def wait_ready(self):
        wait_until(self.node.is_ready, 30, "the node is ready again by itself")


def refuses_clearly(s, key):
    """What a client sees while there is no database."""
    answer = wait_until(lambda: [a for a in [s.submit(key)] if a.status == 503], 20,
                        "a submission is refused")[0]
    check(int(answer.headers["retry-after"]) > 0, f"Retry-After: {answer.headers}")
    equal(answer.headers["content-type"], "application/problem+json")
    check(answer.body["detail"], "the problem says something")


def down_at_start(s):
    s.node.start(ready=False)
    refuses_clearly(s, "at-start")
    ready = s.node.client.get("/readyz")
    equal(ready.status, 503, "/readyz")
    check("node" in str(ready.body) or "database" in str(ready.body) or "store" in str(ready.body) or
          "connect" in str(ready.body) or "open" in str(ready.body), f"/readyz says: {ready.body}")
    line = wait_until(lambda: s.node.events("store.down"), 10, "the log says so")[0]
    check(line["level"] == "error" and line["error"], f"the log line: {line}")
    equal(s.node.client.get("/healthz").status, 200, "/healthz")


def comes_up_by_itself(s):
    s.outage.up()
    s.wait_ready()
    equal(s.submit("at-start").status, 201, "the refused submission left nothing behind")
    s.node.register(SERVICE, s.receiver.url)
    s.node.wait_status("at-start", "SUCCESS")
    wait_until(lambda: s.node.events("store.up"), 5, "the log says so")


def work_across_an_outage(s, down, prefix):
    """Accepted before, due during; and one in flight when it begins."""
    release = threading.Event()
    flying = f"{prefix}-flying"
    s.handlers.set(flying, lambda d: release.wait(30) and None)
    equal(s.submit(flying).status, 201)
    wait_until(lambda: s.receiver.to(flying), 10, "the handler is called")
    keys = [f"{prefix}-{n}" for n in range(50)]
    for n, key in enumerate(keys):
        equal(s.submit(key, delay=f"{1000 + 20 * n}ms").status, 201)
    down()
    refuses_clearly(s, f"{prefix}-refused")
    release.set()
    time.sleep(1.5)  # every task's time falls into the outage
    s.outage.up()
    s.wait_ready()
    for key in [flying, *keys]:
        s.node.wait_status(key, "SUCCESS")
    equal(len(s.receiver.to(flying)), 1, "calls of the handler that answered during the outage")
    for key in keys:
        equal(len(s.receiver.to(key)), 1, f"calls of {key}")


def down_later(s):
    work_across_an_outage(s, s.outage.down, "later")


def crashes_later(s):
    work_across_an_outage(s, s.outage.crash, "crash")


def accepted_under_outages_is_delivered(s):
    """A client that goes on through three outages: 2xx means delivered, 503 means repeat."""
    stop = threading.Event()
    accepted = []
    unknown = []

    def client():
        c = lib.Client(s.node.port)
        n = 0
        while not stop.is_set():
            n += 1
            answer = c.post("/api/delay-tasks", {
                "bizUuid": f"under-{n}", "serviceName": SERVICE, "handler": "under"})
            (accepted if answer.status in (200, 201) else unknown).append((n, answer.status))
            time.sleep(0.01)
        c.close()

    thread = threading.Thread(target=client)
    thread.start()
    try:
        for _ in range(3):
            n = len(accepted)
            wait_until(lambda n=n: len(accepted) > n + 20, 30, "submissions are accepted")
            s.outage.crash()
            n = len(unknown)
            wait_until(lambda n=n: len(unknown) > n, 30, "submissions are refused")
            s.outage.up()
            s.wait_ready()
    finally:
        stop.set()
        thread.join()
    equal({status for _, status in unknown}, {503}, "answers during the outages")
    for n, _ in accepted:
        s.node.wait_status(f"under-{n}", "SUCCESS")
    lib.diagnose(f"{len(accepted)} accepted, {len(unknown)} refused")


def stops_while_it_is_away(s):
    s.outage.down()
    refuses_clearly(s, "stopping")
    equal(s.node.terminate(40), 0, "exit status")
    s.outage.up()


def stops_at_any_moment_of_its_start(s):
    for n in range(25):
        s.node.start(ready=False)
        time.sleep(0.005 * n)  # another moment each time
        equal(s.node.terminate(40), 0, f"exit status, {5 * n} ms after it began to listen")


CASES = [down_at_start, comes_up_by_itself, down_later, crashes_later,
         accepted_under_outages_is_delivered, stops_while_it_is_away,
         stops_at_any_moment_of_its_start]


if __name__ == "__main__":
    lib.main(Stage, CASES)
