#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Batch push, many tasks in one request: batch.py sqlite|postgres|mysql.

One node serves all cases but those that stop it; each case uses a service of its own.
"""

import base64
import collections
import hashlib
import hmac
import json
import sys
import threading
import time

import lib
from ledger import Ledger
from lib import check, equal, wait_until

Part = collections.namedtuple("Part", "at_ms trace attempt biz handler")
SECRET = "a secret of the shop"
ENV = {"JOBFLOW_TASKS_MAX_PAYLOAD": "4MiB", "JOBFLOW_HTTP_MAX_BODY": "16MiB"}


def done(task, **more):
    return {"traceId": task["traceId"], "success": True, **more}


def results(tasks, answer=done):
    """One result per task; a task for which `answer` gives None has none."""
    parts = [answer(task) for task in tasks]
    return 200, {"results": [part for part in parts if part is not None]}


class Shop:
    """A service's handlers in batch mode, and the books of what came. `behave(tasks)` answers as a
    behaviour of lib.Receiver does; a request with a single envelope is one in push mode."""

    def __init__(self, behave=results):
        self.behave = behave
        self.lock = threading.Lock()
        self.deliveries = []  # Part: of both modes, as lib.Receiver has them
        self.requests = []    # (lib.Delivery, its tasks), of batch mode
        self.receiver = lib.Receiver(self.answer)
        self.url = self.receiver.url

    def close(self):
        self.receiver.close()

    def answer(self, delivery):
        envelope = delivery.envelope()
        tasks = envelope.get("tasks", [envelope])
        with self.lock:
            self.deliveries += [Part(delivery.at_ms, t["traceId"], t["attempt"], t["bizUuid"],
                                     t["handler"]) for t in tasks]
            if "tasks" in envelope:
                self.requests.append((delivery, tasks))
        return self.behave(tasks) if "tasks" in envelope else None

    def batches(self):
        """The keys of each request, in the order in which they came."""
        with self.lock:
            return [[t["bizUuid"] for t in tasks] for _, tasks in self.requests]

    def attempts(self):
        """By key: how many times it came."""
        with self.lock:
            return collections.Counter(part.biz for part in self.deliveries)


class Turns:
    """A behaviour that answers one way after the other; the last one stays."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.lock = threading.Lock()

    def __call__(self, tasks):
        with self.lock:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(tasks) if callable(answer) else answer


class Stage:
    """What the cases share."""

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, folder
        self.store = lib.STORES[kind](folder)
        self.node = lib.Node(folder, self.store.url, ENV).start()
        self.shops = []

    def close(self):
        self.node.close()
        for shop in self.shops:
            shop.close()
        self.store.close()

    def shop(self, name, behave=results, size=100, wait="20ms", **more):
        """Opens a service in batch mode."""
        shop = Shop(behave)
        self.shops.append(shop)
        self.register(name, shop, size, wait, **more)
        return shop

    def register(self, name, shop, size=100, wait="20ms", **more):
        self.node.register(name, shop.url, **more,
                           delivery={"mode": "batch", "maxSize": size, "maxWait": wait})

    def submit(self, service, keys, **more):
        """As one request, so that they are due together."""
        keys = list(keys)
        tasks = [{"bizUuid": key, "serviceName": service, "handler": "h", **more} for key in keys]
        answer = self.node.client.post("/api/delay-tasks/batch", {"tasks": tasks})
        equal([r["status"] for r in answer.body["results"]], [201] * len(keys), "submissions")
        return {key: r["task"]["traceId"] for key, r in zip(keys, answer.body["results"])}

    def all_are(self, keys, status="SUCCESS"):
        return [self.node.wait_status(key, status) for key in keys]

    def first_error(self, key):
        trace = self.node.task(key)["traceId"]
        return self.node.client.get(f"/api/traces/{trace}").body["attempts"][0]


def keys_of(name, n):
    return [f"{name}-{i}" for i in range(n)]


def ended(s, service, n):
    """Once that many tasks of the service stand in history."""
    query = f"SELECT count(*) FROM job_delay_task_history WHERE service_name = '{service}'"
    wait_until(lambda: s.store.query(query) == [(str(n),)], 60, f"{n} tasks of {service} ended")


# ---- What arrives -------------------------------------------------------------------------------

def thousands_take_few_requests(s):
    n, size = 5000, 100
    shop = s.shop("many", size=size)
    at = lib.now_ms() + 2500
    for first in range(0, n, 1000):
        s.submit("many", [f"many-{i}" for i in range(first, first + 1000)], executeTime=at)
    ended(s, "many", n)
    equal(set(shop.attempts().values()), {1}, "deliveries of each task")
    equal(len(shop.attempts()), n, "tasks delivered")
    check(min(part.at_ms for part in shop.deliveries) >= at, "one was early")
    batches = shop.batches()
    check(max(map(len, batches)) <= size, "a request has more than maxSize")
    check(len(batches) <= n // 10, f"{n} tasks took {len(batches)} requests")
    lib.diagnose(f"{n} tasks took {len(batches)} requests")


def what_a_request_looks_like(s):
    shop = s.shop("looks", secret=SECRET)
    payloads = [b'{"a" : 18446744073709551615}', b"[1e400, 1.10]", b'"\\ud83d\\ude00"', b"null"]
    tasks = [b'{"bizUuid":"looks-%d","serviceName":"looks","handler":"h","payload":%b}' % pair
             for pair in enumerate(payloads)]
    s.node.client.post("/api/delay-tasks/batch", b'{"tasks":[' + b",".join(tasks) + b"]}")
    s.all_are(keys_of("looks", 4))
    delivery, _ = shop.requests[0]
    equal(len(shop.requests), 1, "requests")
    for payload in payloads:
        check(b'"payload":' + payload + b"," in delivery.body, f"{payload} is not there as it was")
    equal(delivery.path, "/h")
    for task in delivery.envelope()["tasks"]:
        equal(sorted(task), sorted([
            "traceId", "bizUuid", "serviceName", "handler", "attempt", "retryCount", "executeTime",
            "sentTime", "deadline", "payload", "traceparent"]), "members of an envelope")
        equal(task["traceparent"].split("-")[:2], ["00", task["traceId"]])
    headers = delivery.headers
    equal(headers["x-jobflow-batch"], "4")
    equal([name for name in ("traceparent", "x-trace-id", "x-jobflow-attempt", "idempotency-key")
           if name in headers], [], "headers that belong to one task")
    signed = b"%b.%b.%b" % (headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(),
                            delivery.body)
    mac = hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()
    equal(headers["webhook-signature"], "v1," + base64.b64encode(mac).decode())


def size_handler_and_time_out_keep_apart(s):
    shop = s.shop("apart", size=3, wait="500ms")
    tasks = [("a", None)] * 4 + [("b", None)] * 2 + [("b", "5s")] * 2
    s.node.client.post("/api/delay-tasks/batch", {"tasks": [
        {"bizUuid": f"apart-{i}", "serviceName": "apart", "handler": handler,
         **({"timeout": timeout} if timeout else {})} for i, (handler, timeout) in enumerate(tasks)]})
    s.all_are(keys_of("apart", len(tasks)))
    equal(sorted(sorted(keys) for keys in shop.batches()),
          [["apart-0", "apart-1", "apart-2"], ["apart-3"], ["apart-4", "apart-5"],
           ["apart-6", "apart-7"]])


def no_more_requests_than_its_concurrency(s):
    gate = threading.Event()
    shop = s.shop("narrow", lambda tasks: gate.wait(30) and results(tasks), size=50, wait="0s",
                  concurrency=2)
    keys = keys_of("narrow", 60)
    for key in keys:
        s.node.submit(key, "narrow")
    wait_until(lambda: len(shop.batches()) == 2, 20, "two requests")
    lib.stays(lambda: len(shop.batches()) == 2, 0.5, "a third request")
    gate.set()
    s.all_are(keys)
    equal(set(shop.attempts().values()), {1}, "deliveries of each task")
    check(len(shop.batches()) <= 6, f"what waited did not gather: {shop.batches()}")


def huge_payloads_do_not_share_a_request(s):
    shop = s.shop("huge", wait="300ms")
    at = lib.now_ms() + 1500
    for key, size in (("huge-0", 10), ("huge-1", 3 << 20), ("huge-2", 3 << 20), ("huge-3", 10)):
        s.node.submit(key, "huge", payload="x" * size, executeTime=at)
    s.all_are(keys_of("huge", 4))
    equal(set(shop.attempts().values()), {1}, "deliveries of each task")
    check(all(len(delivery.body) < 4 << 20 for delivery, _ in shop.requests), "a request above 4 MiB")
    check(not any({"huge-1", "huge-2"} <= set(keys) for keys in shop.batches()), "both at once")


# ---- What is answered ---------------------------------------------------------------------------

def each_task_has_its_own_result(s):
    said = {
        "own-0": lambda t: done(t),
        "own-1": lambda t: done(t, success=False, message="no stock"),
        "own-2": lambda t: done(t, success=False, retryable=False, message="no such order"),
        "own-3": lambda t: {"traceId": t["traceId"], "snooze": "300ms"},
        "own-4": lambda t: None,
        "own-5": lambda t: {"traceId": t["traceId"], "status": 503, "retryAfter": "1s"},
    }
    shop = s.shop("own", Turns(lambda tasks: results(tasks, lambda t: said[t["bizUuid"]](t)),
                               results))
    s.submit("own", said)
    s.all_are([key for key in said if key != "own-2"])
    failed = s.node.wait_status("own-2", "FAILED")
    equal((failed["lastError"], failed["attempt"]), ("no such order", 1))
    equal(shop.attempts(), {"own-0": 1, "own-2": 1, "own-1": 2, "own-3": 2, "own-4": 2, "own-5": 2})
    equal([s.node.task(f"own-{i}")["retryCount"] for i in (0, 1, 3, 4, 5)], [0, 1, 0, 1, 1],
          "tries used up")
    equal(s.first_error("own-1")["error"], "no stock")
    equal(s.first_error("own-4")["error"], "the answer has no result for this task")
    equal(s.first_error("own-5")["httpStatus"], 503)


def an_answer_that_says_nothing_is_no_success(s):
    answers = [(200, b"{not JSON"), (200, b""), (200, {"success": True}), (200, {"results": {}}),
               (500, b"oops"), (503, b"", {"Retry-After": "0"}), (204, b"")]
    shop = s.shop("nothing", Turns(*answers, results))
    s.submit("nothing", keys_of("nothing", 3), maxRetry=20)
    tasks = s.all_are(keys_of("nothing", 3))
    equal({t["attempt"] for t in tasks}, {len(answers) + 1}, "attempts")
    equal(set(shop.attempts().values()), {len(answers) + 1}, "deliveries")
    trace = s.node.client.get(f"/api/traces/{tasks[0]['traceId']}").body
    check(all(attempt["error"] for attempt in trace["attempts"]), "an attempt failed without a word")


def strangers_and_contradictions_do_no_harm(s):
    def odd(tasks):
        first, second, third = tasks
        return 200, {"results": [
            done({"traceId": "f" * 32}), done(first), done(second), done(second, success=False),
            done(third), done(third), 7]}
    shop = s.shop("odd", Turns(odd, results))
    s.submit("odd", keys_of("odd", 3))
    s.all_are(keys_of("odd", 3))
    equal(shop.attempts(), {"odd-0": 1, "odd-1": 2, "odd-2": 1})
    check("contradict" in s.first_error("odd-1")["error"], s.first_error("odd-1"))
    check(s.node.events("batch.alien_results", service="odd"), "no word about the stranger")


def one_bad_task_does_not_spoil_the_rest(s):
    def picky(tasks):
        bad = any(t["bizUuid"] == "picky-3" for t in tasks)
        return (400, b"no such order") if bad else results(tasks)
    shop = s.shop("picky", picky)
    keys = keys_of("picky", 8)
    s.submit("picky", keys, maxRetry=0)
    s.all_are([key for key in keys if key != "picky-3"])
    failed = s.node.wait_status("picky-3", "FAILED")
    equal(failed["lastError"], "HTTP 400: no such order")
    check(2 <= failed["attempt"] <= 11, f"{failed['attempt']} attempts")
    equal(len(shop.batches()[0]), 8, "tasks of the first request")


def a_bad_task_is_found_by_halving(s):
    n = 200

    def picky(tasks):
        bad = any(t["bizUuid"] == "halved-77" for t in tasks)
        return (422, b"no such order") if bad else results(tasks)
    shop = s.shop("halved", picky, size=n, wait="300ms")
    keys = keys_of("halved", n)
    s.submit("halved", keys, maxRetry=0)
    equal(s.node.wait_status("halved-77", "FAILED")["lastError"], "HTTP 422: no such order")
    s.all_are([key for key in keys if key != "halved-77"])
    check(len(shop.batches()) <= 40, f"{n} tasks took {len(shop.batches())} requests")


def a_handler_that_takes_no_batches_is_named(s):
    shop = s.shop("single", lambda tasks: 400 if len(tasks) > 1 else results(tasks))
    for part in range(2):
        keys = [f"single-{part}-{i}" for i in range(60)]
        s.submit("single", keys, maxRetry=0)
        s.all_are(keys)
    check(s.node.events("batch.refused", service="single", httpStatus=400), "no word about it")
    last = [batch for batch in shop.batches() if batch[0].startswith("single-1")]
    check(sum(len(batch) > 1 for batch in last) < 20, "all were halved again")
    check(not s.node.events("batch.refused", service="picky"), "one bad task is none that takes none")


def settings_written_by_hand_stay_within_their_limits(s):
    def by_hand(size, wait_ms):
        s.store.query(f"UPDATE job_service SET batch_size = {size}, batch_wait_ms = {wait_ms} "
                      "WHERE name = 'byhand'")
        for word in ("pause", "resume"):  # sees to it that the node reads the row
            s.node.client.post(f"/api/services/byhand/{word}")
        equal(s.node.client.get("/api/services/byhand").body["delivery"],
              {"mode": "batch", "maxSize": min(max(size, 1), 1000), "maxWait": "1s" if wait_ms > 0 else "0s"})
    shop = s.shop("byhand", size=10)
    by_hand(0, -5)
    s.submit("byhand", keys_of("byhand-few", 5))
    s.all_are(keys_of("byhand-few", 5))
    equal({len(batch) for batch in shop.batches()}, {1})
    by_hand(3000, 1 << 30)
    at = lib.now_ms() + 2000
    for part in range(3):
        s.submit("byhand", keys_of(f"byhand-{part}", 1000), executeTime=at)
    ended(s, "byhand", 3005)
    check(max(map(len, shop.batches())) <= 1000, "more than 1,000 tasks in a request")
    equal(set(shop.attempts().values()), {1}, "deliveries of each task")


def a_limit_of_the_body_is_found(s):
    limit = 20_000

    def small(tasks):
        return 413 if len(json.dumps(tasks)) > limit else results(tasks)
    shop = s.shop("limit", small, wait="0s")
    for part in range(4):
        keys = [f"limit-{part}-{i}" for i in range(100)]
        s.submit("limit", keys, payload="x" * 300, maxRetry=0)
        s.all_are(keys)
    with shop.lock:
        refused = [tasks for _, tasks in shop.requests if len(json.dumps(tasks)) > limit]
        last = [tasks for _, tasks in shop.requests if tasks[0]["bizUuid"].startswith("limit-3")]
    check(refused, "nothing was too big")
    check(max(map(len, last)) > 1, "the last hundred went one by one")
    check(all(len(json.dumps(tasks)) <= limit for tasks in last), "the limit was not learned")


def a_small_task_that_is_too_big_leaves_the_limit(s):
    def odd(tasks):
        return 413 if any(t["bizUuid"].startswith("poison-") for t in tasks) else results(tasks)
    shop = s.shop("poisoned", odd, size=50, wait="300ms")
    for part in range(9):
        keys = [f"poisoned-{part}-{i}" for i in range(49)]
        s.submit("poisoned", [f"poison-{part}", *keys], payload="x" * 300, maxRetry=0)
        s.node.wait_status(f"poison-{part}", "FAILED")
        s.all_are(keys)
    s.submit("poisoned", keys_of("poisoned-last", 50), payload="x" * 300)
    s.all_are(keys_of("poisoned-last", 50))
    equal([len(batch) for batch in shop.batches() if batch[0].startswith("poisoned-last")], [50])


def a_limit_of_the_body_grows_again(s):
    limit = 20_000

    def small(tasks):
        return 413 if len(json.dumps(tasks)) > limit else results(tasks)
    shop = s.shop("grows", small, wait="300ms")
    keys = keys_of("grows", 100)
    s.submit("grows", keys, payload="x" * 300, maxRetry=0)
    s.all_are(keys)
    check(s.node.events("batch.body_limit", service="grows", level="warn"), "no word about it")
    limit = 1 << 30
    tasks = [{"bizUuid": f"grows-{i}", "serviceName": "grows", "handler": f"h{i}"} for i in range(100, 200)]
    s.node.client.post("/api/delay-tasks/batch", {"tasks": tasks})  # a request for each handler
    s.all_are([task["bizUuid"] for task in tasks])
    keys = keys_of("grown", 100)
    s.submit("grows", keys, payload="x" * 300, maxRetry=0)
    s.all_are(keys)
    equal([len(batch) for batch in shop.batches() if batch[0].startswith("grown")], [100])


def a_time_out_fails_all_in_it(s):
    over = threading.Event()
    shop = s.shop("slow", Turns(lambda tasks: over.wait(30) and results(tasks), results),
                  timeout="1500ms")  # enough for the second turn on a busy machine
    s.submit("slow", keys_of("slow", 5))
    tasks = s.all_are(keys_of("slow", 5))
    over.set()
    equal({(t["attempt"], t["retryCount"]) for t in tasks}, {(2, 1)})
    equal(set(shop.attempts().values()), {2}, "deliveries of each task")


def accepted_parts_end_with_their_results(s):
    def accept(tasks):
        return results(tasks, lambda t: {
            "async-0": done(t), "async-1": {"traceId": t["traceId"], "accepted": True},
            "async-2": {"traceId": t["traceId"], "status": 202}}[t["bizUuid"]])
    s.shop("async", accept)
    traces = s.submit("async", keys_of("async", 3))
    s.all_are(["async-0"])
    s.all_are(["async-1", "async-2"], "SENT")
    for key, said, status in (("async-1", True, "SUCCESS"), ("async-2", False, "FAILED")):
        answer = s.node.client.post(f"/api/attempts/{traces[key]}/1/result",
                                    {"success": said, **({} if said else {"retryable": False})})
        equal((answer.status, answer.body["status"]), (200, status))


def a_dead_instance_costs_no_attempt(s):
    shop = s.shop("pods")
    for name, url in (("dead", f"http://{lib.HOST}:{lib.free_port()}"), ("live", shop.url)):
        s.node.client.post("/api/services/pods/instances",
                           {"instance": name, "baseUrl": f"{url}/{name}", "ttl": "60s"})
    for part in range(2):
        keys = [f"pods-{part}-{i}" for i in range(10)]
        s.submit("pods", keys)
        equal({t["attempt"] for t in s.all_are(keys)}, {1}, "attempts")
    equal({delivery.path for delivery, _ in shop.requests}, {"/live/h"})
    equal(set(shop.attempts().values()), {1}, "deliveries of each task")


def the_example_takes_batches(s):
    program = lib.ROOT / "examples" / "executor-python" / "executor.py"
    port = lib.free_port()
    s.node.register("python", f"http://{lib.HOST}:{port}/jobflow", secret=SECRET,
                    delivery={"mode": "batch", "maxWait": "300ms"})
    with open(s.folder / "example.log", "ab") as log:
        process = lib.spawn([sys.executable, program, str(port), f"http://{lib.HOST}:{s.node.port}", SECRET],
                            log)
    try:
        wait_until(lambda: s.node.client.get("/api/services/python/instances").body["instances"], 20,
                   "the example is registered")
        tasks = [{"name": "you"}, {"name": "me"}, {}, None]
        s.node.client.post("/api/delay-tasks/batch", {"tasks": [
            {"bizUuid": f"greet-{i}", "serviceName": "python", "handler": "greet", "payload": payload,
             "maxRetry": 0} for i, payload in enumerate(tasks)]})
        s.all_are(["greet-0", "greet-1"])
        failed = s.all_are(["greet-2", "greet-3"], "FAILED")
        equal(failed[0]["lastError"], "a greeting needs a name")
        check("TypeError" in failed[1]["lastError"], failed[1])
    finally:
        process.terminate()
        process.wait(20)


# ---- Beside others, and changes -----------------------------------------------------------------

def a_stuck_batch_service_holds_nobody_up(s):
    gate = threading.Event()
    shop = s.shop("stuck", lambda tasks: gate.wait(60) and results(tasks), concurrency=4)
    other = lib.Receiver()
    s.node.register("fluid", other.url)
    keys = keys_of("stuck", 900)
    s.submit("stuck", keys)
    wait_until(lambda: len(shop.batches()) == 4, 20, "the batch service is busy")
    for key in keys_of("fluid", 20):
        s.node.submit(key, "fluid")
    s.all_are(keys_of("fluid", 20))
    check(not gate.is_set() and len(shop.batches()) == 4, "the batch service went on")
    gate.set()
    ended(s, "stuck", len(keys))
    equal(set(shop.attempts().values()), {1}, "deliveries of each task")
    other.close()


def gathered_behind_a_request(s, name, gate):
    """Five tasks are in a request that stays out until the gate opens, 15 more are claimed."""
    shop = s.shop(name, lambda tasks: gate.wait(60) and results(tasks), size=50, concurrency=1)
    keys = keys_of(name, 20)
    s.submit(name, keys[:5])
    wait_until(lambda: len(shop.batches()) == 1, 20, "the first request")
    s.submit(name, keys[5:])
    wait_until(lambda: all(s.node.task(key)["status"] == "SENDING" for key in keys), 20,
               "the others are claimed")
    return shop, keys


def pausing_gives_back_what_has_not_left(s):
    gate = threading.Event()
    shop, keys = gathered_behind_a_request(s, "paused", gate)
    s.node.client.post("/api/services/paused/pause")
    wait_until(lambda: sum(t["status"] == "PENDING" for t in map(s.node.task, keys)) == 15, 20,
               "what has not left is given back")
    gate.set()
    s.all_are(shop.batches()[0])
    equal(len(shop.batches()), 1, "requests while it is paused")
    s.node.client.post("/api/services/paused/resume")
    equal({t["retryCount"] for t in s.all_are(keys)}, {0}, "tries used up")
    equal(set(shop.attempts().values()), {1}, "deliveries of each task")


def what_waited_too_long_is_given_back(s):
    gate = threading.Event()
    shop, keys = gathered_behind_a_request(s, "late", gate)
    time.sleep(2.2)  # the ghost margin of lib.QUICK: nothing may leave any more
    gate.set()
    tasks = s.all_are(keys)
    equal([(t["attempt"], t["retryCount"]) for t in tasks], [(1, 0)] * 5 + [(2, 0)] * 15)
    equal(sorted({(part.biz, part.attempt) for part in shop.deliveries}),
          sorted((t["bizUuid"], t["attempt"]) for t in tasks), "what was delivered")


def changing_the_mode_loses_nothing(s):
    n = 1500
    shop = s.shop("modes")
    ledger = Ledger(s.store, shop, "modes")
    over = threading.Event()

    def change():
        client = lib.Client(s.node.port)
        for turn in range(1000):
            if over.wait(0.15):
                break
            mode = {"mode": "batch", "maxSize": 10, "maxWait": "30ms"} if turn % 2 else {"mode": "push"}
            client.put("/api/services/modes", {"baseUrl": shop.url, "delivery": mode})
        client.close()
    changer = threading.Thread(target=change)
    changer.start()
    for first in range(0, n, 50):
        ledger.submit_batch(s.node.client, [ledger.task(f"modes-{i}") for i in range(first, first + 50)])
        time.sleep(0.05)
    ended(s, "modes", n)
    over.set()
    changer.join()
    ledger.nothing_is_lost()
    ledger.nothing_is_early()
    ledger.no_attempt_is_delivered_twice()
    batched = sum(map(len, shop.batches()))
    check(0 < batched < n, f"{batched} of {n} tasks went in batches")
    query = "SELECT sum(retry_count) FROM job_delay_task_history WHERE service_name = 'modes'"
    equal(s.store.query(query), [("0",)], "tries used up")


# ---- Ends of the node ---------------------------------------------------------------------------

def stopping_gives_back_what_has_not_left(s):
    gate = threading.Event()
    shop, keys = gathered_behind_a_request(s, "drain", gate)
    threading.Timer(0.5, gate.set).start()
    equal(s.node.terminate(), 0, "exit status")
    rows = s.store.query("SELECT status, retry_count, count(*) FROM job_delay_task "
                         "WHERE service_name = 'drain' GROUP BY status, retry_count")
    equal(rows, [("PENDING", "0", "15")], "what is left")
    s.node.start()
    equal({t["retryCount"] for t in s.all_are(keys)}, {0}, "tries used up")
    equal(set(shop.attempts().values()), {1}, "deliveries of each task")


def kill9_loses_nothing_and_sends_no_attempt_twice(s):
    n, n_kills = 2000, 4
    shop = s.shop("killed", lambda tasks: time.sleep(0.02) or results(tasks), size=20)
    ledger = Ledger(s.store, shop, "killed")
    kills = 0
    for first in range(0, n, 100):
        tasks = [ledger.task(f"killed-{i}", delay=f"{i * 7 % 1500}ms") for i in range(first, first + 100)]
        ledger.submit_batch(s.node.client, tasks)
        if len(ledger.accepted) * n_kills >= (kills + 1) * n:
            wait_until(lambda: len(shop.deliveries) * 2 >= len(ledger.accepted), 60, "half of them came")
            s.node.kill9()
            s.node.start(ready=False)
            kills += 1
    equal(kills, n_kills, "kills")
    ended(s, "killed", n)
    ledger.nothing_is_lost()
    ledger.nothing_is_early()
    ledger.no_attempt_is_delivered_twice()
    query = "SELECT status, count(*) FROM job_delay_task_history WHERE service_name = 'killed' GROUP BY status"
    equal(s.store.query(query), [("SUCCESS", str(n))], "ends")


CASES = [
    thousands_take_few_requests,
    what_a_request_looks_like,
    size_handler_and_time_out_keep_apart,
    no_more_requests_than_its_concurrency,
    huge_payloads_do_not_share_a_request,
    each_task_has_its_own_result,
    an_answer_that_says_nothing_is_no_success,
    strangers_and_contradictions_do_no_harm,
    one_bad_task_does_not_spoil_the_rest,
    a_bad_task_is_found_by_halving,
    a_handler_that_takes_no_batches_is_named,
    settings_written_by_hand_stay_within_their_limits,
    a_limit_of_the_body_is_found,
    a_small_task_that_is_too_big_leaves_the_limit,
    a_limit_of_the_body_grows_again,
    a_time_out_fails_all_in_it,
    accepted_parts_end_with_their_results,
    a_dead_instance_costs_no_attempt,
    the_example_takes_batches,
    a_stuck_batch_service_holds_nobody_up,
    pausing_gives_back_what_has_not_left,
    what_waited_too_long_is_given_back,
    changing_the_mode_loses_nothing,
    stopping_gives_back_what_has_not_left,
    kill9_loses_nothing_and_sends_no_attempt_twice,
]


if __name__ == "__main__":
    lib.main(Stage, CASES)
