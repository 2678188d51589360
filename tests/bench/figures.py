# SPDX-License-Identifier: Apache-2.0
"""The figures of a run: for each row and subject the values of all repetitions, and what could not be
measured, with the reason.
"""

import statistics

# row → (what its column is called, unit, whether more is better)
ROWS = {
    "batch": ("batch submissions", "a second", True),
    "single": ("single submissions", "a second", True),
    "claim": ("claims", "a second", True),
    "finish": ("moves to history", "a second", True),
    "lifecycle": ("lifecycles, no call or one for many", "a second", True),
    "lifecycle_http": ("lifecycles, one HTTP call each", "a second", True),
    "drain": ("drain", "a second", True),
    "cpu": ("CPU of the node per lifecycle", "µs", False),
    "late_p50": ("p50", "ms", False),
    "late_p99": ("p99", "ms", False),
    "late_p999": ("p99.9", "ms", False),
    "late_max": ("the latest", "ms", False),
    "half_rate": ("rate", "a second", True),
    "half_p50": ("p50", "ms", False),
    "half_p99": ("p99", "ms", False),
    "half_p999": ("p99.9", "ms", False),
    "half_max": ("the latest", "ms", False),
    "burst": ("burst, no call", "ms", False),
    "burst_http": ("burst, one HTTP call each", "ms", False),
    "slow_single": ("single submissions", "a second", True),
    "slow_batch": ("batch submissions", "a second", True),
    "slow_lifecycle": ("lifecycles, one HTTP call each", "a second", True),
    "pending": ("lifecycles", "a second", True),
    "pending_pair": ("the ends by turns", "a second", True),
    "pending_memory": ("memory of the node", "MB", False),
    "aged": ("lifecycles, one HTTP call each", "a second", True),
    "aged_limit": ("the limit there, 1 session", "a second", True),
    "aged_p50": ("p50 while the snapshot grows old", "ms", False),
    "aged_p99": ("p99", "ms", False),
    "aged_max": ("the latest", "ms", False),
    "stores": ("lifecycles, one HTTP call each", "a second", True),
    "deadlocks": ("deadlocks in the node's log", "", False),
    "cluster": ("lifecycles, one HTTP call each", "a second", True),
    "wasted": ("wasted claims", "%", False),
}

MERGED = ("fsync", "histograms", "limit_batch", "section_seconds")  # notes that have many parts


class Figures:
    def __init__(self):
        self.values = {}  # (row, subject) → values in the order of the repetitions
        self.missing = {}  # (row, subject) → why there are none
        self.notes = {}  # what stands beside the figures: machine, sizes, histograms, …

    def add(self, row, subject, value):
        assert row in ROWS, row
        self.values.setdefault((row, subject), []).append(float(value))

    def miss(self, row, subject, why):
        self.missing[(row, subject)] = why

    def get(self, row, subject):
        return self.values.get((row, subject), [])

    def median(self, row, subject):
        values = self.get(row, subject)
        return statistics.median(values) if values else None

    def subjects(self, row):
        return [s for r, s in self.values if r == row]

    def take_over(self, document):
        """Of an earlier run, what this one has no figures of."""
        rows = {row for row, _ in self.values}
        for found in document["figures"]:
            if found["row"] not in rows:
                self.values[(found["row"], found["subject"])] = found["values"]
        for found in document["not_measured"]:
            if found["row"] not in rows:
                self.miss(found["row"], found["subject"], found["why"])
        for name, note in document.items():
            if name in MERGED:
                self.notes[name] = {**note, **self.notes.get(name, {})}
            elif name not in ("figures", "not_measured", "goals"):
                self.notes.setdefault(name, note)

    def document(self):
        """All of it, for JSON."""
        return {
            **self.notes,
            "figures": [
                {"row": row, "title": ROWS[row][0], "unit": ROWS[row][1],
                 "better": "more" if ROWS[row][2] else "less", "subject": subject,
                 "median": statistics.median(values), "min": min(values), "max": max(values),
                 "values": values}
                for (row, subject), values in self.values.items()],
            "not_measured": [{"row": row, "subject": subject, "why": why}
                             for (row, subject), why in self.missing.items()],
        }
