#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Receives JobFlow's tasks with Python's own library: executor.py PORT JOBFLOW_URL SECRET."""

import base64
import collections
import hashlib
import hmac
import http.server
import json
import signal
import socket
import sys
import threading
import time
import urllib.request

PORT, JOBFLOW, SECRET = int(sys.argv[1]), sys.argv[2], sys.argv[3]
INSTANCE = f"{socket.gethostname()}:{PORT}"  # the same after a restart
DONE = collections.deque(maxlen=1000)  # trace ids; a real service has them in its database
LOCK, STOP = threading.Lock(), threading.Event()


def is_signed(headers, body):
    """Standard Webhooks: HMAC-SHA256 over "id.timestamp.body", in one of several signatures."""
    sent = headers.get("webhook-timestamp", "")
    if not sent.isdecimal() or abs(time.time() - int(sent)) > 300:
        return False
    key = base64.b64decode(SECRET[6:]) if SECRET.startswith("whsec_") else SECRET.encode()
    text = f"{headers.get('webhook-id')}.{sent}.".encode() + body
    right = "v1," + base64.b64encode(hmac.digest(key, text, hashlib.sha256)).decode()
    return any(hmac.compare_digest(right.encode(), one.encode())
               for one in headers.get("webhook-signature", "").split())


def greet(task):
    """What a handler returns is the answer; what it raises is retried."""
    if "name" not in task["payload"]:
        return {"success": False, "retryable": False, "message": "a greeting needs a name"}
    return {"success": True, "message": f"hello {task['payload']['name']}"}


def run(task):
    with LOCK:  # a task may come again, even while it is worked on
        said = {"success": True} if task["traceId"] in DONE else greet(task)
        if said["success"]:
            DONE.append(task["traceId"])
    return said


def run_one_of_many(task):
    """Its result stands beside the others', whatever happens."""
    try:
        return {"traceId": task["traceId"], **run(task)}
    except Exception as error:  # pylint: disable=broad-except
        return {"traceId": task["traceId"], "success": False, "message": repr(error)}


class Executor(http.server.BaseHTTPRequestHandler):
    timeout = 60

    def do_POST(self):  # pylint: disable=invalid-name
        body = self.rfile.read(min(int(self.headers["Content-Length"]), 8 << 20))
        if not is_signed(self.headers, body):
            return self.answer(401, {"message": "the signature is wrong"})
        if self.path != "/jobflow/greet":
            return self.answer(404, {"message": "no such handler"})
        envelope = json.loads(body)
        if "tasks" in envelope:  # the service's delivery has the mode batch
            return self.answer(200, {"results": [run_one_of_many(t) for t in envelope["tasks"]]})
        return self.answer(200, run(envelope))

    def answer(self, status, said):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())


def tell_jobflow(method, path="", **said):
    url = f"{JOBFLOW}/api/services/python/instances{path}"
    headers = {"Content-Type": "application/json"} if said else {}
    body = json.dumps(said).encode() if said else None
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        urllib.request.urlopen(request, timeout=4).close()
    except (OSError, http.client.HTTPException) as error:
        print(f"{method} {url}: {error}", file=sys.stderr)


def live(server):
    """Registers three times within the ttl; after SIGTERM leaves, and only then stops listening."""
    base_url = f"http://127.0.0.1:{PORT}/jobflow"
    while not STOP.is_set():
        tell_jobflow("POST", instance=INSTANCE, baseUrl=base_url, ttl="15s")
        STOP.wait(5)
    tell_jobflow("DELETE", f"/{INSTANCE}")
    server.shutdown()


with http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Executor) as listening:
    listening.daemon_threads = False  # who is inside is answered
    signal.signal(signal.SIGTERM, lambda *_: STOP.set())
    threading.Thread(target=live, args=[listening]).start()
    listening.serve_forever()
