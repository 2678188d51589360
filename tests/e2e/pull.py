#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Services whose workers lease their tasks: pull.py sqlite|postgres|mysql.

One node first; with a database that is a server also three members, of which workers ask any.
"""

import collections
import concurrent.futures
import contextlib
import http.server
import itertools
import json
import signal
import socket
import sqlite3
import struct
import sys
import threading

import lib
from lib import check, equal, stays, wait_until

POLLS = 8  # that may wait for one service


class Worker:
    """A client of its own that leases and reports."""

    def __init__(self, port, service):
        self.client = lib.Client(port, timeout=90)
        self.service = service

    def poll(self, **request):
        return self.client.post(f"/api/services/{self.service}/lease", request)

    def lease(self, **request):
        answer = self.poll(**{"wait": "20s", "maxTasks": 100, **request})
        equal(answer.status, 200, f"a lease: {answer.body}")
        return answer.body["tasks"]

    def report(self, tasks, **result):
        """The statuses of the parts."""
        result = result or {"success": True}
        answer = self.client.post("/api/attempts/results", {"results": [
            {"traceId": t["traceId"], "attempt": t["attempt"], **result} for t in tasks]})
        equal(answer.status, 200, f"the report: {answer.body}")
        return [part["status"] for part in answer.body["results"]]

    def beat(self, tasks, **more):
        answer = self.client.post("/api/attempts/heartbeats", {"attempts": [
            {"traceId": t["traceId"], "attempt": t["attempt"], **more} for t in tasks]})
        equal(answer.status, 200, f"the heartbeats: {answer.body}")
        return answer.body["results"]

    def close(self):
        self.client.close()


class Stage:
    def __init__(self, kind, folder):
        self.store = lib.STORES[kind](folder)
        self.receiver = lib.Receiver()
        self.node = lib.Node(folder, self.store.url, {
            "JOBFLOW_PULL_MAX_POLLS_PER_SERVICE": str(POLLS), "JOBFLOW_LOG_LEVEL": "debug"}).start()
        self.workers = []

    def service(self, name, **more):
        answer = self.node.client.put(f"/api/services/{name}", {"delivery": {"mode": "pull"}, **more})
        check(answer.status in (200, 201), f"PUT {name}: {answer}")
        return name

    def worker(self, service):
        self.workers.append(Worker(self.node.port, service))
        return self.workers[-1]

    def close(self):
        for worker in self.workers:
            worker.close()
        self.node.close()
        self.receiver.close()
        self.store.close()


def submit_many(client, service, tag, count, **more):
    """Returns the trace ids."""
    traces = []
    for first in range(0, count, 1000):
        answer = client.post("/api/delay-tasks/batch", {"tasks": [
            {"bizUuid": f"{tag}-{i}", "serviceName": service, "handler": "h", "payload": {"n": i}, **more}
            for i in range(first, min(first + 1000, count))]})
        equal({part["status"] for part in answer.body["results"]}, {201}, "the submissions")
        traces += [part["task"]["traceId"] for part in answer.body["results"]]
    return traces


def waits_for_a_worker(node, biz_uuid):
    return node.client.get(f"/api/delay-tasks/{biz_uuid}/explain").body["gate"] == "worker"


def keys_of(tasks):
    return sorted(t["bizUuid"] for t in tasks)


def work_off(workers, count, seconds=60):
    """All lease and report until so many tasks are done; returns (traceId, attempt) in order."""
    seen, lock, over = [], threading.Lock(), threading.Event()

    def loop(worker):
        while not over.is_set():
            tasks = worker.lease(wait="500ms")
            with lock:
                seen.extend((t["traceId"], t["attempt"]) for t in tasks)
            if tasks:
                equal({t["retryCount"] for t in tasks}, {0}, "no try was used up on the way")
                equal(set(worker.report(tasks)), {200}, "the results")
            with lock:
                if len(seen) >= count:
                    over.set()
    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        running = [pool.submit(loop, worker) for worker in workers]
        try:
            wait_until(lambda: over.is_set() or any(r.done() for r in running), seconds,
                       "all tasks are done")
        finally:
            over.set()
        for one in running:
            one.result()
    return seen


# ---- One node -----------------------------------------------------------------------------------

def each_attempt_is_handed_out_once(s):
    service = s.service("many")
    workers = [s.worker(service) for _ in range(6)]
    count = 5000
    traces = []
    submitting = threading.Thread(target=lambda: traces.extend(
        submit_many(s.worker(service).client, service, "many", count)))
    submitting.start()
    seen = work_off(workers, count)
    submitting.join()
    equal(len(seen), len(set(seen)), "attempts that were handed out")
    equal(sorted(seen), sorted((trace, 1) for trace in traces), "what was handed out")
    rows = s.store.query("SELECT count(*) FROM job_delay_task_history WHERE service_name = 'many' "
                         "AND status = 'SUCCESS'")
    equal(int(rows[0][0]), count, "finished")


def a_poll_that_waits_is_served_at_once(s):
    worker = s.worker(s.service("waiting"))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for i in range(10):
            poll = pool.submit(worker.lease, wait="60s")
            s.node.submit(f"waiting-{i}", "waiting", delay="50ms", payload={"i": i})
            task, = poll.result(30)
            equal((task["bizUuid"], task["payload"]), (f"waiting-{i}", {"i": i}))
            worker.report([task])


def what_a_lease_looks_like(s):
    worker = s.worker(s.service("looks", timeout="30s"))
    s.node.submit("looks-1", "looks", payload={"n": 1.50})
    wait_until(lambda: waits_for_a_worker(s.node, "looks-1"), 20, "it waits for a worker")
    s.node.submit("looks-2", "looks", timeout="7s")
    tasks = wait_until(lambda: worker.lease(visibility="1h", worker="worker-7"), 20, "a lease")
    tasks += [] if len(tasks) == 2 else worker.lease(visibility="1h")
    first, second = sorted(tasks, key=lambda t: t["bizUuid"])
    sent = lib.parse_time(first["sentTime"])
    check(3_500_000 < lib.parse_time(first["deadline"]) - sent <= 3_601_000, f"{first}")
    check(lib.parse_time(second["deadline"]) - sent <= 8_000, f"its own time-out: {second}")
    equal(lib.parse_time(first["leaseUntil"]) - lib.parse_time(first["deadline"]), 2000, "the margin")
    record = s.node.task("looks-1")
    equal((record["status"], record["attempt"]), ("SENDING", 1))
    check(record["claimedBy"].startswith("node-a/") and record["claimedBy"].count("/") == 2, f"{record}")
    check("leased" in s.node.client.get("/api/delay-tasks/looks-1/explain").body["reason"], "the reason")
    equal(worker.report(tasks), [200, 200])


def a_worker_that_dies(s):
    worker = s.worker(s.service("dying"))
    s.node.submit("dying-1", "dying")
    first, = worker.lease(visibility="200ms")
    again, = worker.lease(wait="30s")
    equal((again["attempt"], again["retryCount"]), (2, 1), "leased again")
    check(lib.parse_time(again["sentTime"]) >= lib.parse_time(first["leaseUntil"]), "too early")
    equal(worker.report([first]), [409], "a late result")
    equal([part["status"] for part in worker.beat([first])], [409], "a late heartbeat")
    equal(worker.report([again, again]), [200, 200], "the result, twice")
    equal(worker.report([again], success=False), [409], "another result")


def heartbeats_keep_leases(s):
    worker = s.worker(s.service("beating"))
    submit_many(s.node.client, "beating", "beating", 3)
    tasks = []
    wait_until(lambda: tasks.extend(worker.lease(visibility="1s")) or len(tasks) == 3, 20, "the leases")
    kept, lost = tasks[:2], tasks[2]
    parts = worker.beat(kept, extend="60s")
    equal([part["status"] for part in parts], [200, 200])
    for part, task in zip(parts, kept):
        check(lib.parse_time(part["deadline"]) > lib.parse_time(task["leaseUntil"]) + 30000, f"{part}")
    again, = worker.lease(wait="30s")
    equal((again["traceId"], again["attempt"]), (lost["traceId"], 2), "the one without a heartbeat")
    equal(worker.report([*kept, again]), [200, 200, 200])


def results_of_every_kind(s):
    worker = s.worker(s.service("kinds"))
    submit_many(s.node.client, "kinds", "kinds", 3)
    tasks = []
    wait_until(lambda: tasks.extend(worker.lease()) or len(tasks) == 3, 20, "the leases")
    by_key = {t["bizUuid"]: t for t in tasks}
    equal(worker.report([by_key["kinds-0"]], success=False, retryable=False, message="never"), [200])
    equal(s.node.task("kinds-0")["status"], "FAILED")
    equal(worker.report([by_key["kinds-1"]], success=False, message="not now"), [200])
    equal(worker.report([by_key["kinds-2"]], snooze="300ms"), [200])
    again = []
    wait_until(lambda: again.extend(worker.lease()) or len(again) == 2, 20, "both again")
    equal(sorted((t["bizUuid"], t["attempt"], t["retryCount"]) for t in again),
          [("kinds-1", 2, 1), ("kinds-2", 2, 0)])
    equal(worker.report(again), [200, 200])
    attempts = s.node.task("kinds-1")["attempts"]
    equal([(a["outcome"], a["error"]) for a in attempts], [("retry", "not now")])


def paused_services_hold_their_tasks(s):
    worker = s.worker(s.service("resting"))
    s.node.client.post("/api/services/resting/pause")
    s.node.submit("held-back", "resting", delay="1h")
    wait_until(lambda: s.node.client.get("/api/delay-tasks/held-back/explain").body["gate"] == "paused",
               20, "the node knows")
    s.node.submit("resting-1", "resting")
    equal(worker.lease(wait="300ms"), [], "of a paused service")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        poll = pool.submit(worker.lease, wait="60s")
        s.node.client.post("/api/services/resting/resume")
        equal(keys_of(poll.result(30)), ["resting-1"])


def a_drained_node_hands_nothing_out(s):
    worker = s.worker(s.service("drained"))
    equal(s.node.client.post("/api/cluster/drain").status, 202)
    wait_until(lambda: s.node.metrics()["jobflow_owned_shards"] == 0, 20, "it owns nothing")
    s.node.submit("drained-1", "drained")
    equal(worker.lease(wait="300ms"), [])
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        poll = pool.submit(worker.lease, wait="60s")
        equal(s.node.client.post("/api/cluster/resume").status, 202)
        equal(keys_of(poll.result(30)), ["drained-1"])


def modes_change_and_nothing_is_lost(s):
    worker = s.worker(s.service("modes"))
    submit_many(s.node.client, "modes", "modes", 40)
    leased = []
    wait_until(lambda: leased.extend(worker.lease(maxTasks=1)) or len(leased) == 10, 20, "ten leases")
    idle = s.worker("modes")

    def is_pulled():
        return idle.poll(wait=0).status == 200
    s.node.register("modes", s.receiver.url)
    wait_until(lambda: s.receiver.count() == 30, 30, "the others are delivered")
    equal(worker.report(leased), [200] * 10, "what was leased before")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        s.service("modes")
        wait_until(is_pulled, 20, "pulled again")
        poll = pool.submit(idle.poll, wait="60s")
        s.node.register("modes", s.receiver.url)
        equal(poll.result(30).status, 409, "a poll whose service is pulled no more")
    s.service("modes")
    wait_until(is_pulled, 20, "pulled again")
    s.node.submit("modes-last", "modes")
    equal(keys_of(worker.lease()), ["modes-last"])
    done = s.store.query("SELECT count(*) FROM job_delay_task_history WHERE service_name = 'modes' "
                         "AND attempt = 1")
    equal(int(done[0][0]), 40, "done at the first attempt")


def hang_up(port, service, how):
    """Asks for a lease and is gone; returns once the request was taken."""
    body = json.dumps({"wait": "60s", "maxTasks": 100}).encode()
    with socket.create_connection((lib.HOST, port)) as s:
        s.sendall(b"POST /api/services/%s/lease HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s"
                  % (service.encode(), len(body), body))
        how(s)


def a_poll_that_hangs_up_takes_nothing(s):
    worker = s.worker(s.service("gone"))
    held = []

    def keep(connection):
        held.append(socket.socket(fileno=connection.detach()))

    def is_full():
        if worker.poll(wait=0).status == 503:
            return True
        hang_up(s.node.port, "gone", keep)
        return False
    wait_until(is_full, 20, "as many wait as may")
    answer = worker.poll(wait=0)
    check("retry-after" in answer.headers, f"{answer}")
    for connection in held:
        connection.close()
    wait_until(lambda: worker.poll(wait=0).status == 200, 20, "the node hears that they have gone")
    submit_many(s.node.client, "gone", "gone", 5)
    tasks = []
    wait_until(lambda: tasks.extend(worker.lease()) or len(tasks) == 5, 20, "the leases")
    equal({(t["attempt"], t["retryCount"]) for t in tasks}, {(1, 0)})
    equal(worker.report(tasks), [200] * 5)


@contextlib.contextmanager
def locked(store, biz_uuid):
    """Whoever claims the task waits meanwhile."""
    if store.kind == "sqlite":
        with contextlib.closing(sqlite3.connect(store.file, timeout=30, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")
        return
    import sqlsession  # pylint: disable=import-outside-toplevel
    open_session = {"postgres": sqlsession.PgSession, "mysql": sqlsession.MySession}[store.kind]
    with contextlib.closing(open_session(store.url)) as session:
        session.run("BEGIN")
        session.run(f"SELECT id FROM job_delay_task WHERE biz_uuid = '{biz_uuid}' FOR UPDATE")
        yield
        session.run("ROLLBACK")


def what_was_claimed_for_one_that_hung_up_is_given_back(s):
    worker = s.worker(s.service("back"))
    s.node.submit("back-1", "back")
    before = len(s.node.events("lease.hung_up", service="back"))

    def until_claiming(connection):
        wait_until(lambda: s.node.metrics()['jobflow_tasks_in_flight{stage="claiming"}'] == 1, 20,
                   "the claim is out")
        # With a reset, as of a machine that was switched off.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with locked(s.store, "back-1"):
        hang_up(s.node.port, "back", until_claiming)
        wait_until(lambda: len(s.node.events("lease.hung_up", service="back")) > before, 4,
                   "the node hears of it")
    tasks = []
    wait_until(lambda: tasks.extend(worker.lease()) or tasks, 30, "the lease")
    equal((tasks[0]["attempt"], tasks[0]["retryCount"]), (2, 0), "given back without using up a try")
    equal(worker.report(tasks), [200])


def claimed_so_far(s, service):
    return int(s.store.query("SELECT count(*) FROM job_delay_task WHERE attempt > 0 AND "
                             f"service_name = '{service}'")[0][0])


def no_more_is_claimed_than_goes_out(s):
    """An answer holds 4 MiB, and tasks that do not fit are not claimed for it."""
    worker = s.worker(s.service("big"))
    payload = {"text": "x" * 60000}
    for first in range(0, 400, 40):
        answer = s.node.client.post("/api/delay-tasks/batch", {"tasks": [
            {"bizUuid": f"big-{i}", "serviceName": "big", "handler": "h", "payload": payload}
            for i in range(first, first + 40)]})
        equal({part["status"] for part in answer.body["results"]}, {201}, "the submissions")
    wait_until(lambda: waits_for_a_worker(s.node, "big-399"), 20, "all are read")
    leased = []
    for known in (False, True):  # at first nothing is known of the payloads
        tasks = worker.lease(maxTasks=1000, visibility="5m")
        check(55 <= len(tasks) <= 75, f"4 MiB: {len(tasks)}")
        leased += tasks
        check(claimed_so_far(s, "big") <= len(leased) + 2, f"{claimed_so_far(s, 'big')} were claimed")
        steps = collections.Counter(s.node.task(t["bizUuid"])["claimedBy"] for t in tasks)
        equal(max(steps.values()) == len(tasks), known, f"claimed at once: {steps}")
    equal(set(worker.report(leased)), {200})
    # What is known is wrong by now.
    submit_many(s.node.client, "big", "small", 200, priority=9)
    seen = 0
    while seen < 200:
        tasks = worker.lease(maxTasks=1000 if seen == 0 else 200 - seen, visibility="5m")
        equal({t["bizUuid"].split("-")[0] for t in tasks[:200 - seen]}, {"small"}, "by priority")
        seen += len([t for t in tasks if t["bizUuid"].startswith("small")])
        worker.report(tasks)
    before = claimed_so_far(s, "big")
    tasks = worker.lease(maxTasks=1000)
    check(claimed_so_far(s, "big") - before <= 256, "16 MiB, however large they are")
    worker.report(tasks)


def small_tasks_fill_an_answer(s):
    worker = s.worker(s.service("filled"))
    submit_many(s.node.client, "filled", "filled", 700)
    wait_until(lambda: waits_for_a_worker(s.node, "filled-699"), 20, "all are read")
    tasks = worker.lease(maxTasks=600)
    check(16 < len(tasks) <= 600, f"in steps: {len(tasks)}")
    wait_until(lambda: tasks.extend(worker.lease(maxTasks=600)) or len(tasks) >= 700, 20, "all")
    equal(len({t["bizUuid"] for t in tasks}), 700)
    equal(worker.report(tasks), [200] * 700)


def tasks_do_not_wait_for_a_step_that_is_stuck(s):
    worker = s.worker(s.service("stuck"))
    submit_many(s.node.client, "stuck", "first", 16, priority=9)
    submit_many(s.node.client, "stuck", "later", 1, priority=0)
    for biz_uuid in ("first-15", "later-0"):
        wait_until(lambda b=biz_uuid: waits_for_a_worker(s.node, b), 20, "all are read")
    with locked(s.store, "later-0"), concurrent.futures.ThreadPoolExecutor(1) as pool:
        tasks = pool.submit(worker.lease, wait="60s").result(20)
        equal(keys_of(tasks), sorted(f"first-{i}" for i in range(16)))
    later, = wait_until(lambda: worker.lease(wait="1s"), 20, "the one that was stuck")
    equal((later["bizUuid"], later["attempt"], later["retryCount"]), ("later-0", 2, 0), "given back")
    equal(worker.report([*tasks, later]), [200] * 17)


def a_killed_node_leaves_leases_alone(s):
    worker = s.worker(s.service("killed"))
    submit_many(s.node.client, "killed", "killed", 4)
    first = worker.lease(maxTasks=2, visibility="5m")
    s.node.kill9()
    worker.close()
    s.node.start()
    # Twice the time between two full reads: what an earlier process was about to send is rescued by then.
    stays(lambda: s.node.task(first[0]["bizUuid"])["attempt"] == 1, 4, "a lease is the worker's")
    rest = []
    wait_until(lambda: rest.extend(worker.lease()) or len(rest) == 4 - len(first), 20, "the others")
    equal({t["attempt"] for t in rest}, {1}, "leased for the first time")
    equal(set(worker.report(first + rest)), {200}, "results of both")


def sigterm_ends_the_polls(s):
    worker = s.worker(s.service("stopping"))
    s.node.submit("stopping-1", "stopping")
    task, = worker.lease(visibility="5m")

    def patient():
        """The tasks that it gets in the end, though there may be no place for it at first."""
        one = s.worker("stopping")
        answers = []
        wait_until(lambda: answers.append(one.poll(wait="60s")) or answers[-1].status == 200, 90, "a place")
        return answers[-1].body["tasks"]
    with concurrent.futures.ThreadPoolExecutor(POLLS) as pool:
        polls = [pool.submit(patient) for _ in range(POLLS)]
        wait_until(lambda: worker.poll(wait=0).status == 503, 20, "as many wait as may")
        s.node.process.send_signal(signal.SIGTERM)
        equal([poll.result(30) for poll in polls], [[]] * POLLS, "of a node that stops")
    equal(s.node.process.wait(30), 0, "exit status")
    s.node.process = None
    worker.close()
    s.node.start()
    equal(worker.report([task]), [200], "a lease outlives the process")


def an_answer_that_is_cut_while_the_node_stops_is_given_back(s):
    """By a client that goes during stop.grace, and by the node at its end."""
    payload = {"text": "x" * 60000}
    for service, cut in (("cut-by-client", socket.socket.close),
                         ("cut-by-node", lambda _: s.node.process.send_signal(signal.SIGTERM))):
        s.service(service)
        for first in range(0, 60, 30):
            answer = s.node.client.post("/api/delay-tasks/batch", {"tasks": [
                {"bizUuid": f"{service}-{i}", "serviceName": service, "handler": "h", "payload": payload}
                for i in range(first, first + 30)]})
            equal({part["status"] for part in answer.body["results"]}, {201}, "the submissions")
        wait_until(lambda name=service: waits_for_a_worker(s.node, f"{name}-59"), 20, "all are read")
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.settimeout(30)
            slow.connect((lib.HOST, s.node.port))
            body = b'{"maxTasks":1000,"visibility":"5m"}'
            slow.sendall(b"POST /api/services/%s/lease HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s"
                         % (service.encode(), len(body), body))
            check(slow.recv(1), "the answer begins")
            before = len(s.node.events("node.stopping"))
            s.node.process.send_signal(signal.SIGTERM)
            wait_until(lambda n=before: len(s.node.events("node.stopping")) > n, 20, "it stops")
            cut(slow)
            equal(s.node.process.wait(30), 0, "exit status")
        for worker in s.workers:
            worker.close()
        s.node.start()
        rows = s.store.query("SELECT status, retry_count, count(*), sum(attempt) FROM job_delay_task "
                             f"WHERE service_name = '{service}' GROUP BY status, retry_count")
        equal([(str(row[0]), int(row[1]), int(row[2])) for row in rows], [("PENDING", 0, 60)], "in the store")
        check(int(rows[0][3]) > 0, "some were claimed")
        worker = s.worker(service)
        tasks = []
        wait_until(lambda w=worker, t=tasks: t.extend(w.lease(maxTasks=1000)) or len(t) >= 60, 30, "again")
        equal({t["retryCount"] for t in tasks}, {0}, "no try was used up")
        equal(set(worker.report(tasks)), {200})


def the_example_works(s):
    s.service("example")
    submit_many(s.node.client, "example", "example", 5)
    program = lib.ROOT / "examples" / "worker-python" / "worker.py"
    with open(s.node.folder / "worker.log", "wb") as log:
        worker = lib.spawn([sys.executable, program, f"http://{lib.HOST}:{s.node.port}", "example"], log)
    try:
        for i in range(5):
            equal(s.node.wait_status(f"example-{i}", "SUCCESS")["attempt"], 1)
        s.node.submit("example-late", "example", delay="300ms")
        s.node.wait_status("example-late", "SUCCESS")
    finally:
        worker.kill()
        worker.wait()


def who_cannot_lease(s):
    s.node.register("pushed", s.receiver.url)
    equal(s.worker("nobody").poll(wait=0).status, 404)
    answer = s.worker("pushed").poll(wait=0)
    equal((answer.status, answer.body["type"]), (409, "urn:jobflow:problem:not-pulled"))
    check("pull" in answer.body["hint"], f"{answer.body}")
    equal(s.worker("a%20b").poll(wait=0).status, 400)
    equal(s.worker("pushed").poll(maxTasks=0).status, 400)


ONE_NODE = (
    each_attempt_is_handed_out_once,
    a_poll_that_waits_is_served_at_once,
    what_a_lease_looks_like,
    a_worker_that_dies,
    heartbeats_keep_leases,
    results_of_every_kind,
    paused_services_hold_their_tasks,
    a_drained_node_hands_nothing_out,
    modes_change_and_nothing_is_lost,
    a_poll_that_hangs_up_takes_nothing,
    what_was_claimed_for_one_that_hung_up_is_given_back,
    no_more_is_claimed_than_goes_out,
    small_tasks_fill_an_answer,
    a_killed_node_leaves_leases_alone,
    sigterm_ends_the_polls,
    an_answer_that_is_cut_while_the_node_stops_is_given_back,
    the_example_works,
    who_cannot_lease,
)

SERVER = (  # SQLite: who holds one row up holds all of them up
    tasks_do_not_wait_for_a_step_that_is_stuck,
)


# ---- Members ------------------------------------------------------------------------------------

class Cluster:
    """The stage of members.py with services in pull mode."""

    def __init__(self, kind, folder):
        import members  # pylint: disable=import-outside-toplevel
        self.names = members.NAMES
        members.ENV["JOBFLOW_LOG_LEVEL"] = "debug"
        self.stage = members.Stage(kind, folder)
        self.serial = itertools.count()

    def service(self, shards=1):
        name = f"pulled-{next(self.serial)}"
        self.stage.nodes["node-a"].client.put(f"/api/services/{name}", {
            "delivery": {"mode": "pull"}, "shards": shards})
        for node in self.names:
            wait_until(lambda n=node: (self.stage.view(n, name) or {}).get("services"), 20,
                       f"{node} knows {name}")
        return name

    def worker(self, node, service):
        return Worker(self.stage.nodes[node].port, service)

    @contextlib.contextmanager
    def claim_held_up(self):
        """A due task, its owner and another member; whoever claims it waits meanwhile."""
        service = self.service()
        owner = self.stage.nodes[self.stage.owner("node-a", service)]
        other = next(node for node in self.stage.nodes.values() if node is not owner)
        owner.submit(f"{service}-1", service)
        wait_until(lambda: waits_for_a_worker(owner, f"{service}-1"), 20, "the owner has it")
        with locked(self.stage.store, f"{service}-1"):
            yield service, owner, other

    def close(self):
        self.stage.close()


def any_member_may_be_asked(c):
    service = c.service()
    owner = c.stage.owner("node-a", service)
    for name in c.names:
        with contextlib.closing(c.worker(name, service)) as worker, \
                concurrent.futures.ThreadPoolExecutor(1) as pool:
            for i in range(5):
                poll = pool.submit(worker.lease, wait="60s", worker=f"w-{name}")
                c.stage.nodes[owner].submit(f"{service}-{name}-{i}", service, delay="50ms")
                task, = poll.result(30)
                equal((task["bizUuid"], task["attempt"]), (f"{service}-{name}-{i}", 1))
                equal(worker.report([task]), [200])
            answer = worker.poll(wait="1s")
            equal((answer.status, answer.body), (200, {"tasks": []}), f"at {name}")


def one_worker_drains_all_shards(c):
    service = c.service(shards=12)
    check(len(set(c.stage.view("node-a", service)["services"][0]["owners"])) == 3, "owners")
    traces = submit_many(c.stage.nodes["node-b"].client, service, service, 300)
    with contextlib.closing(c.worker("node-a", service)) as worker:
        seen = work_off([worker], 300)
    equal(sorted(trace for trace, _ in seen), sorted(traces), "what was handed out")


def workers_everywhere_share(c):
    service = c.service(shards=12)
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(contextlib.closing(c.worker(name, service)))
                   for name in c.names for _ in range(2)]
        traces = []
        submitting = threading.Thread(target=lambda: traces.extend(
            submit_many(lib.Client(c.stage.nodes["node-c"].port), service, service, 3000)))
        submitting.start()
        seen = work_off(workers, 3000)
        submitting.join()
    # Where a wait ended before the owner's answer came, the task was given back, and the attempt counted.
    equal(sorted(trace for trace, _ in seen), sorted(traces), "what was handed out")


def an_owner_dies(c):
    service = c.service()
    owner = c.stage.owner("node-a", service)
    other = next(name for name in c.names if name != owner)
    with contextlib.closing(c.worker(other, service)) as worker, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        c.stage.nodes[owner].submit(f"{service}-1", service)
        leased = worker.lease(visibility="5m")
        poll = pool.submit(worker.lease, wait="60s")
        c.stage.nodes[owner].kill9()
        c.stage.nodes[other].submit(f"{service}-2", service, delay="100ms")
        equal(keys_of(poll.result(60)), [f"{service}-2"], "after the take-over")
        equal(worker.report(leased), [200], "what was leased before")
    c.stage.nodes[owner].start()
    c.stage.settle(c.names)


def is_claiming(node):
    return node.metrics()['jobflow_tasks_in_flight{stage="claiming"}'] == 1


def comes_back_at_once(node, service):
    """The task, without using up a try, long before its lease is over."""
    with contextlib.closing(Worker(node.port, service)) as worker:
        tasks = wait_until(worker.lease, 20, "the task again")
        equal([(t["attempt"], t["retryCount"]) for t in tasks], [(2, 0)], "given back")
        equal(worker.report(tasks), [200])


def a_hang_up_elsewhere_gives_back_what_the_owner_claims(c):
    with c.claim_held_up() as (service, owner, other):
        def until_claiming(connection):
            wait_until(lambda: is_claiming(owner), 20, "the owner claims")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        hang_up(other.port, service, until_claiming)
        wait_until(lambda: other.events("lease.hung_up", service=service), 4, "the other one hears of it")
    wait_until(lambda: other.events("lease.given_back", service=service, tasks=1), 10,
               "the other one gives it back")
    comes_back_at_once(owner, service)


def a_wait_that_ends_first_gives_back_what_the_owner_claims(c):
    with c.claim_held_up() as (service, owner, other), \
            contextlib.closing(Worker(other.port, service)) as worker:
        equal(worker.poll(wait=0).body, {"tasks": []}, "in time")
        check(is_claiming(owner), "the owner still claims")
    wait_until(lambda: other.events("lease.given_back", service=service, tasks=1), 10,
               "the other one gives it back")
    comes_back_at_once(other, service)


def an_owner_gives_back_what_a_dead_member_asked_for(c):
    with c.claim_held_up() as (service, owner, other):
        hang_up(other.port, service, lambda _: (
            wait_until(lambda: is_claiming(owner), 20, "the owner claims"), other.kill9()))
        wait_until(lambda: owner.events("lease.hung_up", service=service), 4, "the owner hears of it")
    comes_back_at_once(owner, service)
    other.start()
    c.stage.settle(c.names)


class Stranger(http.server.BaseHTTPRequestHandler):
    """Has got a member's address, and answers as members do, but for the secret."""
    protocol_version = "HTTP/1.1"
    tasks = json.dumps({"tasks": [{"traceId": f"{1:016x}{2:016x}", "attempt": 1, "payload": None}]},
                       separators=(",", ":"))
    asked = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = b"{}"
        if self.path.startswith("/internal/lease"):
            self.asked.append(body)
            answer = self.tasks
            if len(self.asked) > 1:
                claims = json.dumps({"bytes": len(answer), "claims": [[1, 1, 0, 5, 0]]})
                answer += f"\n{claims}\n{lib.now_ms() // 1000} v1,{'A' * 43}="
            answer = answer.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


def only_a_member_is_believed(c):
    service = c.service()
    owner = c.stage.nodes[c.stage.owner("node-a", service)]
    other = next(node for node in c.stage.nodes.values() if node is not owner)
    Stranger.asked.clear()
    with contextlib.closing(Worker(other.port, service)) as worker:
        owner.kill9()
        server = http.server.ThreadingHTTPServer((lib.HOST, owner.port), Stranger)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            for _ in range(4):  # a call that failed is followed by a pause of half a second
                equal(worker.poll(wait="600ms").body, {"tasks": []}, "what a stranger said")
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    check(len(Stranger.asked) > 1, f"the stranger was asked {len(Stranger.asked)} times")
    owner.start()
    c.stage.settle(c.names)


def an_unreachable_owner_costs_an_empty_answer(c):
    service = c.service()
    owner = c.stage.owner("node-a", service)
    other = next(name for name in c.names if name != owner)
    with contextlib.closing(c.worker(other, service)) as worker:
        c.stage.nodes[owner].process.send_signal(signal.SIGSTOP)
        try:
            answer = worker.poll(wait="300ms")
            equal((answer.status, answer.body), (200, {"tasks": []}))
        finally:
            c.stage.nodes[owner].process.send_signal(signal.SIGCONT)
    c.stage.settle(c.names)


MEMBERS = (
    any_member_may_be_asked,
    one_worker_drains_all_shards,
    workers_everywhere_share,
    a_hang_up_elsewhere_gives_back_what_the_owner_claims,
    a_wait_that_ends_first_gives_back_what_the_owner_claims,
    an_owner_gives_back_what_a_dead_member_asked_for,
    an_unreachable_owner_costs_an_empty_answer,
    only_a_member_is_believed,
    an_owner_dies,
)


def main():
    kind = sys.argv[1]
    with lib.Workspace() as folder, contextlib.ExitStack() as stack:
        stage = stack.enter_context(contextlib.closing(Stage(kind, folder)))
        cases = lib.cases_of(ONE_NODE if kind == "sqlite" else ONE_NODE + SERVER, stage)
        if kind != "sqlite":
            cluster_folder = folder / "cluster"
            cluster_folder.mkdir(mode=0o755)
            cluster = []

            def members(case):
                if not cluster:
                    cluster.append(stack.enter_context(
                        contextlib.closing(Cluster(kind, cluster_folder))))
                case(cluster[0])
            cases += [(case.__name__.replace("_", " "), lambda c=case: members(c)) for case in MEMBERS]
        lib.run(cases)


if __name__ == "__main__":
    main()
