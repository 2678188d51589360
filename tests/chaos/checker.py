# SPDX-License-Identifier: Apache-2.0
"""The books of a chaos run: what the clients were told, what the services saw and what the tables
say, and whether it agrees with what is promised."""

import bisect
import collections
import itertools

from cluster import SENDING_LIMIT, TTL, Request, read_log

from plan import SETTLE
from generator import DOOMED_RETRIES
from stalls import Stalls
from lib import check, equal

RECOVERY = TTL + 2          # seconds
RESCUE = 1.5                # after the limit of SENDING: a scan, and its write
ON_THE_WAY = 500            # milliseconds from a node's look at the clock to the receiver's log
NEAR = 100                  # milliseconds
CLOCK = 500                 # milliseconds by which a node may be wrong about the store's clock
ANYBODY = "*"
FEW = 5                     # examples in a message

Submitted = collections.namedtuple(
    "Submitted",
    "key service handler sent answered status trace execute_time wanted hash max_retry")
Change = collections.namedtuple("Change", "key sent answered status value")
Row = collections.namedtuple(
    "Row", "id trace key service shard status attempt retry_count max_retry claimed_by")
Failed = collections.namedtuple("Failed", "attempt started ended outcome node")

TASK_COLUMNS = ("id, trace_id, biz_uuid, service_name, shard, status, attempt, retry_count, "
                "max_retry, coalesce(claimed_by, '')")
IN_MS = {
    "postgres": "coalesce(floor(extract(epoch from {}) * 1000)::bigint, 0)",
    "mysql": "coalesce(floor(timestampdiff(MICROSECOND, '1970-01-01', {}) / 1000), 0)",
}


def examples(found):
    found = list(found)
    return f"{len(found)}, such as {sorted(found, key=str)[:FEW]}"


def none(found, what):
    found = list(found)
    check(not found, f"{what}: {examples(found)}")


def percentile(values, share):
    """Of sorted values."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0


class Books:
    def __init__(self, store, receiver_log, generator_log, done, stalls):
        """`stalls`: (node, proxy, time, milliseconds)."""
        self.done = sorted(done, key=lambda d: d.begin)
        self.read_clients(generator_log)
        self.read_services(receiver_log, stalls)
        self.read_tables(store)
        self.quiet = Quiet(self.done)

    # ---- Reading

    def read_clients(self, path):
        self.submissions = 0
        self.tasks = {}        # key → first answer
        self.by_trace = {}
        self.other_trace = []  # G2: a later answer with another trace id
        self.cancels = {}
        self.moves = collections.defaultdict(list)
        self.unanswered = []
        for kind, *fields in read_log(path):
            if kind == "sub":
                task = Submitted(*fields)
                self.submissions += 1
                first = self.tasks.setdefault(task.key, task)
                self.by_trace[first.trace] = first
                if task.trace != first.trace:
                    self.other_trace.append((task.key, first.trace, task.trace))
            elif kind == "cancel":
                self.cancels[fields[0]] = Change(*fields)
            elif kind == "move":
                self.moves[fields[0]].append(Change(*fields))
            else:
                self.unanswered.append(fields[0])

    def read_services(self, path, stalls):
        self.requests = []
        self.answers = {}  # number of the request → (time, status)
        here = []
        for kind, *fields in read_log(path):
            if kind == "r":
                self.requests.append(Request(*fields))
            elif kind == "a":
                self.answers[fields[1]] = (fields[0], fields[2])
            else:
                here.append(fields)
        self.stalls = Stalls(here + [stall for _, _, *stall in stalls])
        # Of what a node's requests pass through.
        self.on_the_way = {name: Stalls(here + [
            stall for node, proxy, *stall in stalls
            if node.name == name and proxy is node.services])
            for name in {request.node for request in self.requests}}
        self.of = collections.defaultdict(list)
        for request in self.requests:
            self.of[request.trace].append(request)

    def read_tables(self, store):
        ms = IN_MS[store.kind]

        def rows(table):
            return [Row(int(r[0]), *r[1:4], int(r[4]), r[5], *map(int, r[6:9]), r[9])
                    for r in store.query(f"SELECT {TASK_COLUMNS} FROM {table}")]

        self.live = rows("job_delay_task")
        self.history = rows("job_delay_task_history")
        self.row_of = {row.trace: row for row in self.history + self.live}
        self.failed = collections.defaultdict(dict)  # id → attempt → Failed
        for r in store.query(f"SELECT task_id, attempt, {ms.format('started_at')}, "
                             f"{ms.format('ended_at')}, outcome, coalesce(node, '') "
                             "FROM job_attempt"):
            self.failed[int(r[0])][int(r[1])] = Failed(int(r[1]), int(r[2]), int(r[3]), r[4], r[5])

    # ---- What was promised

    def accepted_is_durable(self):
        """G1"""
        none(self.unanswered, "requests without a right answer")
        none(set(self.by_trace) - set(self.row_of), "accepted, and in no table")

    def one_task_per_key(self):
        """G2"""
        none(self.other_trace, "another trace id for the same key")
        counts = collections.Counter(row.key for row in self.history + self.live)
        none([key for key, n in counts.items() if n > 1], "keys that stand twice")
        equal(len(counts), len(self.tasks), "tasks in the tables")
        none([(row.key, row.trace) for row in self.row_of.values()
              if row.trace not in self.by_trace], "tasks that no client was told of")

    def is_doomed(self, task):
        return task.handler == "doomed"

    def is_cancelled(self, task):
        change = self.cancels.get(task.key)
        return bool(change) and change.status == 200

    def lost(self):
        """Not one attempt arrived, and nobody is told of it."""
        return [t.key for t in self.tasks.values() if not self.of.get(t.trace) and
                self.row_of[t.trace].status not in ("CANCELLED", "FAILED")]

    def stuck(self):
        return [row for row in self.live if row.status != "FAILED"]

    def nothing_is_lost(self):
        """G3"""
        none(self.lost(), "accepted, not cancelled and never delivered")
        none(self.stuck(), "tasks that came to no end")
        none([r for r in self.requests if r.trace not in self.by_trace],
             "deliveries of what nobody submitted")
        none([r for r in self.requests
              if (r.service, r.handler, r.hash) != self.by_trace[r.trace][1:3] +
              (self.by_trace[r.trace].hash,)], "deliveries with the wrong content")
        wrong = []
        for task in self.tasks.values():
            row = self.row_of[task.trace]
            wanted = ({"CANCELLED"} if self.is_cancelled(task) else
                      {"FAILED"} if self.is_doomed(task) else {"SUCCESS"})
            if row.status not in wanted:
                wrong.append((task.key, task.handler, row.status, wanted,
                              [a.outcome for a in self.failed[row.id].values()]))
        none(wrong, "tasks that ended otherwise than they should")

    def not_before(self, task, at):
        """The earliest time at which a delivery that arrived at `at` could leave: a move counts
        once it was answered; while it is under way, either time does."""
        bound = task.execute_time
        for move in self.moves.get(task.key, []):
            if move.status == 200:
                bound = move.value if move.answered <= at else \
                    min(bound, move.value) if move.sent <= at else bound
            elif move.sent <= at:
                bound = min(bound, move.value)  # an earlier try of it may have worked
        return bound

    def claimed(self, request):
        """When its attempt began, or at the latest: a request may stand still on its way, and what
        moved its task meanwhile came after it."""
        failed = self.failed[self.row_of[request.trace].id].get(request.attempt)
        return min(request.at, failed.started) if failed else request.at

    def early(self):
        return [(r.trace, r.attempt, r.at - bound) for r in self.requests
                if r.at < (bound := self.not_before(self.by_trace[r.trace], self.claimed(r)))]

    def otherwise_than_wanted(self):
        """Tasks that were to be executed at another time from the beginning: a wrong clock."""
        return [(t.key, t.execute_time, t.wanted) for t in self.tasks.values()
                if not t.wanted[0] - CLOCK <= t.execute_time <= t.wanted[1] + CLOCK]

    def nothing_is_early(self):
        """G4"""
        none(self.otherwise_than_wanted(), "times other than the client's")
        none(self.early(), "early, in milliseconds")

    def twice(self):
        counts = collections.Counter((r.trace, r.attempt) for r in self.requests)
        return [key for key, n in counts.items() if n > 1]

    def claimer(self, row, attempt):
        """Who had that attempt, as the tables say; None for one that nobody has had. Of a rescued
        one they name the rescuer."""
        failed = self.failed[row.id].get(attempt)
        if failed:
            return failed.node if failed.outcome != "ghost" else ANYBODY
        return row.claimed_by if attempt == row.attempt else None

    def foreign(self):
        """Deliveries by a node that the tables do not know as the attempt's owner."""
        found = []
        for r in self.requests:
            claimer = self.claimer(self.row_of[r.trace], r.attempt)
            if not claimer or claimer != ANYBODY and claimer.split("/")[0] != r.node:
                found.append((r.trace, r.attempt, r.node, claimer))
        return found

    def after_the_rescue(self):
        """Deliveries of attempts that somebody else had ended, unless it was the network that kept
        them, or the harness."""
        found = []
        for r in self.requests:
            a = self.failed[self.row_of[r.trace].id].get(r.attempt)
            if a and a.outcome == "ghost" and \
                    r.at > a.ended + ON_THE_WAY + \
                    self.on_the_way[r.node].within(a.started, r.at) and not any(
                    d.begin <= r.at and a.started <= d.end for d in self.done
                    if d.name.startswith("services")):
                found.append((r.trace, r.attempt, r.node, r.at - a.ended))
        return found

    def one_live_attempt(self):
        """G5"""
        none(self.twice(), "attempts that were delivered twice")
        none(self.after_the_rescue(), "attempts that were sent after their rescue (by, ms)")
        none(self.foreign(), "attempts that another node had claimed (trace, attempt, by, claimed)")

    def terminal_is_terminal(self):
        """G6"""
        none([(c.key, self.row_of[self.tasks[c.key].trace].status) for c in self.cancels.values()
              if c.status == 200 and self.row_of[self.tasks[c.key].trace].status != "CANCELLED"],
             "cancelled, and then something else")
        none([r for r in self.requests if self.is_cancelled(self.by_trace[r.trace]) and
              r.attempt > self.cancels[self.by_trace[r.trace].key].value],
             "attempts after a cancellation")
        none([(r.trace, r.attempt) for r in self.requests
              if r.attempt > self.row_of[r.trace].attempt], "attempts after the end")

    def tries_are_bounded(self):
        """G7"""
        rows = self.row_of.values()
        none([row for row in rows if row.retry_count > row.max_retry], "more retries than allowed")
        none([row for row in rows if len(self.failed[row.id]) > row.max_retry + 1],
             "more failed attempts than allowed")
        for task in self.tasks.values():
            row = self.row_of[task.trace]
            if self.is_doomed(task) and row.status == "FAILED":
                equal(len(self.failed[row.id]), DOOMED_RETRIES + 1, f"tries of {task.key}")
        none([(row.trace, a.attempt) for row in rows for a in self.failed[row.id].values()
              if a.attempt + 1 in self.failed[row.id] and
              self.failed[row.id][a.attempt + 1].started <= a.ended], "retries without a delay")

    # ---- G9

    def recoveries(self):
        """Of each kill: (fault, seconds until the last of the dead node's tasks that fell due
        within the TTL was out, number of them)."""
        found = []
        by_due = sorted((max(task.execute_time, task.answered), task) for task in
                        self.tasks.values())
        for fault in self.done:
            if "killed" not in fault.seen:
                continue
            killed = fault.seen["killed"]
            keys = set(map(tuple, fault.seen["owned"]))
            latest, n = killed, 0
            for _, task in itertools.takewhile(
                    lambda at: at[0] <= killed + TTL * 1000,
                    itertools.islice(by_due, bisect.bisect_left(by_due, (killed,)), None)):
                row = self.row_of[task.trace]
                requests = self.of.get(task.trace)
                if ((task.service, row.shard) not in keys or task.key in self.moves or
                        not requests or
                        1 in self.failed[row.id] and self.failed[row.id][1].outcome == "ghost"):
                    continue
                n += 1
                latest = max(latest, requests[0].at)
            found.append((fault, (latest - killed) / 1000, n))
        return found

    def is_disturbed(self, begin, end):
        """Whether more than a node's own death was about."""
        return any(d.begin <= end and begin <= d.end + 1000 for d in self.done
                   if d.mixed or d.name not in ("kill -9", "SIGSTOP"))

    def rescues(self):
        """Attempts that nobody ended, as (seconds from claim to rescue, seconds allowed; None amid
        other faults)."""
        found = []
        for attempts in self.failed.values():
            for a in attempts.values():
                if a.outcome == "ghost":
                    until = a.started + (SENDING_LIMIT + RESCUE) * 1000
                    allowed = None if self.is_disturbed(a.started, until) else \
                        SENDING_LIMIT + RESCUE + self.stalls.within(a.started, a.ended) / 1000
                    found.append(((a.ended - a.started) / 1000, allowed))
        return found

    def nodes_are_replaced(self):
        """G9"""
        measured = [r for r in self.recoveries() if not r[0].mixed]
        check(measured, "no kill was measured")
        none([(fault.node, seconds) for fault, seconds, _ in measured
              if seconds > RECOVERY + self.stalls.within(
                  fault.begin, fault.begin + seconds * 1000) / 1000],
             f"recoveries that took longer than {RECOVERY} s")
        none(self.stuck(), "attempts that nobody rescued")
        none([seconds for seconds, allowed in self.rescues() if allowed and seconds > allowed],
             f"rescues later than {SENDING_LIMIT} + {RESCUE} s")

    # ---- Lateness

    def lateness(self):
        """(due, milliseconds, request) of first deliveries of tasks that were known ahead."""
        found = []
        for task in self.tasks.values():
            requests = self.of.get(task.trace)
            if requests and task.key not in self.moves and task.key not in self.cancels and \
                    task.execute_time - task.answered > 1000:
                found.append((task.execute_time, requests[0].at - task.execute_time, requests[0]))
        return found

    def lateness_by_phase(self):
        """Phase → sorted milliseconds."""
        phases = {"quiet": [], "fault": []}
        for due, late, _ in self.lateness():
            phases["fault" if self.quiet.is_busy(due, due + NEAR) else "quiet"].append(late)
        return {phase: sorted(values) for phase, values in phases.items()}

    # ---- The table

    def duplicates(self):
        """Deliveries after one that was answered well, by what became of the earlier attempt."""
        causes = collections.Counter()
        for trace, requests in self.of.items():
            row = self.row_of.get(trace)
            served = False
            for before, request in zip([None, *requests], requests):
                if before:
                    answer = self.answers.get(before.number)
                    served = served or bool(answer) and answer[1] < 300
                if served and request.attempt < before.attempt:
                    causes["stood still on its way"] += 1
                elif served:
                    failed = row and self.failed[row.id].get(before.attempt)
                    causes[failed.outcome if failed else "none"] += 1
        return causes

    def causes(self):
        return collections.Counter(a.outcome for attempts in self.failed.values()
                                   for a in attempts.values())

    def table(self):
        late = self.lateness_by_phase()
        rows = [
            ("submitted", f"{len(self.tasks)} tasks, {self.submissions} answers, "
                          f"{len(self.cancels)} cancellations, {len(self.moves)} moves"),
            ("delivered", f"{sum(bool(self.of.get(t.trace)) for t in self.tasks.values())} tasks"),
            ("attempts", f"{len(self.requests)} deliveries; failed: {counts(self.causes())}"),
            ("duplicates by cause", counts(self.duplicates())),
            ("early", len(self.early())),
            ("lost", len(self.lost())),
            ("stuck", len(self.stuck())),
            ("an attempt twice", len(self.twice())),
            ("an attempt by the wrong node", len(self.foreign())),
        ]
        for phase, values in late.items():
            rows.append((f"lateness, {phase}",
                         f"p50 {percentile(values, 0.5)}, p99 {percentile(values, 0.99)}, max "
                         f"{percentile(values, 1)} ms ({len(values)} tasks)"))
        for fault, seconds, n in self.recoveries():
            rows.append((f"recovery of {fault.node}{', amid others' if fault.mixed else ''}",
                         f"{seconds:.1f} s ({n} tasks)"))
        rescues = sorted(seconds for seconds, _ in self.rescues())
        alone = sum(allowed is not None for _, allowed in self.rescues())
        rows.append(("rescues",
                     f"{len(rescues)} ({alone} with no other fault), p50 "
                     f"{percentile(rescues, 0.5):.1f}, max {percentile(rescues, 1):.1f} s "
                     "after the claim"))
        rows.append(("stalls of the harness",
                     f"longest {self.stalls.longest} ms, all together {self.stalls.total} ms"))
        return rows


def counts(counter):
    return ", ".join(f"{n} {name}" for name, n in sorted(counter.items())) or "none"


def markdown(rows):
    return "\n".join(["| figure | value |", "|---|---|",
                      *(f"| {name} | {value} |" for name, value in rows)])


class Quiet:
    """When no fault was about."""

    def __init__(self, done):
        self.spans = []
        for fault in sorted(done, key=lambda d: d.begin):
            begin, end = fault.begin, fault.end + SETTLE * 1000
            if self.spans and begin <= self.spans[-1][1]:
                self.spans[-1][1] = max(self.spans[-1][1], end)
            else:
                self.spans.append([begin, end])
        self.begins = [begin for begin, _ in self.spans]

    def is_busy(self, begin, end):
        i = bisect.bisect_right(self.begins, end)
        return i > 0 and self.spans[i - 1][1] >= begin
