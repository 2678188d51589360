#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The order-timeout scenario against a running node and order-service, told as it happens.

Three orders with a 5-second payment time-out: one is paid, one is placed twice. The two that stay
unpaid are cancelled on time. Ends with status 0 only if each step was right.
"""

import argparse
import json
import re
import sys
import time
import urllib.error
import urllib.request

TIMEOUT_S = 5
LATE_MAX_MS = 1000


class Wrong(Exception):
    """A step that did not go as it should."""


def call(method, url, body=None):
    """Returns (status, JSON or text); status 0 when nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def wait_for(what, seconds, probe):
    """Polls until the probe gives something true, and returns it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = probe()
        if found:
            return found
        time.sleep(0.05)
    raise Wrong(f"{what}: not within {seconds} s")


def expect(condition, what):
    if not condition:
        raise Wrong(what)


def told(text):
    print(f"✓ {text}", flush=True)


def read_lines(path, pattern):
    with open(path, encoding="utf-8", errors="replace") as log:
        return [line.rstrip("\n") for line in log if re.search(pattern, line)]


class Scenario:
    def __init__(self, options):
        self.options = options

    def task(self, order):
        return call("GET", f"{self.options.node}/api/delay-tasks/order-timeout:{order}")

    def order_status(self, order):
        return call("GET", f"{self.options.shop}/orders/{order}")[1].get("status")

    def place(self, order):
        status, body = call("POST", f"{self.options.shop}/orders",
                            {"orderId": order, "timeout": f"{TIMEOUT_S}s"})
        expect(status in (200, 201) and "traceId" in body, f"placing {order}: {status} {body}")
        return body

    def start(self):
        wait_for("the node is ready", 30, lambda: call("GET", f"{self.options.node}/readyz")[0] == 200)
        told(f"a node runs on {self.options.node}, its tasks in {self.options.store}")
        wait_for("order-service is registered", 30,
                 lambda: call("GET", f"{self.options.node}/api/services/order-service")[0] == 200)
        told(f"order-service runs on {self.options.shop} and has told the node where it is")

    def place_orders(self):
        placed = {order: self.place(order) for order in ("order-1", "order-2", "order-3")}
        for order, body in placed.items():
            told(f"{order} is placed, to be paid within {TIMEOUT_S} s  (trace {body['traceId']})")
        again = self.place("order-3")
        expect(again["traceId"] == placed["order-3"]["traceId"], f"order-3 got a second task: {again}")
        told("order-3 is placed a second time: the same trace id, no second task")
        return placed

    def pay(self, order):
        status, body = call("POST", f"{self.options.shop}/orders/{order}/pay")
        expect(status == 200 and body.get("status") == "paid", f"paying {order}: {status} {body}")
        status, task = self.task(order)
        expect(status == 200 and task.get("status") == "CANCELLED", f"its task: {status} {task}")
        told(f"{order} is paid: its task is CANCELLED")

    def see_cancelled(self, order):
        wait_for(f"{order} is cancelled", TIMEOUT_S + 10,
                 lambda: self.order_status(order) == "cancelled")
        line = wait_for("order-service logs it", 5, lambda: read_lines(
            self.options.shop_log, rf"order={order} cancelled attempt=1 late_ms="))[0]
        late_ms = int(re.search(r"late_ms=(-?\d+)", line).group(1))
        expect(0 <= late_ms <= LATE_MAX_MS, f"{order} was cancelled {late_ms} ms after its time")
        task = wait_for("its task has ended", 10, lambda: self.ended(order))
        expect(task["attempt"] == 1, f"it took {task['attempt']} attempts")
        told(f"{order} is cancelled, {late_ms} ms after its time; its task is SUCCESS")
        return late_ms

    def ended(self, order):
        _, task = self.task(order)
        return task if isinstance(task, dict) and task.get("status") == "SUCCESS" else None

    def show_log(self, placed, late_ms):
        print("\nThe two cancellations in the node's log:")
        for order, late in late_ms.items():
            trace = placed[order]["traceId"]
            lines = wait_for("the node logs it", 5,
                             lambda: read_lines(self.options.node_log, re.escape(trace)))
            for line in lines:
                print(f"  {line}")
            print(f"    → {order}: called {late} ms after its time")

    def play(self):
        self.start()
        placed = self.place_orders()
        self.pay("order-2")
        print(f"… {TIMEOUT_S} seconds pass, and nobody pays order-1 and order-3", flush=True)
        late_ms = {order: self.see_cancelled(order) for order in ("order-1", "order-3")}
        expect(self.order_status("order-2") == "paid", "order-2 is not paid any more")
        expect(not read_lines(self.options.shop_log, r"order=order-2 .*attempt="),
               "order-2 was called although its task was cancelled")
        told("order-2 is still paid, and was never called")
        self.show_log(placed, late_ms)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("node", "shop", "node-log", "shop-log", "store"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    try:
        Scenario(options).play()
    except Wrong as wrong:
        print(f"✗ {wrong}", flush=True)
        for path in (options.node_log, options.shop_log):
            with open(path, encoding="utf-8", errors="replace") as log:
                print(f"--- the end of {path}\n{''.join(log.readlines()[-20:])}", end="")
        return 1
    print("\nAll steps were right.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
