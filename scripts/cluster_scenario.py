#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The order-timeout scenario through a cluster of three nodes, one of which dies in the middle.

Orders are placed while the owner of order-service lives; it is killed with -9 just before they are
due, and another node cancels them. Ends with status 0 only if each step was right.
"""

import argparse
import os
import re
import signal
import sys
import time

from scenario import TIMEOUT_S, Scenario, Wrong, call, expect, told, wait_for

SERVICE = "order-service"
SCAN_S = 2  # beyond the TTL: a scan, and room


class ClusterScenario(Scenario):
    def __init__(self, options):
        options.node = options.nodes[0]
        options.shop_log = f"{options.logs}/order-service.log"
        options.node_log = f"{options.logs}/node-1.log"
        super().__init__(options)
        self.late_max_ms = 1000

    def view(self, node):
        status, body = call("GET", f"{node}/api/cluster?service={SERVICE}")
        return body if status == 200 else {"members": [], "services": []}

    def owner(self, node):
        services = self.view(node)["services"]
        return services[0]["owners"][0] if services else None

    def active(self, node):
        return sorted(m["name"] for m in self.view(node)["members"] if m["state"] == "active")

    def start_cluster(self):
        self.start()
        names = [f"node-{i + 1}" for i in range(len(self.options.nodes))]
        for node in self.options.nodes:
            wait_for(f"{node} sees all members", 30, lambda n=node: self.active(n) == names)
        told(f"{len(names)} nodes see one another: {', '.join(names)}")
        owners = {self.owner(node) for node in self.options.nodes}
        expect(len(owners) == 1, f"the nodes do not agree: {owners}")
        owner = owners.pop()
        expect(owner != "node-1", "the shop's own node owns it: nothing to show")
        told(f"all agree: {owner} owns {SERVICE}; the shop talks to node-1")
        return owner

    def submit_again(self, placed):
        """The same key through the other nodes is the same task."""
        for order, body in placed.items():
            _, task = self.task(order)
            again = {key: task[key] for key in ("bizUuid", "serviceName", "handler")}
            for node in self.options.nodes[1:]:
                status, answer = call("POST", f"{node}/api/delay-tasks",
                                      {**again, "executeTime": task["executeTime"]})
                expect(status == 200 and answer["traceId"] == body["traceId"],
                       f"{order} through {node}: {status} {answer}")
        told("submitted again through node-2 and node-3: the same trace ids, no second tasks")

    def cancelled(self, order, late_max_ms):
        wait_for(f"{order} is cancelled", TIMEOUT_S + 15,
                 lambda: self.order_status(order) == "cancelled")
        with open(self.options.shop_log, encoding="utf-8", errors="replace") as log:
            calls = re.findall(rf"order={order} cancelled attempt=(\d+) late_ms=(-?\d+)", log.read())
        expect(len(calls) == 1, f"{order} was cancelled {len(calls)} times")
        late_ms = int(calls[0][1])
        expect(0 <= late_ms <= late_max_ms, f"{order} was cancelled {late_ms} ms after its time")
        return late_ms

    def kill(self, owner):
        pid = self.options.pids[int(owner.rsplit("-", 1)[1]) - 1]
        os.kill(pid, signal.SIGKILL)
        told(f"{owner} is killed with -9, half a second before the orders are due")
        return time.monotonic()

    def play(self):
        owner = self.start_cluster()
        placed_at = time.monotonic()
        placed = self.place_orders()
        self.submit_again(placed)
        self.pay("order-2")
        print("… the time-out passes, and nobody pays order-1 and order-3", flush=True)
        time.sleep(max(0, placed_at + TIMEOUT_S - 0.5 - time.monotonic()))
        killed_at = self.kill(owner)
        wait_for("a take-over", self.options.ttl + SCAN_S,
                 lambda: self.owner(self.options.node) not in (None, owner))
        heir = self.owner(self.options.node)
        told(f"{heir} owns {SERVICE} {time.monotonic() - killed_at:.1f} s later "
             f"(the lease lasts {self.options.ttl:g} s)")
        for order in ("order-1", "order-3"):
            late = self.cancelled(order, int((self.options.ttl + SCAN_S) * 1000))
            told(f"{order} is cancelled once, {late} ms after its time: by {heir}")
        expect(self.order_status("order-2") == "paid", "order-2 is not paid any more")
        told("order-2 is still paid")
        self.place("order-4")
        late = self.cancelled("order-4", self.late_max_ms)
        told(f"order-4, placed after that, is cancelled {late} ms after its time")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", nargs="+", required=True)
    parser.add_argument("--pids", nargs="+", type=int, required=True)
    parser.add_argument("--ttl", type=float, required=True, help="seconds")
    for name in ("shop", "logs", "store"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    try:
        ClusterScenario(options).play()
    except Wrong as wrong:
        print(f"✗ {wrong}", flush=True)
        for name in sorted(os.listdir(options.logs)):
            if name.endswith(".log"):
                with open(f"{options.logs}/{name}", encoding="utf-8", errors="replace") as log:
                    print(f"--- the end of {name}\n{''.join(log.readlines()[-20:])}", end="")
        return 1
    print("\nAll steps were right.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
