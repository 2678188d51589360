#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three nodes under load and faults: chaos.py postgres|mysql [--seed N] [--minutes M] [--tasks N]
[--etcd N].

A seeded plan breaks nodes, networks, etcd, the database and the services, alone and together,
while clients submit, cancel and move tasks. Afterwards the books are checked against each promise.
Without --minutes: the short form, each fault once. The plan is a function of the seed; what falls
together with what else is not.
"""

import argparse
import contextlib
import json
import random
import shutil
import subprocess
import sys

from cluster import HERE, Cluster, Services, need_programs, pause

import lib
from checker import Books, markdown
from plan import FAULTS, Run, make_plan
from lib import check, diagnose, equal, wait_until

QUIET = 3            # seconds before the first fault and after the last one
N_SERVICES = 24
SHARDS = {"svc-0": 8, "svc-1": 3}
TASKS_A_MINUTE = 10_000
WAIT_ENDED = 90


class Chaos:
    def __init__(self, args, folder):
        self.folder = folder
        self.rng = random.Random(args.seed)
        self.services = [f"svc-{n}" for n in range(N_SERVICES)]
        self.ports = None
        self.stack = contextlib.ExitStack()
        self.books = None
        try:
            receiver_port = lib.free_port()
            self.cluster = Cluster(args.store, folder, receiver_port, n_etcd=args.etcd)
            self.stack.callback(self.cluster.close)
            self.plan = make_plan(self.rng, [n.name for n in self.cluster.nodes], args.minutes)
            self.ports = [node.port for node in self.cluster.nodes]
            self.receiver = Services(folder, receiver_port, self.ports)
            self.stack.callback(self.receiver.close)
        except BaseException:
            self.stack.close()
            raise
        self.run = Run(self.cluster, self.receiver, self.rng)
        self.order = {
            "seed": args.seed, "ports": self.ports, "services": self.services,
            "tasks": args.tasks or TASKS_A_MINUTE * max(1, args.minutes),
            "seconds": 2 * QUIET + sum(step.seconds() for step in self.plan),
            "log": str(folder / "generator.log"),
        }

    def close(self):
        self.stack.close()

    def prepare(self):
        """A row for each service, and more shards for some."""
        node = self.cluster.nodes[0]
        for name in self.services:
            node.submit(f"warm-{name}", name, delay="1h")
        for name, shards in SHARDS.items():
            self.cluster.store.query(f"UPDATE job_service SET shards = {shards}, "
                                     f"shards_seen = {shards} WHERE name = '{name}'")
        for name in self.services:
            equal(node.client.delete(f"/api/delay-tasks/warm-{name}").status, 200, "status")
        self.cluster.store.query("DELETE FROM job_delay_task_history")
        wait_until(lambda: all(self.cluster.shards(name, node) == shards
                               for name, shards in SHARDS.items() for node in self.cluster.nodes),
                   20, "all nodes know the shards")

    def generate(self):
        order = self.folder / "order.json"
        order.write_text(json.dumps(self.order), encoding="ascii")
        return subprocess.Popen([sys.executable, HERE / "generator.py", order])

    def go(self):
        self.prepare()
        clients = self.generate()
        try:
            pause(QUIET)
            for number, step in enumerate(self.plan, 1):
                diagnose(f"{number}/{len(self.plan)}: {step}")
                self.run.step(step)
            self.run.wait_healed()
            check(clients.wait(self.order["seconds"] + 120) == 0, "the clients failed")
        finally:
            clients.kill()
            clients.wait()

    def left(self):
        return self.cluster.store.query(
            "SELECT count(*) FROM job_delay_task WHERE status <> 'FAILED'")[0][0]

    def close_the_books(self):
        with contextlib.suppress(AssertionError):  # what is left is a case of its own
            wait_until(lambda: self.left() == "0", WAIT_ENDED, "no task waits any more")
        self.receiver.end()
        self.books = Books(self.cluster.store, self.receiver.log_file, self.order["log"],
                           self.run.done, self.cluster.stalls)


def the_plan_is_carried_out(c):
    try:
        c.go()
    finally:
        c.close_the_books()
    for fault in sorted(c.run.done, key=lambda d: d.begin):
        if "owned" not in fault.seen and fault.seen:
            diagnose(f"{fault.name} {fault.node}: {fault.seen}")
    for line in markdown(c.books.table()).splitlines():
        diagnose(line)
    check(not c.run.errors, "\n".join(c.run.errors))
    equal({fault.name for fault in c.run.done}, {fault.name for fault in FAULTS}, "faults")
    equal(len(c.books.tasks), c.order["tasks"], "tasks that were accepted")


def no_node_ended_by_itself(c):
    for node in c.cluster.nodes:
        node.note_exit()
        equal(node.exits, [], f"ends of {node.name}")
    wrong = [(fault.name, fault.node, fault.seen["exit status"]) for fault in c.run.done
             if fault.seen.get("exit status")]
    equal(wrong, [], "exit statuses that are not 0")


def the_fence_was_needed(c):
    """Nodes that came back took something up again that was somebody else's by then."""
    lost = {node.name: len(node.events("attempt.lost")) for node in c.cluster.nodes}
    diagnose(f"ends of attempts that were no longer the node's: {lost}")
    check(sum(lost.values()), "no node ever lost an attempt: these faults test nothing")


PROMISES = [
    ("G1: accepted means durable", Books.accepted_is_durable),
    ("G2: one task per key", Books.one_task_per_key),
    ("G3: nothing is lost", Books.nothing_is_lost),
    ("G4: nothing is early", Books.nothing_is_early),
    ("G5: one live attempt, by the node that claimed it", Books.one_live_attempt),
    ("G6: terminal is terminal", Books.terminal_is_terminal),
    ("G7: tries are bounded", Books.tries_are_bounded),
    ("G9: dead nodes are replaced in time", Books.nodes_are_replaced),
]


def promise(c, test):
    check(c.books, "the run failed: there are no books")
    test(c.books)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("store", choices=["postgres", "mysql"])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--minutes", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=0)
    parser.add_argument("--etcd", type=int, choices=[1, 3], default=3)
    parser.add_argument("--logs", help="a folder that keeps the logs of all processes")
    args = parser.parse_args()
    need_programs("etcd")
    diagnose(f"seed {args.seed}: again with {sys.argv[0]} {args.store} --seed {args.seed}"
             f" --minutes {args.minutes} --etcd {args.etcd}")
    with lib.Workspace() as folder, contextlib.closing(Chaos(args, folder)) as chaos:
        cases = lib.cases_of([the_plan_is_carried_out, no_node_ended_by_itself,
                              the_fence_was_needed], chaos)
        cases += [(name, lambda test=test: promise(chaos, test)) for name, test in PROMISES]
        try:
            lib.run(cases)
        finally:
            if args.logs:
                shutil.copytree(folder, args.logs, dirs_exist_ok=True,
                                ignore=lambda path, names: [n for n in names
                                                            if not n.endswith(".log")])


if __name__ == "__main__":
    main()
