#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Receives JobFlow's tasks with nothing but Python's own library: executor.py PORT SECRET."""

import base64
import collections
import hashlib
import hmac
import http.server
import json
import sys
import time

# Trace ids, since a task may come more than once; a real service has them in its database.
DONE = collections.deque(maxlen=1000)


def is_signed(headers, body, secret):
    """Standard Webhooks: HMAC-SHA256 over "id.timestamp.body", in one of several signatures."""
    sent = headers.get("webhook-timestamp", "")
    if not sent.isdecimal() or abs(time.time() - int(sent)) > 300:
        return False
    key = base64.b64decode(secret[6:]) if secret.startswith("whsec_") else secret.encode()
    text = f"{headers.get('webhook-id')}.{sent}.".encode() + body
    right = "v1," + base64.b64encode(hmac.digest(key, text, hashlib.sha256)).decode()
    return any(hmac.compare_digest(right.encode(), one.encode())
               for one in headers.get("webhook-signature", "").split())


def greet(task):
    """What a handler returns is the answer; what it raises is retried."""
    if "name" not in task["payload"]:
        return {"success": False, "retryable": False, "message": "a greeting needs a name"}
    return {"success": True, "message": f"hello {task['payload']['name']}"}


class Executor(http.server.BaseHTTPRequestHandler):
    timeout = 60

    def do_POST(self):  # pylint: disable=invalid-name
        body = self.rfile.read(min(int(self.headers["Content-Length"]), 1 << 20))
        if not is_signed(self.headers, body, sys.argv[2]):
            return self.answer(401, {"message": "the signature is wrong"})
        if self.path != "/jobflow/greet":
            return self.answer(404, {"message": "no such handler"})
        task = json.loads(body)
        said = {"success": True} if task["traceId"] in DONE else greet(task)
        if said.get("success"):
            DONE.append(task["traceId"])
        return self.answer(200, said)

    def answer(self, status, said):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Executor).serve_forever()
