# SPDX-License-Identifier: Apache-2.0
"""The figures as Markdown tables, which read well in a terminal too."""

import statistics

from figures import ROWS
from plan import OURS
from programs import PLAIN

# (title, rows)
TABLES = [
    ("PostgreSQL: throughput", ("batch", "single", "lifecycle", "lifecycle_http", "drain")),
    ("PostgreSQL: the parts of the limit", ("batch", "claim", "finish")),
    ("PostgreSQL: lateness at 500 a second, and bursts",
     ("late_p50", "late_p99", "late_p999", "late_max", "burst", "burst_http")),
    ("PostgreSQL: lateness at half of the highest rate",
     ("half_rate", "half_p50", "half_p99", "half_p999", "half_max")),
    ("CPU of the node", ("cpu",)),
    ("Stores", ("stores", "deadlocks")),
    ("Slower disks, 256 connections", ("slow_single", "slow_batch", "slow_lifecycle")),
    ("Pending tasks", ("pending", "pending_pair", "pending_memory")),
    ("Ageing", ("aged", "aged_limit", "aged_p50", "aged_p99", "aged_max")),
    ("Cluster", ("cluster", "wasted")),
]
LIMIT_PARTS = TABLES[1][0]  # whose other rows are in the table before
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def number(value):
    """Three digits at least, and no more after the point than they mean something."""
    value = round(value, 6)
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def cell(values):
    if not values:
        return ""
    middle = number(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({number(min(values))} to {number(max(values))})"


def table(head, lines):
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]

    def padded(cells):
        return "| " + " | ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(cells, widths))) + " |"
    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":"
                          for i, w in enumerate(widths)) + "|"
    return [padded(head), rule, *map(padded, lines)]


def figures_table(figures, title, rows):
    rows = [row for row in rows if figures.subjects(row)]
    subjects = sorted(dict.fromkeys(s for row in rows for s in figures.subjects(row)),
                      key=lambda s: (not s.startswith("limit"), not s.startswith(OURS)))
    if title == LIMIT_PARTS:
        subjects = [s for s in subjects if figures.get("claim", s)]
    if not subjects:
        return []
    head = ["", *(f"{ROWS[row][0]}{', ' + ROWS[row][1] if ROWS[row][1] else ''}" for row in rows)]
    return table(head, [[s, *(cell(figures.get(row, s)) for row in rows)] for s in subjects])


def fsync_line(figures, title):
    found = figures.notes.get("fsync", {})
    slow = title.startswith("Slower disks")
    chosen = [(name if slow else "", f) for name, f in found.items() if (name != PLAIN) == slow]
    return "; ".join(f"fdatasync by pg_test_fsync{', ' if name else ''}{name}: {f['us']:,.0f} µs"
                     for name, f in chosen)


def goals_table(judged):
    """What was not measured is left out: see unmeasured_goals."""
    def value(goal):
        text = number(goal["value"]) + goal["unit"]
        if goal["min"] != goal["max"]:
            text += f" ({number(goal['min'])} to {number(goal['max'])})"
        return text
    sign = {"least": "≥", "most": "≤"}
    return table(["goal", "measured", "wanted", "reached"], [
        [goal["goal"] + (f" ({goal['beside']})" if goal["beside"] else ""), value(goal),
         f"{sign[goal['at']]} {number(goal['bound'])}{goal['unit']}",
         "yes" if goal["reached"] else "**no**"]
        for goal in judged if goal["value"] is not None])


def unmeasured_goals(judged):
    return [goal["goal"] for goal in judged if goal["value"] is None]


def absent_peers(figures):
    """An earlier run whose figures were taken over may have had some of them."""
    measured = {subject for _, subject in figures.values}
    return [peer for peer in figures.notes.get("not_installed", []) if peer not in measured]


def profile_lines(figures):
    found = figures.notes.get("profile")
    if not found:
        return []
    return ["", "**Where the node's CPU time goes** (perf, by symbol)", "",
            *table(["share", "in", "symbol"], [[f"{share:.1f} %", place, f"`{symbol}`"]
                                               for share, place, symbol in found["lines"][:20]])]


def markdown(figures, judged):
    machine = figures.notes["machine"]
    lines = [f"{figures.notes['command']}, {figures.notes['repeat']} repetitions by turns: medians, "
             "and the lowest and highest figure of each. "
             + "; ".join(f"{name}: {value}" for name, value in machine.items()) + "."]
    if figures.notes["sizes"]["name"] != "full":
        lines += ["", f"Sizes of a {figures.notes['sizes']['name']} run: less than the goals speak "
                  "of."]
    for title, rows in TABLES:
        found = figures_table(figures, title, rows)
        if found:
            lines += ["", f"**{title}**", "", *found]
            if fsync_line(figures, title):
                lines += ["", fsync_line(figures, title)]
    lines += profile_lines(figures)
    lines += ["", "**Goals**", "", *goals_table(judged)]
    if unmeasured_goals(judged):
        lines += ["", f"Not measured in this run: {'; '.join(unmeasured_goals(judged))}."]
    if absent_peers(figures):
        lines += ["", f"Peers that are not installed: {', '.join(absent_peers(figures))}. `--full`, or "
                  "`--only` with their names, installs them."]
    if figures.missing:
        lines += ["", "**Could not be measured**", ""]
        lines += [f"- {subject}, {ROWS[row][0]}: {why}"
                  for (row, subject), why in figures.missing.items()]
    return "\n".join(lines) + "\n"


def write_markdown(path, text):
    """Between the marks of a file that has them, else the whole file."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if BEGIN in old and END in old:
        before, rest = old.split(BEGIN, 1)
        after = rest.split(END, 1)[1]
        text = f"{before}{BEGIN}\n{text}{END}{after}"
    path.write_text(text, encoding="utf-8")
