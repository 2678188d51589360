#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The executors for those who are called, against a real node: executor.py sqlite|postgres|mysql.

clients/c/example.c as it is built, and on SQLite, once, each receiver that the project shows: in C,
Python and Java. All sign, so the node and they have to agree on that as well. The Java one is built
by Maven, which fetches what it needs the first time; the program is kept in build/java-executor.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import lib
from lib import check, equal, stays, wait_until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
MAVEN_S = 240
NO_REGISTRY = (r"Could not transfer|Unknown host|Connection (refused|timed out|reset)|"
               r"Network is unreachable|name resolution|in offline mode")


def example_program():
    path = os.environ.get("EXECUTOR_EXAMPLE") or (
        pathlib.Path(lib.binary()).parents[1] / "clients" / "c" / "executor-example")
    check(os.access(path, os.X_OK), f"{path} is no program: set EXECUTOR_EXAMPLE")
    return path


def names_of(node, service):
    answer = node.client.get(f"/api/services/{service}/instances")
    equal(answer.status, 200, f"listing instances: {answer.body}")
    return [one["instance"] for one in answer.body["instances"]]


class Executor:
    """A process that receives tasks; its registration makes it known."""

    def __init__(self, stage, name, command):
        self.stage = stage
        self.log_file = stage.folder / f"{name}.log"
        with open(self.log_file, "ab") as log:
            self.process = lib.spawn(command, log)

    def lives(self):
        check(self.process.poll() is None, f"it ended: {self.log()}")
        return True

    def wait_registered(self, service, before=None):
        def probe():
            self.lives()
            answer = self.stage.node.client.get(f"/api/services/{service}")
            is_new = answer.status == 200 and answer.body.get("baseUrl") and (
                answer.body["version"] != before)
            return answer.body if is_new and names_of(self.stage.node, service) else None
        return wait_until(probe, 20, f"{service} is registered")

    def log(self):
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def terminate(self, seconds=20):
        self.process.terminate()
        return self.process.wait(seconds)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Stage:
    def __init__(self, kind, folder):
        self.folder = folder
        self.store = lib.STORES[kind](folder)
        self.node = lib.Node(folder, self.store.url).start()
        self.port = lib.free_port()
        self.executor = self.start(SECRET)

    def start(self, *secrets, before=None):
        executor = Executor(self, "example", self.command(self.port, *secrets))
        self.service = executor.wait_registered("example", before)
        return executor

    def command(self, port, secret, url=None):
        return [example_program(), str(port), url or f"http://127.0.0.1:{self.node.port}", secret]

    def submit(self, biz_uuid, handler, **more):
        return self.node.submit(biz_uuid, "example", handler, **more)

    def close(self):
        self.executor.close()
        self.node.close()
        self.store.close()


def registers_itself(s):
    equal((s.service["baseUrl"], s.service["hasSecret"], s.service["timeout"]),
          (f"http://127.0.0.1:{s.port}/jobflow", True, "2s"))
    wait_until(lambda: "example is registered at JobFlow" in s.executor.log(), 10, "it says so")
    name, = names_of(s.node, "example")
    check(name.endswith(f":{s.port}"), f"its name is {name}")


def success(s):
    s.submit("success", "greet", payload={"name": "Ada"})
    task = s.node.wait_status("success", "SUCCESS")
    equal((task["attempt"], task["retryCount"]), (1, 0))


def failure_then_retry(s):
    s.submit("retry", "greet", payload={"name": "Wolfeschlegelsteinhausenbergerdorff"})
    s.node.wait_status("retry", "SUCCESS")
    task = s.node.task("retry")
    equal((task["attempt"], task["retryCount"]), (2, 1))
    attempt, = task["attempts"]
    equal((attempt["attempt"], attempt["httpStatus"]), (1, 500))
    check("what a long name" in attempt["error"], f"the error: {attempt}")


def failure_for_good(s):
    s.submit("final", "greet", payload={"nom": "Ada"})
    task = s.node.wait_status("final", "FAILED")
    equal((task["attempt"], task["lastHttpStatus"]), (1, 422))
    check("a greeting needs a name" in task["lastError"], f"the error: {task}")


def unknown_handler_is_retried(s):
    # During a deployment a handler may not be there yet.
    s.submit("unknown", "unheard-of", maxRetry=1)
    task = s.node.wait_status("unknown", "FAILED")
    equal((task["attempt"], task["lastHttpStatus"]), (2, 404))


def result_comes_later_and_heartbeats_keep_it_alive(s):
    # It takes 4 s. Without heartbeats its deadline is 2 s + 2 s: the time-out and the ghost margin.
    first = s.submit("report", "report")
    sent = s.node.wait_status("report", "SENT")
    moved = wait_until(lambda: [t for t in [s.node.task("report")] if t["status"] == "SENT"
                                and t["nextAttemptTime"] > sent["nextAttemptTime"]], 10,
                       "a heartbeat moves its deadline")[0]
    equal(moved["attempt"], 1)
    # A second one has to wait, without using up a try.
    s.submit("report-2", "report")
    task = s.node.wait_status("report", "SUCCESS")
    equal((task["traceId"], task["attempt"], task["retryCount"]), (first["traceId"], 1, 0))
    check(task["durationMs"] >= 3500, f"it took {task['durationMs']} ms")
    second = s.node.wait_status("report-2", "SUCCESS", 30)
    equal(second["retryCount"], 0)
    check(second["attempt"] >= 2, f"attempts: {second}")


def wrong_secret_is_refused(s):
    s.node.register("example", s.service["baseUrl"], secret=OTHER)
    try:
        s.submit("forged", "greet", maxRetry=1, payload={"name": "Mallory"})
        task = s.node.wait_status("forged", "FAILED")
        equal((task["attempt"], task["lastHttpStatus"]), (2, 401))
        check("the signature is wrong" in task["lastError"], f"the error: {task}")
        s.node.register("example", s.service["baseUrl"])
        s.submit("unsigned", "greet", maxRetry=0, payload={"name": "Mallory"})
        equal(s.node.wait_status("unsigned", "FAILED")["lastHttpStatus"], 401)
    finally:
        s.node.register("example", s.service["baseUrl"], secret=SECRET)
    equal(s.node.client.post("/api/delay-tasks/forged/run").status, 200)
    equal(s.node.wait_status("forged", "SUCCESS")["attempt"], 3, "after the right secret is back")


def comes_back_after_a_restart(s):
    before = s.node.client.get("/api/services/example").body["version"]
    equal(s.executor.terminate(), 0, "exit status")
    s.submit("while-away", "greet", payload={"name": "Ada"})
    wait_until(lambda: s.node.task("while-away")["retryCount"] > 0, 10, "it is tried")
    s.executor = s.start(SECRET, before=before)
    s.node.wait_status("while-away", "SUCCESS")


def a_node_comes_later_than_the_executor(s):
    before = s.node.client.get("/api/services/example").body["version"]
    equal(s.executor.terminate(), 0, "exit status")
    equal(s.node.terminate(), 0, "the node's exit status")
    s.executor = Executor(s, "early", s.command(s.port, SECRET))
    wait_until(lambda: "not registered yet" in s.executor.log(), 10, "it tries")
    stays(lambda: s.executor.process.poll() is None, 0.5, "it ended")
    s.node.start()
    s.executor.wait_registered("example", before)


def a_rolling_restart_costs_no_attempt(s):
    """Whoever leaves is sent nothing any more, and answers what it was sent before."""
    port = lib.free_port()
    first, = names_of(s.node, "example")
    with contextlib.closing(Executor(s, "second", s.command(port, SECRET))) as second:
        wait_until(lambda: len(names_of(s.node, "example")) == 2, 20, "a second one is registered")
        tasks = [{"bizUuid": f"rolling-{n}", "serviceName": "example", "handler": "greet",
                  "delay": f"{n * 5}ms", "payload": {"name": "Ada"}} for n in range(400)]
        equal(s.node.client.post("/api/delay-tasks/batch", {"tasks": tasks}).status, 200)
        s.node.wait_status("rolling-100", "SUCCESS")
        equal(second.terminate(), 0, "exit status")
        equal(names_of(s.node, "example"), [first])
    for n in range(400):
        task = s.node.wait_status(f"rolling-{n}", "SUCCESS")
        equal((n, task["attempt"]), (n, 1))


# ---- Each receiver ------------------------------------------------------------------------------

class Front(lib.Receiver):
    """Stands between a receiver and the node: refuses its first registration, and when it leaves
    sends it one more task, since it may still be sent some then."""

    def __init__(self, node, service, port):
        self.node = node
        self.service = service
        self.path = f"/api/services/{service}"
        self.receiver_port = port
        self.n_registrations = 0
        self.at_leaving = None
        super().__init__(self.pass_on)

    @staticmethod
    def read(stream, number, nth):
        """As the node does, it takes bodies in chunks as well."""
        delivery = lib.Receiver.read(stream, number, nth)
        if delivery and delivery.headers.get("transfer-encoding") == "chunked":
            while size := int(stream.readline(), 16):
                delivery.body += stream.read(size)
                stream.readline()
            stream.readline()
        return delivery

    def pass_on(self, delivery):
        method = "POST"
        if delivery.path == self.path:
            method = "PUT"
        elif delivery.path == f"{self.path}/instances":
            self.n_registrations += 1
            if self.n_registrations == 1:
                return 503
        elif delivery.path.startswith(f"{self.path}/instances/"):
            method = "DELETE"
            self.at_leaving = deliver(self.receiver_port, self.service, "f" * 32).status
        with contextlib.closing(lib.Client(self.node.port)) as client:
            answer = client.request(method, delivery.path, delivery.body or None)
        return answer.status, answer.body


def deliver(port, service, trace, attempt=1, name="Ada", secret=SECRET, age_s=0):
    """Calls the receiver as a node would."""
    body = json.dumps({
        "traceId": trace, "bizUuid": "b", "serviceName": service, "handler": "greet",
        "attempt": attempt, "retryCount": attempt - 1, "executeTime": "2026-01-31T12:00:00.000Z",
        "sentTime": "2026-01-31T12:00:00.007Z", "deadline": "2026-01-31T12:01:00.007Z",
        "payload": {"name": name}}).encode()
    sent = str(int(time.time()) - age_s)
    signed = hmac.digest(base64.b64decode(secret[6:]), f"{trace}.{sent}.".encode() + body, "sha256")
    with contextlib.closing(lib.Client(port)) as client:
        return client.request("POST", "/jobflow/greet", body, {
            "webhook-id": trace, "webhook-timestamp": sent,
            "webhook-signature": f"v1,{base64.b64encode(signed).decode()}"})


def text_of(answer):
    return answer.body if isinstance(answer.body, str) else json.dumps(answer.body)


def knows_what_is_signed(port, service):
    equal(deliver(port, service, "1" * 32).status, 200)
    for wrong in ({"secret": OTHER}, {"age_s": 900}, {"age_s": -900}):
        equal(deliver(port, service, "2" * 32, **wrong).status, 401, f"with {wrong}")
    with contextlib.closing(lib.Client(port)) as client:
        equal(client.post("/jobflow/greet", {"traceId": "2" * 32}).status, 401, "unsigned")


def does_nothing_twice(port, service):
    first = deliver(port, service, "3" * 32)
    check("hello Ada" in text_of(first), f"it answered {first}")
    again = deliver(port, service, "3" * 32, attempt=2, name="Bob")
    equal(again.status, 200)
    check("Bob" not in text_of(again), f"it was done again: {again}")


def works_for(s, service):
    s.node.submit(f"{service}-1", service, "greet", payload={"name": "Ada"})
    equal(s.node.wait_status(f"{service}-1", "SUCCESS")["attempt"], 1)
    s.node.submit(f"{service}-2", service, "greet", payload={})
    check("needs a name" in s.node.wait_status(f"{service}-2", "FAILED")["lastError"], "the error")
    nobody = f"http://127.0.0.1:{lib.free_port()}/"
    s.node.register(service, nobody, secret=OTHER)
    s.node.submit(f"{service}-3", service, "greet", maxRetry=0, payload={"name": "Mallory"})
    equal(s.node.wait_status(f"{service}-3", "FAILED")["lastHttpStatus"], 401)


def receiver(s, service, command, exit_statuses=(0,)):
    port = lib.free_port()
    # Nobody is at the service's own address: what arrives, arrives at the instance.
    s.node.register(service, f"http://127.0.0.1:{lib.free_port()}/", secret=SECRET)
    with contextlib.closing(Front(s.node, service, port)) as front, \
            contextlib.closing(Executor(s, service, command(port, front.url))) as executor:
        name, = wait_until(lambda: executor.lives() and names_of(s.node, service), 60,
                           "it registers")
        check(name.endswith(f":{port}"), f"its name is {name}")
        works_for(s, service)
        knows_what_is_signed(port, service)
        does_nothing_twice(port, service)
        wait_until(lambda: front.n_registrations >= 3, 20, "it registers again and again")
        status = executor.terminate()
        check(status in exit_statuses, f"exit status {status}: {executor.log()}")
        equal(front.at_leaving, 200, "what came while it left")
        equal(names_of(s.node, service), [], "after it has left")


def c_receiver(s):
    equal(s.executor.terminate(), 0, "exit status")
    receiver(s, "example", lambda port, url: s.command(port, SECRET, url))


def python_receiver(s):
    program = lib.ROOT / "examples" / "executor-python" / "executor.py"
    receiver(s, "python", lambda port, url: [sys.executable, program, str(port), url, SECRET])


def java_receiver(s):
    program = java_program()
    receiver(s, "java", lambda port, url: [
        "java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-jar", program, f"--server.port={port}",
        f"--jobflow={url}", f"--secret={SECRET}"], exit_statuses=(0, 143))


def java_program():
    """Builds examples/executor-java unless that was done before."""
    if not all(shutil.which(tool) for tool in ("java", "javac", "mvn")):
        raise lib.NotHere("no JDK and Maven here")
    source = lib.ROOT / "examples" / "executor-java"
    text = b"".join(file.read_bytes() for file in sorted(source.rglob("*")) if file.is_file())
    kept = lib.ROOT / "build" / "java-executor" / f"{hashlib.sha256(text).hexdigest()[:16]}.jar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with lib.Workspace() as folder:
            shutil.copytree(source, folder / "java")
            run_maven(folder / "java")
            shutil.copy(folder / "java" / "target" / "executor.jar", f"{kept}.part")
        os.replace(f"{kept}.part", kept)
    return kept


def run_maven(folder):
    try:
        done = subprocess.run(["mvn", "-q", "-B", "package"], cwd=folder, check=False, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=MAVEN_S,
                              preexec_fn=lib.die_with_parent())
    except subprocess.TimeoutExpired as late:
        raise lib.NotHere(f"Maven was not done within {MAVEN_S} s") from late
    if done.returncode and re.search(NO_REGISTRY, done.stdout):
        lib.diagnose(done.stdout)
        raise lib.NotHere("Maven's registry cannot be reached, and not all it needs is here")
    equal(done.returncode, 0, f"Maven's exit status: {done.stdout}")


CASES = [
    registers_itself, success, failure_then_retry, failure_for_good, unknown_handler_is_retried,
    result_comes_later_and_heartbeats_keep_it_alive, wrong_secret_is_refused,
    comes_back_after_a_restart, a_node_comes_later_than_the_executor,
    a_rolling_restart_costs_no_attempt]
RECEIVERS = [python_receiver, java_receiver, c_receiver]


if __name__ == "__main__":
    lib.main(Stage, CASES + RECEIVERS if sys.argv[1] == "sqlite" else CASES)
