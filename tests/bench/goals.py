# SPDX-License-Identifier: Apache-2.0
"""What must be reached, as data, and whether it was."""

import dataclasses
import statistics

from plan import OURS
from sections import LIMIT, MODES, NODE


@dataclasses.dataclass
class Goal:
    title: str
    top: tuple  # (row, subject)
    bound: float
    bottom: tuple = None  # likewise: what it is divided by
    most: bool = False  # the bound is the most that it may be, not the least
    less: bool = False  # the bottom is taken away, not divided by
    unit: str = ""


# Stand for the subject of a row that fits.
BEST_PEER = "the best peer"
FIRST, LAST = "the first", "the last"
SLOW = f"{NODE}, {{}} ms added to each sync"

GOALS = [
    Goal("batch submission ÷ limit, one session", ("batch", NODE), 1.0, ("batch", LIMIT)),
    Goal("single submissions over HTTP, 64 connections", ("single", NODE), 25_000, unit=" a second"),
    Goal("single submissions ÷ the best peer's single enqueues", ("single", NODE), 5,
         ("single", BEST_PEER)),
    Goal("lifecycle, one HTTP call per task ÷ the best peer with an HTTP call per job",
         ("lifecycle_http", NODE), 3, ("lifecycle_http", BEST_PEER)),
    Goal("lifecycle, one HTTP call per task ÷ the best peer with an in-process no-op",
         ("lifecycle_http", NODE), 1.0, ("lifecycle", BEST_PEER)),
    Goal("lifecycle with batch push ÷ limit", ("lifecycle", MODES["batch"]), 0.8,
         ("lifecycle", LIMIT)),
    Goal("lifecycle with pull ÷ limit", ("lifecycle", MODES["pull"]), 0.8, ("lifecycle", LIMIT)),
    Goal("lateness at half of the highest rate, p50", ("half_p50", NODE), 2, most=True, unit=" ms"),
    Goal("the same, p99", ("half_p99", NODE), 10, most=True, unit=" ms"),
    Goal("the same, p99.9", ("half_p999", NODE), 50, most=True, unit=" ms"),
    Goal("10,000 tasks due in the same millisecond, one HTTP call each", ("burst_http", NODE), 700,
         most=True, unit=" ms"),
    Goal("single submissions with 1 ms added to each sync ÷ without, 256 connections",
         ("slow_single", SLOW.format(1)), 0.8, ("slow_single", SLOW.format(0))),
    Goal("single submissions with 5 ms added to each sync ÷ without, 256 connections",
         ("slow_single", SLOW.format(5)), 0.5, ("slow_single", SLOW.format(0))),
    Goal("throughput with the most pending ÷ with the fewest", ("pending_pair", LAST), 0.9,
         ("pending_pair", FIRST)),
    Goal("memory of the node with the most pending − with the fewest", ("pending_memory", LAST), 20,
         ("pending_memory", FIRST), most=True, less=True, unit=" MB"),
    Goal("throughput after the finished tasks and with an old snapshot ÷ fresh", ("aged", LAST), 0.8,
         ("aged", FIRST)),
    Goal("CPU of the node per lifecycle", ("cpu", NODE), 35, most=True, unit=" µs"),
    Goal("MariaDB: lifecycle ÷ PostgreSQL's", ("stores", f"{NODE}, MariaDB"), 0.6,
         ("stores", f"{NODE}, PostgreSQL")),
    Goal("MariaDB: deadlocks surfaced", ("deadlocks", f"{NODE}, MariaDB"), 0, most=True),
    Goal("SQLite, durable: lifecycle, one HTTP call per task", ("stores", f"{NODE}, SQLite"), 15_000,
         unit=" a second"),
    Goal("3 nodes ÷ 1 node on the same cores", ("cluster", f"{NODE}, 3 nodes"), 0.85,
         ("cluster", f"{NODE}, 1 node")),
    Goal("3 nodes: wasted claims", ("wasted", f"{NODE}, 3 nodes"), 2, most=True, unit=" %"),
]


def best_peer(figures, row):
    peers = [s for s in figures.subjects(row) if not s.startswith(OURS)]
    return max(peers, key=lambda s: figures.median(row, s), default=None)


def resolve(figures, at):
    """(row, subject) with the subject's real name, or None while nothing was measured."""
    row, subject = at
    if subject == BEST_PEER:
        subject = best_peer(figures, row)
    elif subject in (FIRST, LAST):
        subjects = figures.subjects(row)
        subject = subjects[0 if subject == FIRST else -1] if len(subjects) > 1 else None
    return (row, subject) if subject and figures.get(row, subject) else None


def values_of(figures, goal):
    """(values, what they were compared with): by pairs where both were measured by turns."""
    top = resolve(figures, goal.top)
    bottom = resolve(figures, goal.bottom) if goal.bottom else None
    if not top or (goal.bottom and not bottom):
        return None, None
    above = figures.get(*top)
    if not bottom:
        return above, None
    below = figures.get(*bottom)
    if len(above) != len(below):
        above, below = [statistics.median(above)], [statistics.median(below)]
    if goal.less:
        return [a - b for a, b in zip(above, below)], bottom[1]
    return [a / b for a, b in zip(above, below)], bottom[1]


def judge(figures):
    """A dict for each goal: value is None where it was not measured."""
    found = []
    for goal in GOALS:
        values, beside = values_of(figures, goal)
        value = statistics.median(values) if values else None
        found.append({
            "goal": goal.title, "bound": goal.bound, "at": "most" if goal.most else "least",
            "unit": goal.unit, "beside": beside, "value": value,
            "min": min(values) if values else None, "max": max(values) if values else None,
            "reached": None if value is None else
                       value <= goal.bound if goal.most else value >= goal.bound})
    return found
