#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The life of tasks against one running node: lifecycle.py sqlite|postgres|mysql.

One node and one receiver serve all cases; each case uses names of its own.
"""

import email.utils
import json
import re
import subprocess
import threading
import time

import lib
from lib import check, equal, now_ms, parse_time, wait_until

SERVICE = "shop"
SIGNED = "signed-shop"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ALERT_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


class Stage:
    """What the cases share."""

    def __init__(self, kind, folder):
        self.store = lib.STORES[kind](folder)
        self.handlers = lib.Handlers()
        self.receiver = lib.Receiver(self.handlers)
        self.alert_status = 200
        self.alerts = lib.Receiver(lambda delivery: self.alert_status)
        self.node = lib.Node(folder, self.store.url, {
            "JOBFLOW_ALERT_URL": f"{self.alerts.url}/alert",
            "JOBFLOW_ALERT_SECRET": ALERT_SECRET,
            "JOBFLOW_DELIVERY_URL_TEMPLATE": self.receiver.url + "/{namespace}/{service}",
            "JOBFLOW_DELIVERY_NAMESPACE": "prod",
        }).start()
        self.node.register(SERVICE, f"{self.receiver.url}/shop")

    def close(self):
        self.node.close()
        self.receiver.close()
        self.alerts.close()
        self.store.close()

    def submit(self, name, **more):
        """A task whose bizUuid and handler are both named after the case."""
        return self.node.submit(name, SERVICE, name, **more)

    def alerts_of(self, biz_uuid):
        with self.alerts.lock:
            deliveries = list(self.alerts.deliveries)
        return [d for d in deliveries if d.envelope()["data"]["bizUuid"] == biz_uuid]


def verify(secret, headers, body):
    """Exit status of the reference library's verdict: 0 right, 1 wrong, 2 cannot be told."""
    answer = subprocess.run(
        [lib.python_with_packages(), lib.ROOT / "tests" / "e2e" / "verify_webhook.py"],
        input=json.dumps({"secret": secret, "headers": headers, "body": body.decode()}),
        capture_output=True, check=False, text=True)
    if answer.returncode:
        lib.diagnose(answer.stderr)
    return answer.returncode


def far():
    return {"delay": "1h"}


def delivery_reaches_the_handler_byte_for_byte(s):
    payload = b'{"ns":18446744073709551615, "big":1e400,"d":1.10,"s":"\\u00e4 \xc3\xa4"}'
    body = b'{"bizUuid":"bytes","serviceName":"shop","handler":"bytes","payload":' + payload + b"}"
    answer = s.node.client.post("/api/delay-tasks", body)
    equal(answer.status, 201, "status")
    task = answer.body
    check(re.fullmatch("[0-9a-f]{32}", task["traceId"]), "the trace id is 32 hex digits")
    equal(int(task["traceId"][:16], 16), task["id"], "the id in the trace id")
    done = s.node.wait_status("bytes", "SUCCESS")
    delivery, = s.receiver.of(task["traceId"])
    check(payload in delivery.body, f"the payload changed: {delivery.body}")
    envelope = delivery.body.replace(payload, b"null")
    envelope = json.loads(envelope)
    equal(set(envelope), {"traceId", "bizUuid", "serviceName", "handler", "attempt", "retryCount",
                          "executeTime", "sentTime", "deadline", "payload"}, "the envelope's members")
    equal((envelope["bizUuid"], envelope["attempt"], envelope["retryCount"]), ("bytes", 1, 0))
    check(delivery.at_ms >= parse_time(task["executeTime"]), "delivered early")
    check(parse_time(envelope["deadline"]) > parse_time(envelope["sentTime"]), "the deadline")
    h = delivery.headers
    trace = task["traceId"]
    equal((h["x-trace-id"], h["idempotency-key"], h["webhook-id"]), (trace, trace, trace))
    check(re.fullmatch(f"00-{trace}-[0-9a-f]{{16}}-0[01]", h["traceparent"]), h["traceparent"])
    equal(h["x-jobflow-attempt"], "1")
    equal(h["content-type"], "application/json")
    check("expect" not in h and "webhook-signature" not in h, f"headers: {h}")
    equal(delivery.path, "/shop/bytes")
    check(parse_time(done["finishedAt"]) >= parse_time(done["executeTime"]) and
          done["durationMs"] >= 0, f"the record: {done}")


def payload_of_any_size_arrives_without_a_stall(s):
    # http-60: a sender that waits for 100 Continue would stall a second on each.
    text = "x" * 60000
    started = time.monotonic()
    for n in range(5):
        s.node.submit(f"large-{n}", SERVICE, "large", payload={"text": text})
    for n in range(5):
        s.node.wait_status(f"large-{n}", "SUCCESS")
    check(time.monotonic() - started < 5, "five large payloads took five seconds")
    for delivery in s.receiver.to("large"):
        equal(delivery.envelope()["payload"]["text"], text)
        check("expect" not in delivery.headers, "Expect was sent")


def a_repeat_returns_the_first_record(s):
    first = s.submit("repeat", payload={"a": 1, "b": 2}, **far())
    again = s.node.submit("repeat", SERVICE, "repeat", 200, payload={"b": 2, "a": 1}, **far())
    equal((again["traceId"], again["duplicate"]), (first["traceId"], True))
    check("mismatch" not in again, f"the same payload in another order differs: {again}")
    differs = s.node.submit("repeat", SERVICE, "repeat", 200, payload={"a": 2},
                            executeTime=now_ms() + 7200000)
    equal(sorted(differs["mismatch"]), ["executeTime", "payload"])
    equal(s.node.task("repeat")["payload"], {"a": 1, "b": 2}, "the stored payload")


def a_repeat_after_the_end_runs_nothing(s):
    # idempotency-20
    first = s.submit("late-repeat")
    s.node.wait_status("late-repeat", "SUCCESS")
    again = s.node.submit("late-repeat", SERVICE, "late-repeat", 200)
    equal((again["traceId"], again["status"], again["duplicate"]),
          (first["traceId"], "SUCCESS", True))
    lib.stays(lambda: len(s.receiver.of(first["traceId"])) == 1, 0.5, "it was called again")


def racing_repeats_store_one_row(s):
    # idempotency-16
    answers = []

    def client():
        c = lib.Client(s.node.port)
        answers.append(c.post("/api/delay-tasks", {
            "bizUuid": "race", "serviceName": SERVICE, "handler": "race", **far()}))
        c.close()

    threads = [threading.Thread(target=client) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(sorted(a.status for a in answers), [200] * 19 + [201])
    equal(len({a.body["traceId"] for a in answers}), 1, "trace ids")
    equal(s.store.query("SELECT count(*) FROM job_delay_task WHERE biz_uuid = 'race'"), [("1",)])


def keys_compare_byte_for_byte(s):
    # idempotency-21, idempotency-22
    a = s.node.submit("A4qD329", SERVICE, "case", **far())
    b = s.node.submit("A4qd329", SERVICE, "case", **far())
    check(a["traceId"] != b["traceId"], "two keys are one task")
    for key in ("bar ", " bar", "\u3000bar", "b\tr", "", "x" * 129):
        problem = s.node.submit(key, SERVICE, "case", 400)
        equal(problem["field"], "bizUuid")


def a_key_of_another_service_is_refused(s):
    s.submit("foreign", **far())
    problem = s.node.submit("foreign", "other", "h", 409)
    equal((problem["serviceName"], problem["handler"]), (SERVICE, "foreign"), "the owner")
    equal(s.node.task("foreign")["serviceName"], SERVICE)


def on_conflict_rejects_and_replaces(s):
    s.submit("conflict", payload=1, **far())
    s.node.submit("conflict", SERVICE, "conflict", 409, onConflict="reject")
    replaced = s.node.submit("conflict", SERVICE, "conflict", 200, onConflict="replace", payload=2)
    equal(replaced["payload"], 2)
    done = s.node.wait_status("conflict", "SUCCESS")
    equal([d.envelope()["payload"] for d in s.receiver.of(done["traceId"])], [2])
    s.node.submit("conflict", SERVICE, "conflict", 409, onConflict="replace", payload=3)


def batch_answers_each_task(s):
    tasks = [{"bizUuid": f"batch-{n}", "serviceName": SERVICE, "handler": "batch"} for n in range(5)]
    tasks[2]["handler"] = "not a name"
    tasks[3]["bizUuid"] = "batch-0"
    answer = s.node.client.post("/api/delay-tasks/batch", {"tasks": tasks})
    equal(answer.status, 200, answer.body)
    results = answer.body["results"]
    equal([r["status"] for r in results], [201, 201, 400, 200, 201])
    for n in (0, 1, 4):
        s.node.wait_status(f"batch-{n}", "SUCCESS")
    equal(s.node.client.get("/api/delay-tasks/batch-2").status, 404)


def cancel_keeps_the_handler_from_being_called(s):
    task = s.submit("cancel", delay="1s")
    answer = s.node.client.delete("/api/delay-tasks/cancel")
    equal((answer.status, answer.body["status"]), (200, "CANCELLED"))
    equal(s.node.client.delete("/api/delay-tasks/cancel").status, 200, "cancelled again")
    equal(s.node.client.delete("/api/delay-tasks/unheard-of").status, 404)
    wait_until(lambda: now_ms() > parse_time(task["executeTime"]) + 500, 5, "its time is over")
    equal(s.receiver.of(task["traceId"]), [], "deliveries")
    equal(s.node.submit("cancel", SERVICE, "cancel", 200)["status"], "CANCELLED")


def in_flight_is_left_alone(s):
    release = threading.Event()
    s.handlers.set("busy", lambda d: release.wait(20) and None)
    task = s.submit("busy")
    try:
        wait_until(lambda: s.receiver.of(task["traceId"]), 10, "the handler is called")
        equal(s.node.task("busy")["status"], "SENDING")
        for answer in (s.node.client.delete("/api/delay-tasks/busy"),
                       s.node.client.patch("/api/delay-tasks/busy", {"delay": "1h"}),
                       s.node.client.post("/api/delay-tasks/busy/run")):
            equal(answer.status, 409, answer.body)
        s.node.submit("busy", SERVICE, "busy", 409, onConflict="replace")
    finally:
        release.set()
    s.node.wait_status("busy", "SUCCESS")
    equal(s.node.client.delete("/api/delay-tasks/busy").status, 409, "cancelling a finished task")


def moving_changes_time_and_payload(s):
    task = s.submit("move", payload=1, **far())
    moved = s.node.client.patch("/api/delay-tasks/move", {"payload": {"v": 2}})
    equal((moved.status, moved.body["payload"]), (200, {"v": 2}))
    equal(moved.body["executeTime"], task["executeTime"], "the time of a payload's change")
    equal(s.node.client.patch("/api/delay-tasks/move", {"delay": "300ms"}).status, 200)
    s.node.wait_status("move", "SUCCESS")
    delivery, = s.receiver.of(task["traceId"])
    equal(delivery.envelope()["payload"], {"v": 2})
    equal(s.node.client.patch("/api/delay-tasks/unheard-of", {"delay": 1}).status, 404)


def moving_away_disarms_the_timer(s):
    task = s.submit("away", delay="1s")
    equal(s.node.client.patch("/api/delay-tasks/away", {"delay": "1h"}).status, 200)
    wait_until(lambda: now_ms() > parse_time(task["executeTime"]) + 500, 5, "its first time is over")
    equal(s.receiver.of(task["traceId"]), [], "deliveries")
    equal(s.node.task("away")["status"], "PENDING")


def run_now_and_again(s):
    s.handlers.set("again", 422, None)
    s.submit("again", **far())
    equal(s.node.client.post("/api/delay-tasks/again/run").status, 200)
    failed = s.node.wait_status("again", "FAILED")
    equal((failed["attempt"], failed["lastHttpStatus"]), (1, 422))
    equal(s.node.client.post("/api/delay-tasks/again/run").status, 200)
    done = s.node.wait_status("again", "SUCCESS")
    equal((done["attempt"], done["retryCount"]), (2, 0))
    equal([d.attempt for d in s.receiver.of(done["traceId"])], [1, 2])
    audit = s.store.query(f"SELECT count(*) FROM job_audit WHERE task_id = {done['id']}")
    check(int(audit[0][0]) >= 1, f"the audit: {audit}")
    equal(s.node.client.post("/api/delay-tasks/again/run").status, 409, "running a finished task")


def explain_says_what_keeps_it(s):
    s.submit("why", **far())
    why = s.node.client.get("/api/delay-tasks/why/explain").body
    equal((why["gate"], why["owner"], why["status"]), ("time", "node-a", "PENDING"))
    equal(why["nextInstant"], s.node.task("why")["executeTime"])
    equal(s.node.client.get("/api/delay-tasks/unheard-of/explain").status, 404)
    s.submit("why-done")
    s.node.wait_status("why-done", "SUCCESS")
    equal(s.node.client.get("/api/delay-tasks/why-done/explain").body["gate"], "finished")


def explain_knows_the_slots(s):
    release = threading.Event()
    s.handlers.set("slots", lambda d: release.wait(20) and None)
    s.node.register("narrow", f"{s.receiver.url}/narrow", concurrency=1)
    try:
        s.node.submit("slots-0", "narrow", "slots")
        wait_until(lambda: s.receiver.to("slots"), 10, "the first is called")
        s.node.submit("slots-1", "narrow", "slots")
        why = wait_until(lambda: [w for w in [
            s.node.client.get("/api/delay-tasks/slots-1/explain").body]
            if w["gate"] == "concurrency"], 10, "the second waits for a slot")[0]
        equal((why["serviceInFlight"], why["concurrency"]), (1, 1))
        equal(len(s.receiver.to("slots")), 1, "calls at a time")
    finally:
        release.set()
    s.node.wait_status("slots-1", "SUCCESS")


def lists_page_by_page(s):
    for n in range(25):
        s.node.submit(f"list-{n:02}", "lister", "even" if n % 2 == 0 else "odd",
                      executeTime=now_ms() + 3600000 + n)
    seen = []
    path = "/api/delay-tasks?service=lister&status=PENDING&handler=even&limit=5"
    cursor = ""
    while True:
        page = s.node.client.get(path + cursor).body
        check(len(page["tasks"]) <= 5, "a page is longer than its limit")
        seen += [task["bizUuid"] for task in page["tasks"]]
        if not page.get("nextCursor"):
            break
        cursor = f"&cursor={page['nextCursor']}"
    equal(seen, [f"list-{n:02}" for n in range(24, -1, -2)], "newest first, each once")
    first = parse_time(s.node.task("list-00")["executeTime"])
    some = s.node.client.get(
        f"/api/delay-tasks?service=lister&from={first}&to={first + 1}").body["tasks"]
    check("list-00" in [t["bizUuid"] for t in some] and len(some) < 25, "by time")
    equal(s.node.client.get("/api/delay-tasks?status=NO").body["field"], "status")


def traces_show_the_attempts(s):
    s.handlers.set("trace", (503, {"message": "not now"}), None)
    task = s.submit("trace")
    s.node.wait_status("trace", "SUCCESS")
    found = s.node.client.get(f"/api/traces/{task['traceId']}").body
    equal(found["bizUuid"], "trace")
    attempt, = found["attempts"]
    equal((attempt["attempt"], attempt["httpStatus"]), (1, 503))
    check("not now" in attempt["error"], f"the error: {attempt}")
    equal(s.node.client.get("/api/traces/" + "0" * 8 + "f" * 24).status, 404)
    equal(s.node.client.get("/api/traces/xyz").status, 400)
    wrong = task["traceId"][:16] + "0" * 16
    equal(s.node.client.get(f"/api/traces/{wrong}").status, 404, "the id of another trace")


def retries_back_off(s):
    s.handlers.set("backoff", 500, (200, {"success": False, "message": "no"}), 302, None)
    s.submit("backoff")
    done = s.node.wait_status("backoff", "SUCCESS")
    deliveries = s.receiver.of(done["traceId"])
    equal([d.attempt for d in deliveries], [1, 2, 3, 4])
    equal([d.envelope()["retryCount"] for d in deliveries], [0, 1, 2, 3])
    gaps = [b.at_ms - a.at_ms for a, b in zip(deliveries, deliveries[1:])]
    check(gaps[0] >= 200 and gaps[1] >= 400 and gaps[2] >= 800, f"the gaps: {gaps} ms")
    equal((done["attempt"], done["retryCount"]), (4, 3))


def tries_run_out_and_somebody_is_told(s):
    s.handlers.set("hopeless", 500)
    s.alert_status = 500
    try:
        task = s.submit("hopeless", maxRetry=2)
        failed = s.node.wait_status("hopeless", "FAILED")
        equal((failed["attempt"], failed["retryCount"]), (3, 2))
        equal(len(s.receiver.of(task["traceId"])), 3, "deliveries")
        wait_until(lambda: s.alerts_of("hopeless"), 10, "the webhook is tried")
    finally:
        s.alert_status = 200
    alerts = wait_until(lambda: s.alerts_of("hopeless")[1:], 30, "the webhook is tried again")
    alert = alerts[-1].envelope()
    equal((alert["type"], alert["data"]["status"], alert["data"]["traceId"]),
          ("task.failed", "FAILED", task["traceId"]))
    equal(verify(ALERT_SECRET, alerts[-1].headers, alerts[-1].body), 0, "the alert's signature")
    wait_until(lambda: s.store.query("SELECT count(*) FROM job_alert WHERE task_id = "
                                     f"{task['id']}") == [("0",)], 10, "the outbox is empty")


def final_answers_are_not_retried(s):
    finals = {"f400": 400, "f410": 410, "f413": 413, "f422": 422,
              "f-said": (500, {"success": False, "retryable": False, "message": "never"}),
              "f-said-200": (200, {"success": False, "retryable": False})}
    for name, answer in finals.items():
        s.handlers.set(name, answer)
        s.submit(name)
    for name in finals:
        failed = s.node.wait_status(name, "FAILED")
        equal((failed["attempt"], failed["retryCount"]), (1, 0), name)
        equal(len(s.receiver.of(failed["traceId"])), 1, f"calls of {name}")
    check("never" in s.node.task("f-said")["lastError"], "the message is kept")


def passing_trouble_is_retried(s):
    # A 404 from an ingress, a 401 in a key rotation, a redirect: none may lose an order.
    for name, answer in {"r404": 404, "r401": 401, "r301": (301, b"", {"Location": "/elsewhere"})
                         }.items():
        s.handlers.set(name, answer, None)
        s.submit(name)
        equal(s.node.wait_status(name, "SUCCESS")["attempt"], 2, name)
    equal(s.receiver.to("elsewhere"), [], "redirects followed")


def retry_after_is_honoured(s):
    # retry-42
    http_date = email.utils.formatdate(time.time() + 2, usegmt=True)
    answers = {"ra-seconds": ((429, b"", {"Retry-After": "1"}), 1000),
               "ra-date": ((503, b"", {"Retry-After": http_date}), 800),
               "ra-bad": ((503, b"", {"Retry-After": "abc"}), 200),
               "ra-negative": ((429, b"", {"Retry-After": "-1"}), 200)}
    for name, (answer, _) in answers.items():
        s.handlers.set(name, answer, None)
        s.submit(name)
    for name, (_, least_ms) in answers.items():
        done = s.node.wait_status(name, "SUCCESS")
        first, second = s.receiver.of(done["traceId"])
        check(second.at_ms - first.at_ms >= least_ms, f"{name}: {second.at_ms - first.at_ms} ms")


def retry_after_is_capped(s):
    s.handlers.set("ra-cap", (503, b"", {"Retry-After": str(10 ** 9)}), None)
    s.submit("ra-cap")
    task = s.node.wait_status("ra-cap", "RETRYING")
    ahead = parse_time(task["nextAttemptTime"]) - now_ms()
    check(0 < ahead <= 24 * 3600 * 1000, f"the next attempt is {ahead} ms away")


def a_huge_error_text_never_blocks_the_end(s):
    # retry-44, database-52
    text = "\U0001F600" * 25000 + "\0"
    s.handlers.set("huge", (500, {"success": False, "message": text}))
    s.submit("huge", maxRetry=1)
    failed = s.node.wait_status("huge", "FAILED")
    equal((failed["attempt"], failed["lastHttpStatus"]), (2, 500))
    check(len(failed["lastError"].encode()) <= 1024, "the text is cut")


def an_asynchronous_handler_reports_later(s):
    s.handlers.set("async", 202)
    s.submit("async")
    sent = s.node.wait_status("async", "SENT")
    base = f"/api/attempts/{sent['traceId']}"
    equal(s.node.client.post(f"{base}/2/result", {"success": True}).status, 409, "wrong attempt")
    equal(s.node.client.post(f"{base}/1/result", {"sucess": True}).status, 400, "unknown field")
    before = s.node.task("async")["nextAttemptTime"]
    equal(s.node.client.post(f"{base}/1/heartbeat").status, 200)
    check(s.node.task("async")["nextAttemptTime"] >= before, "a heartbeat moves the deadline")
    answer = s.node.client.post(f"{base}/1/result", {"success": True})
    equal((answer.status, answer.body["status"]), (200, "SUCCESS"))
    equal(s.node.client.post(f"{base}/1/heartbeat").status, 409, "a heartbeat after the end")
    equal(s.node.client.post(f"{base}/1/result", {"success": False}).status, 409, "another end")


def an_asynchronous_failure_is_retried(s):
    s.handlers.set("async-fail", 202)
    s.submit("async-fail")
    trace = s.node.wait_status("async-fail", "SENT")["traceId"]
    equal(s.node.client.post(f"/api/attempts/{trace}/1/result", {
        "success": False, "message": "out of stock"}).status, 200)
    wait_until(lambda: len(s.receiver.of(trace)) == 2, 10, "the second attempt")
    s.node.wait_status("async-fail", "SENT")
    equal(s.node.client.post(f"/api/attempts/{trace}/1/result", {"success": True}).status, 409,
          "the first attempt's late result")
    equal(s.node.client.post(f"/api/attempts/{trace}/2/result", {"success": True}).status, 200)
    equal(s.node.task("async-fail")["status"], "SUCCESS")


def a_result_that_never_comes_is_a_failed_attempt(s):
    s.handlers.set("async-lost", 202, None)
    s.submit("async-lost", timeout="300ms")
    done = s.node.wait_status("async-lost", "SUCCESS")
    first, second = s.receiver.of(done["traceId"])
    check(second.at_ms - first.at_ms >= 2000, "before the deadline of time-out and margin")
    equal([a["outcome"] for a in s.node.task("async-lost")["attempts"]], ["ghost"])


def snoozing_uses_up_no_try(s):
    s.handlers.set("snooze", (200, {"snooze": "300ms"}), (200, {"snooze": "300ms"}), None)
    s.submit("snooze", maxRetry=0)
    done = s.node.wait_status("snooze", "SUCCESS")
    deliveries = s.receiver.of(done["traceId"])
    equal(([d.attempt for d in deliveries], done["retryCount"]), ([1, 2, 3], 0))
    for a, b in zip(deliveries, deliveries[1:]):
        check(b.at_ms - a.at_ms >= 300, "it was put off for 300 ms")


def a_handler_that_hangs_is_timed_out(s):
    release = threading.Event()
    s.handlers.set("hang", lambda d: release.wait(20) and None, None)
    try:
        s.submit("hang", timeout="500ms")
        done = s.node.wait_status("hang", "SUCCESS")
    finally:
        release.set()
    equal(done["attempt"], 2)
    equal([a.get("httpStatus") for a in s.node.task("hang")["attempts"]], [None])


def pausing_holds_and_resuming_releases(s):
    s.node.register("pausable", f"{s.receiver.url}/pausable")
    equal(s.node.client.post("/api/services/pausable/pause").status, 200)
    # The node hears of a pause soon after its answer: what is due at once may be claimed, and given
    # back, until then.
    s.node.submit("paused", "pausable", "paused", delay="1h")
    why = wait_until(lambda: [w for w in [
        s.node.client.get("/api/delay-tasks/paused/explain").body] if w["gate"] == "paused"],
        10, "explain says so")[0]
    equal(why["status"], "PENDING")
    equal(s.node.client.post("/api/delay-tasks/paused/run").status, 200)
    lib.stays(lambda: not s.receiver.to("paused"), 0.5, "a paused service was called")
    equal(s.node.client.post("/api/services/pausable/resume").status, 200)
    equal(s.node.wait_status("paused", "SUCCESS")["attempt"], 1)


def signatures_verify(s):
    s.node.register(SIGNED, f"{s.receiver.url}/signed", secret=SECRET)
    equal(s.node.client.get(f"/api/services/{SIGNED}").body.get("secret"), None, "shown secret")
    s.node.submit("signature", SIGNED, "signature", payload={"order": "ä"})
    s.node.wait_status("signature", "SUCCESS")
    delivery, = s.receiver.to("signature")
    equal(delivery.headers["webhook-id"], delivery.trace)
    check(abs(int(delivery.headers["webhook-timestamp"]) - time.time()) < 60, "the timestamp")
    equal(verify(SECRET, delivery.headers, delivery.body), 0, "the verifier's exit status")
    equal(verify(SECRET, delivery.headers, delivery.body + b" "), 1, "with a changed body")
    equal(verify(ALERT_SECRET, delivery.headers, delivery.body), 1, "with another secret")


def the_template_finds_unregistered_services(s):
    s.node.submit("template", "unregistered", "template")
    s.node.wait_status("template", "SUCCESS")
    delivery, = s.receiver.to("template")
    equal(delivery.path, "/prod/unregistered/template")


def a_service_is_registered_shown_and_forgotten(s):
    answer = s.node.client.put("/api/services/passing", {
        "baseUrl": f"{s.receiver.url}/a", "concurrency": 3, "timeout": "10s"})
    equal(answer.status, 201, answer.body)
    equal(s.node.client.put("/api/services/passing", {"baseUrl": f"{s.receiver.url}/b"}).status, 200)
    shown = s.node.client.get("/api/services/passing").body
    equal(shown["baseUrl"], f"{s.receiver.url}/b")
    for bad in ("ftp://h/x", "http://169.254.169.254/latest", "nonsense", "http://u:p@h/",
                f"http://127.0.0.1:{s.node.port}/api"):
        problem = s.node.client.put("/api/services/passing", {"baseUrl": bad})
        equal((problem.status, problem.body["field"]), (400, "baseUrl"), bad)
    check(s.node.client.delete("/api/services/passing").status in (200, 204), "deleting")
    equal(s.node.client.get("/api/services/passing").status, 404)


def nothing_is_early(s):
    tasks = [s.node.submit(f"early-{n}", SERVICE, "early", executeTime=now_ms() + 700 + 13 * n)
             for n in range(50)]
    late = []
    for task in tasks:
        s.node.wait_status(task["bizUuid"], "SUCCESS")
        delivery, = s.receiver.of(task["traceId"])
        late.append(delivery.at_ms - parse_time(task["executeTime"]))
    check(min(late) >= 0, f"early by {-min(late)} ms")


def the_first_task_of_its_kind_is_on_time(s):
    # Of a service nobody registered, of a registered one, of a priority. Each beyond the look-ahead,
    # so that nothing hints at it; at different phases of whatever is periodic.
    tasks = []
    for n in range(5):
        s.node.register(f"registered-{n}", f"{s.receiver.url}/registered")
        tasks += [s.node.submit(f"first-{n}", f"newcomer-{n}", "first", delay="2500ms"),
                  s.node.submit(f"first-r-{n}", f"registered-{n}", "first", delay="2500ms")]
        time.sleep(0.5)
        tasks.append(s.node.submit(f"first-p-{n}", f"registered-{n}", "first", delay="2500ms",
                                   priority=9))
        time.sleep(0.5)
    late_ms = {}
    for task in tasks:
        s.node.wait_status(task["bizUuid"], "SUCCESS")
        delivery, = s.receiver.of(task["traceId"])
        late_ms[task["bizUuid"]] = delivery.at_ms - parse_time(task["executeTime"])
    check(min(late_ms.values()) >= 0 and max(late_ms.values()) < 1000, f"late: {late_ms} ms")


def machines_find_their_pages(s):
    equal(s.node.client.get("/healthz").status, 200)
    equal(s.node.client.get("/readyz").status, 200)
    check("openapi: 3" in s.node.client.get("/openapi.yaml").body, "openapi.yaml")
    equal(s.node.client.get("/nothing").headers["content-type"], "application/problem+json")


def metrics_have_the_series(s):
    m = s.node.metrics()
    for series in ("jobflow_tasks_submitted_total", "jobflow_tasks_duplicate_total",
                   'jobflow_attempts_total{outcome="success"}',
                   'jobflow_attempts_total{outcome="retry"}',
                   'jobflow_attempts_total{outcome="final"}',
                   'jobflow_tasks_finished_total{status="SUCCESS"}',
                   'jobflow_tasks_finished_total{status="FAILED"}',
                   'jobflow_tasks_finished_total{status="CANCELLED"}',
                   "jobflow_lateness_seconds_count"):
        check(m.get(series, 0) > 0, f"{series}: {m.get(series)}")
    for series in ("jobflow_tasks_backlog", 'jobflow_tasks_in_flight{stage="sending"}'):
        check(series in m, f"{series} is missing")
    buckets = [v for k, v in m.items() if k.startswith("jobflow_lateness_seconds_bucket")]
    equal(buckets, sorted(buckets), "the histogram's buckets grow")
    equal(m['jobflow_lateness_seconds_bucket{le="+Inf"}'], m["jobflow_lateness_seconds_count"])
    stored = s.store.query("SELECT count(*) FROM job_delay_task_history WHERE status = 'SUCCESS'")
    equal(m['jobflow_tasks_finished_total{status="SUCCESS"}'], float(stored[0][0]), "successes")


def logs_name_the_task_and_keep_secrets(s):
    s.handlers.set("logged", 500, None)
    s.submit("logged", payload={"card": "4111-1111"})
    done = s.node.wait_status("logged", "SUCCESS")
    lines = wait_until(lambda: [line for line in s.node.log() if line.get("bizUuid") == "logged"
                                and line["event"] == "task.succeeded"], 5, "it is logged")
    equal(lines[0]["traceId"], done["traceId"])
    text = s.node.log_file.read_text(encoding="utf-8")
    for secret in ("4111-1111", SECRET, ALERT_SECRET):
        check(secret not in text, f"{secret} stands in the log")
    for line in s.node.log():
        check({"time", "level", "event"} <= set(line), f"a line without: {line}")
        if "task" in line["event"] or "attempt" in line["event"]:
            check(line.get("traceId") and line.get("bizUuid"), f"a line without its task: {line}")


def sigterm_lets_work_in_flight_end(s):
    # claim-27
    release = threading.Event()
    s.handlers.set("stopping", lambda d: release.wait(20) and None)
    trace = s.submit("stopping")["traceId"]
    waiting = s.submit("after-stop", **far())
    wait_until(lambda: s.receiver.of(trace), 10, "the handler is called")
    process = s.node.process
    process.terminate()
    wait_until(lambda: s.node.events("node.stopping"), 5, "the node stops")
    lib.stays(lambda: process.poll() is None, 0.5, "the node left its work")
    release.set()
    equal(process.wait(20), 0, "exit status")
    row = s.store.query(f"SELECT status FROM job_delay_task_history WHERE id = {int(trace[:16], 16)}")
    equal(row, [("SUCCESS",)], "the task in flight")
    s.node.start()
    equal(len(s.receiver.of(trace)), 1, "calls of the task in flight")
    equal(s.node.task("after-stop")["traceId"], waiting["traceId"])


def sigterm_gives_unsent_claims_back(s):
    # Every slot of the service is taken, more are due: what was not sent is as it was before.
    release = threading.Event()
    s.handlers.set("give-back", lambda d: release.wait(20) and None)
    s.node.register("giver", f"{s.receiver.url}/giver", concurrency=2)
    for n in range(20):
        s.node.submit(f"give-back-{n}", "giver", "give-back")
    wait_until(lambda: len(s.receiver.to("give-back")) == 2, 10, "two are called")
    process = s.node.process
    process.terminate()
    wait_until(lambda: s.node.events("node.stopping", inFlight=2), 5, "the node stops")
    release.set()
    equal(process.wait(20), 0, "exit status")
    rows = s.store.query("SELECT status, attempt, count(*) FROM job_delay_task "
                         "WHERE service_name = 'giver' GROUP BY status, attempt")
    for status, attempt, _ in rows:
        check(status in ("PENDING",), f"left behind: {rows}")
        check(int(attempt) <= 1, f"a try was used up: {rows}")
    s.node.start()
    for n in range(20):
        equal(s.node.wait_status(f"give-back-{n}", "SUCCESS")["retryCount"], 0)
    equal(len(s.receiver.to("give-back")), 20, "calls in all")


CASES = [
    delivery_reaches_the_handler_byte_for_byte,
    payload_of_any_size_arrives_without_a_stall,
    a_repeat_returns_the_first_record,
    a_repeat_after_the_end_runs_nothing,
    racing_repeats_store_one_row,
    keys_compare_byte_for_byte,
    a_key_of_another_service_is_refused,
    on_conflict_rejects_and_replaces,
    batch_answers_each_task,
    cancel_keeps_the_handler_from_being_called,
    in_flight_is_left_alone,
    moving_changes_time_and_payload,
    moving_away_disarms_the_timer,
    run_now_and_again,
    explain_says_what_keeps_it,
    explain_knows_the_slots,
    lists_page_by_page,
    traces_show_the_attempts,
    retries_back_off,
    tries_run_out_and_somebody_is_told,
    final_answers_are_not_retried,
    passing_trouble_is_retried,
    retry_after_is_honoured,
    retry_after_is_capped,
    a_huge_error_text_never_blocks_the_end,
    an_asynchronous_handler_reports_later,
    an_asynchronous_failure_is_retried,
    a_result_that_never_comes_is_a_failed_attempt,
    snoozing_uses_up_no_try,
    a_handler_that_hangs_is_timed_out,
    pausing_holds_and_resuming_releases,
    signatures_verify,
    the_template_finds_unregistered_services,
    a_service_is_registered_shown_and_forgotten,
    nothing_is_early,
    the_first_task_of_its_kind_is_on_time,
    machines_find_their_pages,
    metrics_have_the_series,
    logs_name_the_task_and_keep_secrets,
    sigterm_lets_work_in_flight_end,
    sigterm_gives_unsent_claims_back,
]


if __name__ == "__main__":
    lib.main(Stage, CASES)
