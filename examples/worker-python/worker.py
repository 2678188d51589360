#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker that leases its tasks: worker.py JOBFLOW_URL SERVICE [TASKS_AT_A_TIME]
Its service is in pull mode: PUT /api/services/SERVICE {"delivery":{"mode":"pull"}}."""

import json
import sys
import threading
import time
import urllib.request

VISIBILITY_S = 30


def work(task):
    """What the task is about. Raises to have it tried again; may be run more than once."""
    print(task["handler"], task["bizUuid"], task["attempt"], json.dumps(task["payload"]), flush=True)


def post(path, body):
    request = urllib.request.Request(sys.argv[1].rstrip("/") + path, json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=90) as answer:
        return json.load(answer)


def keep_alive(attempts, done):
    """Asks for more time until the work is done."""
    while not done.wait(VISIBILITY_S / 3):
        try:
            post("/api/attempts/heartbeats", {"attempts": [dict(a, extend=VISIBILITY_S) for a in attempts]})
        except OSError as error:
            print(f"heartbeat: {error}", file=sys.stderr)


def main():
    path, most, results = f"/api/services/{sys.argv[2]}/lease", int((sys.argv + [10])[3]), []
    while True:
        try:
            if results:  # a result that is repeated does no harm
                post("/api/attempts/results", {"results": results})
                results = []
            tasks = post(path, {"maxTasks": most, "wait": "20s", "visibility": VISIBILITY_S})["tasks"]
        except OSError as error:
            print(f"again in a second: {error}", file=sys.stderr)
            time.sleep(1)
            continue
        done = threading.Event()
        attempts = [{"traceId": t["traceId"], "attempt": t["attempt"]} for t in tasks]
        threading.Thread(target=keep_alive, args=(attempts, done), daemon=True).start()
        for task, attempt in zip(tasks, attempts):
            try:
                work(task)
                results.append({**attempt, "success": True})
            except Exception as error:  # pylint: disable=broad-except
                results.append({**attempt, "success": False, "message": str(error)})
        done.set()


main()
