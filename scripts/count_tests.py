#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts test cases.

count_tests.py SUITE TESTLOG SUMMARY   reads meson's testlog.json, prints each program and what
                                       failed or was not run, and appends counts to SUMMARY
count_tests.py --table SUMMARY         prints the tables and "N passed, N failed"; status 1 on failures

A line of SUMMARY: group, program, passed, failed, not run, seconds, with tabs between them.
"""

import json
import pathlib
import re
import sys

TAP_LINE = re.compile(r"^(not )?ok\b(?:\s+\d+)?(?:\s*-)?\s*([^#]*)(#\s*(skip|todo)?\b\s*(.*))?", re.I)
STORES = ("sqlite", "postgres", "mysql")


def count(test):
    """(passed, names of failed cases, names of cases that were not run, with the reason)."""
    passed, failed, not_run = 0, [], []
    for line in (test.get("stdout") or "").splitlines():
        match = TAP_LINE.match(line)
        if not match:
            continue
        name = match.group(2).strip()
        if match.group(1) or (match.group(4) or "").lower() == "todo":
            reason = (match.group(5) or "").strip()
            failed.append(f"{name} ({reason})" if reason else name)
        elif match.group(4):
            not_run.append(f"{name}: {match.group(5).strip() or 'no reason given'}")
        else:
            passed += 1
    if test["result"] not in ("OK", "SKIP") and not failed:
        failed.append(f"{test['result']}, exit status {test.get('returncode')}")
    elif passed == 0 and not failed and not not_run:
        failed.append("no test case at all")
    return passed, failed, not_run


def report(suite, test):
    """Prints one program; returns its line of the summary."""
    name = test["name"].rsplit(" / ", 1)[-1]
    passed, failed, not_run = count(test)
    print(f"{'not ok' if failed else 'ok'} - {suite}: {name}: {passed} passed, "
          f"{len(failed)} failed ({test['duration']:.0f} s)")
    for case in not_run:
        print(f"    not run: {case}")
    if failed:
        for case in failed:
            print(f"    failed: {case}")
        for stream in ("stdout", "stderr"):
            for line in (test.get(stream) or "").splitlines()[-60:]:
                print(f"    {line}")
    folder = name.split("/")[0]
    group = suite if folder == suite else f"{suite} {folder}"
    return (group, name, passed, len(failed), len(not_run), round(test["duration"]))


def read_log(suite, log, summary):
    if not pathlib.Path(log).exists():
        print(f"not ok - {suite}: no test ran")
        rows = [(suite, suite, 0, 1, 0, 0)]
    else:
        with open(log, encoding="utf-8") as lines:
            tests = [json.loads(line) for line in lines]
        rows = [report(suite, test) for test in sorted(tests, key=lambda t: t["name"])]
    with open(summary, "a", encoding="utf-8") as out:
        for row in rows:
            out.write("\t".join(str(field) for field in row) + "\n")


def store_of(name):
    """("e2e/kill9", "mysql") of "e2e/kill9-mysql"; (name, None) of what runs on no store."""
    for store in STORES:
        if name.endswith(store):
            return name[:-len(store)].rstrip("-/_"), store
    return name, None


def print_stores(rows):
    """Which suites ran on which store, with how many cases."""
    cells = {}
    for group, name, passed, failed, *_ in rows:
        suite, store = store_of(name)
        if store:
            label = suite if group.split(" ")[0] == suite.split("/")[0] else f"{group.split(' ')[0]} {suite}"
            cell = cells.setdefault(label, {}).setdefault(store, [0, 0])
            cell[0] += passed
            cell[1] += failed
    if not cells:
        return
    print(f"\n{'suite, by store':<28} " + " ".join(f"{store:>10}" for store in STORES))
    for label, by_store in cells.items():
        texts = []
        for store in STORES:
            passed, failed = by_store.get(store, (0, 0))
            texts.append(f"{passed}" + (f"+{failed}!" if failed else "") if store in by_store else "-")
        print(f"{label:<28} " + " ".join(f"{text:>10}" for text in texts))


def print_table(summary):
    with open(summary, encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    rows = [(group, name, *map(int, numbers)) for group, name, *numbers in rows]
    groups = {}
    for group, _, *numbers in rows:
        groups[group] = [a + b for a, b in zip(groups.get(group, [0] * 4), numbers)]
    print_stores(rows)
    print(f"\n{'suite':<16} {'passed':>8} {'failed':>8} {'not run':>8} {'seconds':>8}")
    for group, totals in groups.items():
        print(f"{group:<16} " + " ".join(f"{number:>8}" for number in totals))
    passed, failed, not_run, _ = [sum(column) for column in zip(*groups.values())]
    print(f"\n{passed} passed, {failed} failed" + (f", {not_run} skipped" if not_run else ""))
    return 1 if failed or not passed else 0


def main():
    if sys.argv[1] == "--table":
        sys.exit(print_table(sys.argv[2]))
    read_log(*sys.argv[1:])


if __name__ == "__main__":
    main()
