#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the medians, and the spread, of the figures that scripts/bench collected, as a Markdown table."""

import json
import statistics
import sys

ROWS = [
    ("batch submissions a second (500 a request)", "batch", "per_second"),
    ("single submissions a second (64 connections)", "single", "per_second"),
    ("lifecycles a second (one HTTP call per task)", "lifecycle", "per_second"),
    ("lateness at 1,000 a second, p50 ms", "lateness", "p50_ms"),
    ("lateness at 1,000 a second, p99 ms", "lateness", "p99_ms"),
    ("lateness at 1,000 a second, max ms", "lateness", "max_ms"),
]


def figures(path, measure, key):
    with open(path, encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    return [row[key] for row in found if row["measure"] == measure]


def main():
    folder, stores = sys.argv[1], sys.argv[2:]
    names = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
    print("| | " + " | ".join(names[s] for s in stores) + " |")
    print("|---|" + "---:|" * len(stores))
    for title, measure, key in ROWS:
        cells = []
        for store in stores:
            values = figures(f"{folder}/{store}.jsonl", measure, key)
            cells.append(f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})")
        print(f"| {title} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
