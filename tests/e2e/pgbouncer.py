#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PgBouncer in transaction mode between nodes and PostgreSQL: pgbouncer.py postgres.

Two sessions serve eight store threads, so that every transaction may meet another session.
"""

import shutil
import signal
import subprocess
import threading

import lib
from ledger import Ledger
from lib import check, diagnose, equal, wait_until

SERVICE = "shop"
N_SESSIONS = 2
N_CLIENTS = 8
ENV = {"JOBFLOW_STORE_CONNECTIONS": "8", "JOBFLOW_STORE_STATEMENT_TIMEOUT": "2s"}
UNNAMED = {"JOBFLOW_STORE_NAMED_STATEMENTS": "false"}

CONFIG = """
[databases]
* = host={host} port={server} user=postgres

[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
"""


class Pooler:
    """As Debian has it, but for the pool: no startup parameter is passed over for our sake."""

    def __init__(self, folder, server):
        self.port = lib.free_port()
        self.user = server.user
        self.config = folder / "pgbouncer.ini"
        self.config.write_text(CONFIG.format(host=lib.HOST, server=server.port, port=self.port,
                                             sessions=N_SESSIONS))
        self.log_file = folder / "pgbouncer.log"
        self.log = open(self.log_file, "ab")
        self.process = None
        self.start()

    def start(self):
        program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
        check(program, "pgbouncer is not installed")
        self.process = lib.spawn([program, self.config], self.log, self.user)
        wait_until(lambda: self.query("SELECT 1", check_it=False) == ["1"], 30,
                   "PgBouncer is ready")

    def query(self, sql, database="postgres", check_it=True):
        answer = subprocess.run(
            ["psql", "-h", lib.HOST, "-p", str(self.port), "-U", "postgres", "-XAtq", "-c", sql,
             database], check=check_it, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return answer.stdout.splitlines()

    def stop(self):
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)
            self.process = None

    def close(self):
        self.stop()
        self.log.close()


class Stage:
    def __init__(self, _kind, folder):
        self.folder = folder
        self.store = lib.Postgres(folder)
        self.pooler = Pooler(folder, self.store)
        self.url = self.store.url.replace(f":{self.store.port}/", f":{self.pooler.port}/")
        self.handlers = lib.Handlers()
        self.receiver = lib.Receiver(self.handlers)
        self.ledger = Ledger(self.store, self.receiver, SERVICE)
        self.nodes = []

    def close(self):
        for node in self.nodes:
            node.close()
        self.receiver.close()
        self.pooler.close()
        self.store.close()

    def node(self, name, env):
        node = lib.Node(self.folder, self.url, {**ENV, **env}, name)
        self.nodes.append(node)
        return node

    def server_log(self):
        return (self.folder / "postgres.log").read_text(errors="replace")

    def flow(self, node, prefix, n):
        """Tasks from several clients at once, singly and in batches, to their ends."""
        def run(number):
            client = lib.Client(node.port)
            try:
                for k in range(n):
                    self.ledger.submit(client, f"{prefix}-{number}-{k}", delay=f"{k}ms")
                self.ledger.submit_batch(client, [
                    self.ledger.task(f"{prefix}-{number}-b{k}") for k in range(n)])
            except Exception as error:  # pylint: disable=broad-except
                errors.append(error)
            finally:
                client.close()

        errors = []
        threads = [threading.Thread(target=run, args=(number,)) for number in range(N_CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(not errors, f"a client failed: {errors}")


def life_cycle(s, node, prefix):
    """Everything that a task may go through."""
    def key(name):
        return f"{prefix}-{name}"

    first = node.submit(key("once"), SERVICE)
    s.ledger.enter(first)
    again = node.submit(key("once"), SERVICE, wanted=200)
    equal((again["traceId"], again["duplicate"]), (first["traceId"], True), "a repeat")
    node.wait_status(key("once"), "SUCCESS")

    s.handlers.set(key("retry"), 500, None)
    s.ledger.enter(node.submit(key("retry"), SERVICE, key("retry")))
    done = node.wait_status(key("retry"), "SUCCESS")
    equal((done["attempt"], len(done["attempts"])), (2, 1), "attempts, failed ones on record")

    s.handlers.set(key("failed"), (422, {}), None)
    s.ledger.enter(node.submit(key("failed"), SERVICE, key("failed")))
    node.wait_status(key("failed"), "FAILED")
    equal(node.client.post(f"/api/delay-tasks/{key('failed')}/run", {}).status, 200, "run again")
    node.wait_status(key("failed"), "SUCCESS")

    s.handlers.set(key("sent"), 202)
    trace = node.submit(key("sent"), SERVICE, key("sent"))
    s.ledger.enter(trace)
    node.wait_status(key("sent"), "SENT")
    answer = node.client.post(f"/api/attempts/{trace['traceId']}/1/result", {"success": True})
    equal(answer.status, 200, f"the result: {answer.body}")
    node.wait_status(key("sent"), "SUCCESS")

    node.submit(key("moved"), SERVICE, delay="1h")
    moved = f"/api/delay-tasks/{key('moved')}"
    equal(node.client.patch(moved, {"delay": "2h"}).status, 200, "move")
    equal(node.client.delete(moved).status, 200, "cancel")
    equal(node.client.delete(moved).status, 200, "cancel again")
    equal(node.task(key("moved"))["status"], "CANCELLED", "in history")
    equal(node.client.get(f"/api/delay-tasks?service={SERVICE}&limit=5").status, 200, "a page")
    equal(node.client.get("/api/services").status, 200, "services")
    s.store.query(f"DELETE FROM job_delay_task_history WHERE biz_uuid = '{key('moved')}'")


def two_nodes_migrate_at_once(s):
    """The lock of a migration belongs to its transaction: nothing stays behind in the pool."""
    for name in ("a", "b"):
        s.node(name, UNNAMED).start(ready=False)
    wait_until(lambda: all(node.is_ready() for node in s.nodes), 30, "both nodes are ready")
    versions = [version for version, in s.store.query("SELECT version FROM job_schema")]
    equal(len(versions), len(set(versions)), "migrations, each once")
    equal(s.store.query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), [("0",)],
          "advisory locks left")
    equal(s.nodes[1].terminate(), 0, "exit status")


def database_53_works_behind_a_transaction_pooler(s):
    """Prepared statements "already exist" or "do not exist": the session changed underneath."""
    node = s.nodes[0]
    node.register(SERVICE, s.receiver.url)
    life_cycle(s, node, "unnamed")
    s.flow(node, "unnamed", 40)
    s.ledger.all_is_well()
    check(not node.events("store.warning"), f"warned: {node.events('store.warning')}")


def no_statement_waits_for_ever(s):
    """The limits of time come along with each transaction, also with that of a single statement."""
    holder = subprocess.Popen(
        [f"{s.store.bin}/psql", "-h", lib.HOST, "-p", str(s.store.port), "-U", "postgres", "-Xq",
         "-c", "BEGIN; LOCK TABLE job_delay_task IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)",
         "postgres"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, preexec_fn=lib.die_with_parent())
    try:
        wait_until(lambda: "STATEMENT:  SELECT k.ord" in s.server_log(), 30, "a scan is cancelled")
    finally:
        s.store.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                      "WHERE query LIKE '%pg_sleep(60)' AND pid <> pg_backend_pid()")
        holder.wait(30)
    check("canceling statement due to lock timeout" in s.server_log() or
          "canceling statement due to statement timeout" in s.server_log(), "and says why")
    wait_until(s.nodes[0].is_ready, 30, "the node is ready again")


def nothing_is_left_in_the_sessions(s):
    """Others share them: what the node sets ends with its transactions."""
    for setting, wanted in (("statement_timeout", "0"), ("enable_seqscan", "on"),
                            ("idle_in_transaction_session_timeout", "0")):
        for _ in range(2 * N_SESSIONS):
            equal(s.pooler.query(f"SHOW {setting}"), [wanted], setting)
    equal(s.store.query("SELECT count(*) FROM pg_stat_activity "
                        "WHERE application_name = 'jobflowd' AND state LIKE 'idle in%'"),
          [("0",)], "transactions left open")


def a_pooler_is_noticed(s):
    """With named statements asked for: the node says what to set, and works all the same."""
    equal(s.nodes[0].terminate(), 0, "exit status")
    node = s.node("named", {}).start()
    warnings = node.events("store.warning")
    check(any("store.named_statements" in line["msg"] for line in warnings),
          f"the log says what to set: {node.log_tail()}")
    life_cycle(s, node, "named")
    s.flow(node, "named", 20)
    s.ledger.all_is_well()


def a_pooler_that_crashes(s):
    errors = []

    def run():
        try:
            s.flow(s.nodes[-1], "crash", 100)
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)

    flow = threading.Thread(target=run)
    flow.start()
    for _ in range(3):
        before = len(s.ledger.accepted)
        wait_until(lambda n=before: len(s.ledger.accepted) > n + 100 or errors, 60,
                   "tasks are accepted")
        check(flow.is_alive(), "the crash would come too late")
        s.pooler.stop()
        s.pooler.start()
    flow.join()
    check(not errors, f"clients failed: {errors}")
    s.ledger.all_is_well()


def the_logs_are_clean(s):
    for node in s.nodes:
        text = node.log_file.read_text()
        check("prepared statement" not in text, f"{node.log_file.name} speaks of statements")
        others = [line for line in node.log() if line["level"] == "error"
                  and line["event"] not in ("store.down", "task.failed")]
        check(not others, f"errors: {others[:5]}")
    check("prepared statement" not in s.server_log(), "the server's log speaks of statements")
    check("unsupported startup parameter" not in s.pooler.log_file.read_text(),
          "a parameter was refused")
    sessions = int(s.store.query("SELECT count(*) FROM pg_stat_activity "
                                 "WHERE backend_type = 'client backend'")[0][0]) - 1
    check(sessions <= N_SESSIONS, f"{sessions} sessions")
    diagnose(f"{len(s.ledger.accepted)} tasks by {ENV['JOBFLOW_STORE_CONNECTIONS']} connections "
             f"over {sessions} sessions")


CASES = [
    two_nodes_migrate_at_once,
    database_53_works_behind_a_transaction_pooler,
    no_statement_waits_for_ever,
    nothing_is_left_in_the_sessions,
    a_pooler_is_noticed,
    a_pooler_that_crashes,
    the_logs_are_clean,
]


if __name__ == "__main__":
    lib.main(Stage, CASES)
