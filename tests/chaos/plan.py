# SPDX-License-Identifier: Apache-2.0
"""What is done to a cluster under load, and the seeded plan of it.

A fault is a function of (run, node, hold): it breaks something, waits `hold` seconds, mends it and
returns what it has seen, for the record. `uses` says what it needs for itself, so that two faults
at a time do not undo one another.
"""

import collections
import concurrent.futures
import time
import traceback

from cluster import MARGIN, SENDING_LIMIT, TTL, pause

import lib
from lib import now_ms, wait_until
from proxy import Cut

Fault = collections.namedtuple("Fault", "name act uses hold")
Done = collections.namedtuple("Done", "name node begin end mixed seen")

AT_A_TIME = 2
STARTING = 1.1       # seconds that a step takes besides, on average
BACK = 60            # seconds for a part to be there again
N_CUTS = 12
SETTLE = TTL + 2     # after its end, until a fault has no effect any more
SUBMIT = b"INSERT INTO job_delay_task ("
CLAIM = b"SET status = 'SENDING'"
SUCCESS = b"INSERT INTO job_delay_task_history"
LATENCY_MS = 300

# Finds tasks that are due together, takes the last of them before they are, and the others when the
# node has begun to.
LOCKS = {
    "postgres": """
        DO $$ DECLARE s text; t timestamptz; last bigint; BEGIN
            SELECT service_name, next_attempt_time, max(id) INTO s, t, last FROM job_delay_task
                WHERE next_attempt_time BETWEEN now() + interval '100 ms' AND now() + interval '2 s'
                AND status = 'PENDING' GROUP BY 1, 2 HAVING count(*) > 4 ORDER BY 2 LIMIT 1;
            PERFORM 1 FROM job_delay_task WHERE id = last FOR UPDATE;
            PERFORM pg_sleep(coalesce(extract(epoch FROM t - clock_timestamp()), 0) + 0.1);
            PERFORM 1 FROM job_delay_task WHERE service_name = s AND next_attempt_time = t
                ORDER BY id FOR UPDATE;
        END $$""",
    "mysql": """
        SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; BEGIN;
        SET @s = NULL, @t = NULL, @last = NULL;
        SELECT service_name, next_attempt_time, max(id) INTO @s, @t, @last FROM job_delay_task
            WHERE next_attempt_time BETWEEN utc_timestamp(3) + INTERVAL 100000 MICROSECOND
            AND utc_timestamp(3) + INTERVAL 2 SECOND AND status = 'PENDING'
            GROUP BY 1, 2 HAVING count(*) > 4 ORDER BY 2 LIMIT 1;
        SELECT id FROM job_delay_task WHERE id = @last FOR UPDATE;
        DO SLEEP(coalesce(timestampdiff(MICROSECOND, utc_timestamp(3), @t) / 1000000, 0) + 0.1);
        SELECT id FROM job_delay_task WHERE service_name = @s AND next_attempt_time = @t
            ORDER BY id FOR UPDATE;
        COMMIT""",
}
LOOK_SOON = {  # for deadlocks, before nodes give up waiting for a lock
    "postgres": ["ALTER SYSTEM SET deadlock_timeout = '100ms'", "SELECT pg_reload_conf()"],
    "mysql": [],  # it looks at once
}
DEADLOCKS = {
    "postgres": "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'",
    "mysql": "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS "
             "WHERE VARIABLE_NAME = 'Innodb_deadlocks'",
}


# ---- Nodes --------------------------------------------------------------------------------------

def owned(run, node):
    """What a node owns by the view of another one."""
    other = next(n for n in run.cluster.nodes if n is not node)
    return [key for key, owner in run.cluster.owners(other).items() if owner == node.name]


def kill(run, node, hold):
    """Dead for longer than the others need to notice."""
    keys = owned(run, node)
    killed = now_ms()
    node.kill9()
    pause(hold)
    node.start(ready=False)
    return {"killed": killed, "owned": keys}


def kill_and_restart(_run, node, hold):
    """Back at once, under a name whose lease still lives."""
    node.kill9()
    node.start(ready=False)
    pause(hold)
    return {}


def stop(_run, node, hold):
    """SIGSTOP beyond the TTL and the limit of SENDING: what it had claimed is taken by others."""
    node.pause()
    pause(hold)
    node.resume()
    return {}


def graceful(_run, node, hold):
    status = node.terminate()
    pause(hold)
    node.start(ready=False)
    return {"exit status": status}


def clock(_run, node, hold):
    """The node's wall clock is two hours off, in either direction, until its next such restart."""
    status = node.terminate()
    node.set_clock("-2h" if node.env.get("FAKETIME") == "+2h" else "+2h")
    node.start(ready=False)
    pause(hold)
    return {"clock": node.env["FAKETIME"], "exit status": status}


def drain(_run, node, hold):
    client = lib.Client(node.port)
    lib.equal(client.post("/api/cluster/drain").status, 202, "status of drain")
    pause(hold)
    lib.equal(client.post("/api/cluster/resume").status, 202, "status of resume")
    client.close()
    return {}


# ---- Networks -----------------------------------------------------------------------------------

def silence(proxies, hold):
    for proxy in proxies:
        proxy.hole()
    pause(hold)
    for proxy in proxies:
        proxy.heal()
    return {}


def etcd_hole(_run, node, hold):
    return silence(node.etcd, hold)


def etcd_refused(_run, node, hold):
    for proxy in node.etcd:
        proxy.refuse()
        proxy.cut()
    pause(hold)
    for proxy in node.etcd:
        proxy.heal()
    return {}


def store_hole(_run, node, hold):
    return silence([node.db], hold)


def store_late(_run, node, hold):
    """Slow, then standing still: what was asked comes through afterwards."""
    node.db.delay_ms = LATENCY_MS
    pause(hold / 2)
    node.db.stall()
    pause(hold / 2)
    node.db.delay_ms = 0
    node.db.heal()
    return {}


def services_hole(_run, node, hold):
    return silence([node.services], hold)


def services_late(_run, node, hold):
    """Requests stand still on their way and arrive when the node has given them up."""
    node.services.delay_ms = LATENCY_MS
    pause(hold / 2)
    node.services.stall()
    pause(hold / 2)
    node.services.delay_ms = 0
    node.services.heal()
    return {}


def all_cut(run, _node, hold):
    """RST on every connection of every node, again and again."""
    end = time.monotonic() + hold
    n = 0
    while time.monotonic() < end:
        for node in run.cluster.nodes:
            for proxy in node.proxies():
                proxy.cut()
                n += 1
        pause(0.3)
    return {"cuts": n}


# ---- etcd ---------------------------------------------------------------------------------------

def etcd_leader(run, _node, hold):
    """With one member this is etcd itself, away for less than the TTL."""
    etcd = run.cluster.etcd
    leader = etcd.leader() or 0
    etcd.kill9([leader])
    pause(hold if len(etcd.ports) > 1 else TTL / 2)
    etcd.start([leader], wait=False)
    return {"member": leader}


def etcd_down(run, _node, hold):
    """All of it, for longer than the TTL: the rows take over."""
    run.cluster.etcd.kill9()
    pause(hold)
    run.cluster.etcd.start(wait=False)
    return {}


def compaction(run, node, hold):
    """While the node's watch stands still, so that it has to go on from what is gone."""
    for proxy in node.etcd:
        proxy.stall()
    run.cluster.etcd.compact()
    for proxy in node.etcd:
        proxy.heal()
        proxy.cut()
    pause(hold)
    return {}


# ---- The database -------------------------------------------------------------------------------

def store_restart(run, _node, hold):
    store = run.cluster.store
    hard = run.rng.random() < 0.5
    if hard:
        store.kill9()
    else:
        store.stop()
    pause(hold)
    store.start()
    return {"kill -9": hard}


def commits(run, _node, hold):
    """Connections cut between commit and answer, of submissions, claims and finishes."""
    rules = [(node, node.db.add(Cut(match, every=3, limit=N_CUTS)))
             for node in run.cluster.nodes for match in (SUBMIT, CLAIM, SUCCESS)]
    pause(hold)
    for node, rule in rules:
        node.db.remove(rule)
    return {"cuts": sum(rule.fired for _, rule in rules)}


def deadlocks(run, _node, hold):
    store = run.cluster.store
    sql = LOCKS[store.kind]
    for change in LOOK_SOON[store.kind]:
        store.query(change)
    before = int(store.query(DEADLOCKS[store.kind])[0][0])
    end = time.monotonic() + hold
    while time.monotonic() < end:
        try:
            store.query(sql)
        except Exception:  # pylint: disable=broad-except
            pass  # this session was the victim
    after = int(store.query(DEADLOCKS[store.kind])[0][0])
    return {"deadlocks": after - before}


# ---- The receiver -------------------------------------------------------------------------------

def receiver(mode):
    def act(run, _node, hold):
        run.services.say(mode)
        pause(hold)
        run.services.say("ok")
        return {}
    return act


# ---- All of them --------------------------------------------------------------------------------

FAULTS = [
    Fault("kill -9", kill, {"node"}, TTL + 3),
    Fault("kill -9, back at once", kill_and_restart, {"node"}, TTL),
    Fault("SIGSTOP", stop, {"node"}, max(TTL, SENDING_LIMIT) + 1.5),
    Fault("graceful restart", graceful, {"node"}, 0.5),
    Fault("clock 2 h off", clock, {"node"}, 1),
    Fault("drain", drain, {"node"}, 1.5),
    Fault("etcd: silence", etcd_hole, {"node", "etcd"}, TTL + 1.5),
    Fault("etcd: refused", etcd_refused, {"node", "etcd"}, TTL + 1.5),
    Fault("database: silence", store_hole, {"node", "store"}, 3),
    Fault("database: slow", store_late, {"node", "store"}, 3),
    Fault("services: silence", services_hole, {"node", "services"}, 3),
    Fault("services: slow", services_late, {"node", "services"}, 3),
    Fault("all connections cut", all_cut, {"store", "services", "etcd"}, 2),
    Fault("etcd: leader killed", etcd_leader, {"etcd"}, 2),
    Fault("etcd: all down", etcd_down, {"etcd"}, TTL + 2),
    Fault("etcd: compaction", compaction, {"node", "etcd"}, 0.5),
    Fault("database restart", store_restart, {"store"}, 0.5),
    Fault("commits cut", commits, {"store"}, 2.5),
    Fault("deadlocks", deadlocks, {"store"}, 2.5),
    Fault("services refuse", receiver("refuse"), {"services"}, 1.5),
    Fault("services hang", receiver("hang"), {"services"}, MARGIN + 0.5),
    Fault("services late", receiver("late"), {"services"}, 2),
]
ALONE = ("kill -9",)  # at least once, since its recovery is measured


class Step(collections.namedtuple("Step", "faults nodes quiet")):
    """Faults that run at the same time, each at its node, and the quiet after them."""

    def seconds(self):
        return max(fault.hold for fault in self.faults) + self.quiet + STARTING

    def __str__(self):
        return " + ".join(f"{fault.name} ({node})" if "node" in fault.uses else fault.name
                          for fault, node in zip(self.faults, self.nodes))


def make_step(rng, faults, names, quiet):
    return Step(faults, rng.sample(names, len(faults)), quiet)


def one_round(rng, names, quiet, long_quiet):
    """Every fault once, most of them in pairs, in the order that the seed gives."""
    alone = [fault for fault in FAULTS if fault.name in ALONE]
    rest = [fault for fault in FAULTS if fault.name not in ALONE]
    rng.shuffle(rest)
    steps = [(fault,) for fault in alone]
    while rest:
        first = rest.pop()
        # The node of each is another one, so only what all share can collide.
        others = [f for f in rest if not (f.uses & first.uses) - {"node"}]
        if others:
            # Those that take about as long, so that they meet.
            second = min(others, key=lambda f: abs(f.hold - first.hold))
            rest.remove(second)
            steps.append((first, second))
        else:
            steps.append((first,))
    rng.shuffle(steps)
    # What is measured comes after a quiet time.
    at = next(n for n, step in enumerate(steps) if step[0].name in ALONE)
    steps[5], steps[at] = steps[at], steps[5]
    return [make_step(rng, list(step), names, long_quiet if n % 5 == 4 else quiet)
            for n, step in enumerate(steps)]


def make_plan(rng, names, minutes):
    """Rounds for so many minutes; the short form, 0, is one round with little quiet."""
    if not minutes:
        return one_round(rng, names, 0.7, SETTLE + 1)
    plan = []
    while sum(step.seconds() for step in plan) < minutes * 60:
        plan += one_round(rng, names, 2, SETTLE + 10)
    return plan


class Run:
    """Carries a plan out. `done` is the record, `errors` what the harness itself failed in.

    The threads that start processes live as long as this: a process ends with the thread that
    started it (lib.die_with_parent)."""

    def __init__(self, a_cluster, services, rng):
        self.cluster = a_cluster
        self.services = services
        self.rng = rng
        self.threads = concurrent.futures.ThreadPoolExecutor(AT_A_TIME)
        self.done = []
        self.errors = []

    def act(self, fault, node, mixed):
        begin = now_ms()
        try:
            seen = fault.act(self, node, fault.hold)
        except Exception:  # pylint: disable=broad-except
            self.errors.append(f"{fault.name}: {traceback.format_exc()}")
            seen = {}
        name = node.name if "node" in fault.uses else ""
        self.done.append(Done(fault.name, name, begin, now_ms(), mixed, seen))

    def step(self, step):
        concurrent.futures.wait([
            self.threads.submit(self.act, fault, self.cluster.node(name), len(step.faults) > 1)
            for fault, name in zip(step.faults, step.nodes)])
        for node in self.cluster.nodes:
            node.note_exit()
        pause(step.quiet)

    def wait_healed(self):
        """After the plan: all parts are there and know each other."""
        for node in self.cluster.nodes:
            wait_until(node.is_ready, BACK, f"{node.name} is ready")
        self.cluster.wait_all_active(BACK)
