#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The executors for those who are called, against a real node: executor.py sqlite|postgres.

clients/c/example.c as it is built, and examples/executor-python. Both sign, so the node and the
library have to agree on that as well.
"""

import contextlib
import os
import pathlib
import sys

import lib
from lib import check, equal, stays, wait_until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


def example_program():
    path = os.environ.get("EXECUTOR_EXAMPLE") or (
        pathlib.Path(lib.binary()).parents[1] / "clients" / "c" / "executor-example")
    check(os.access(path, os.X_OK), f"{path} is no program: set EXECUTOR_EXAMPLE")
    return path


class Executor:
    """A process that receives tasks; its registration makes it known."""

    def __init__(self, stage, name, command):
        self.stage = stage
        self.log_file = stage.folder / f"{name}.log"
        with open(self.log_file, "ab") as log:
            self.process = lib.spawn(command, log)

    def wait_registered(self, service, before=None):
        def probe():
            check(self.process.poll() is None, f"it ended: {self.log()}")
            answer = self.stage.node.client.get(f"/api/services/{service}")
            return answer.body if answer.status == 200 and (
                answer.body.get("baseUrl") and answer.body["version"] != before) else None
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
        executor = Executor(self, "example", [example_program(), str(self.port),
                                              f"http://127.0.0.1:{self.node.port}", *secrets])
        self.service = executor.wait_registered("example", before)
        return executor

    def submit(self, biz_uuid, handler, **more):
        return self.node.submit(biz_uuid, "example", handler, **more)

    def close(self):
        self.executor.close()
        self.node.close()
        self.store.close()


def registers_itself(s):
    equal((s.service["baseUrl"], s.service["hasSecret"], s.service["timeout"]),
          (f"http://127.0.0.1:{s.port}/jobflow", True, "2s"))
    check("registered at JobFlow" in s.executor.log(), s.executor.log())


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
    s.executor = Executor(s, "early", [example_program(), str(s.port),
                                       f"http://127.0.0.1:{s.node.port}", SECRET])
    wait_until(lambda: "not registered yet" in s.executor.log(), 10, "it tries")
    stays(lambda: s.executor.process.poll() is None, 0.5, "it ended")
    s.node.start()
    s.executor.wait_registered("example", before)


def the_python_receiver(s):
    port = lib.free_port()
    url = f"http://127.0.0.1:{port}/jobflow"
    program = lib.ROOT / "examples" / "executor-python" / "executor.py"
    with contextlib.closing(Executor(s, "python", [sys.executable, program, str(port), SECRET])):
        wait_until(lambda: answers(port), 20, "it listens")
        s.node.register("python", url, secret=SECRET)
        s.node.submit("python-1", "python", "greet", payload={"name": "Ada"})
        equal(s.node.wait_status("python-1", "SUCCESS")["attempt"], 1)
        s.node.submit("python-2", "python", "greet", payload={})
        check("needs a name" in s.node.wait_status("python-2", "FAILED")["lastError"], "the error")
        s.node.register("python", url, secret=OTHER)
        s.node.submit("python-3", "python", "greet", maxRetry=0, payload={"name": "Mallory"})
        equal(s.node.wait_status("python-3", "FAILED")["lastHttpStatus"], 401)


def answers(port):
    client = lib.Client(port, timeout=2)
    try:
        return client.get("/").status
    except OSError:
        return None
    finally:
        client.close()


def main():
    with lib.Workspace() as folder, contextlib.closing(Stage(sys.argv[1], folder)) as stage:
        lib.run(lib.cases_of([
            registers_itself, success, failure_then_retry, failure_for_good,
            unknown_handler_is_retried, result_comes_later_and_heartbeats_keep_it_alive,
            wrong_secret_is_refused, comes_back_after_a_restart,
            a_node_comes_later_than_the_executor, the_python_receiver], stage))


if __name__ == "__main__":
    main()
