#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts test cases.

count_tests.py SUITE TESTLOG SUMMARY   reads meson's testlog.json, prints each program and what
                                       failed, and appends counts to SUMMARY
count_tests.py --table SUMMARY         prints the table and "N passed, N failed"; status 1 on failures
"""

import json
import pathlib
import re
import sys

TAP_LINE = re.compile(r"^(not )?ok\b(?:\s+\d+)?(?:\s*-)?\s*([^#]*)(#\s*(skip|todo)\b.*)?", re.I)


def count(test):
    """(passed, names of failed cases). A skipped case is one that did not pass."""
    passed, failed = 0, []
    for line in (test.get("stdout") or "").splitlines():
        match = TAP_LINE.match(line)
        if not match:
            continue
        if match.group(1) or match.group(3):
            failed.append(match.group(2).strip())
        else:
            passed += 1
    if test["result"] != "OK" and not failed:
        failed.append(f"{test['result']}, exit status {test.get('returncode')}")
    elif passed == 0 and not failed:
        failed.append("no test case at all")
    return passed, failed


def read_log(suite, log, summary):
    if not pathlib.Path(log).exists():
        print(f"not ok - {suite}: no test ran")
        rows = [(suite, 0, 1, 0)]
    else:
        rows = []
        with open(log, encoding="utf-8") as lines:
            tests = [json.loads(line) for line in lines]
        for test in sorted(tests, key=lambda t: t["name"]):
            name = test["name"].rsplit(" / ", 1)[-1]
            passed, failed = count(test)
            print(f"{'not ok' if failed else 'ok'} - {suite}: {name}: {passed} passed, "
                  f"{len(failed)} failed ({test['duration']:.0f} s)")
            if failed:
                for case in failed:
                    print(f"    failed: {case}")
                for stream in ("stdout", "stderr"):
                    for line in (test.get(stream) or "").splitlines()[-60:]:
                        print(f"    {line}")
            folder = name.split("/")[0]
            group = suite if folder == suite else f"{suite} {folder}"
            rows.append((group, passed, len(failed), test["duration"]))
    with open(summary, "a", encoding="utf-8") as out:
        for group, passed, failed, seconds in rows:
            out.write(f"{group}\t{passed}\t{failed}\t{seconds:.0f}\n")


def print_table(summary):
    groups = {}
    with open(summary, encoding="utf-8") as rows:
        for row in rows:
            group, *numbers = row.rstrip("\n").split("\t")
            totals = groups.setdefault(group, [0, 0, 0])
            for i, number in enumerate(numbers):
                totals[i] += int(number)
    print(f"\n{'suite':<16} {'passed':>8} {'failed':>8} {'seconds':>8}")
    for group, (passed, failed, seconds) in groups.items():
        print(f"{group:<16} {passed:>8} {failed:>8} {seconds:>8}")
    passed = sum(totals[0] for totals in groups.values())
    failed = sum(totals[1] for totals in groups.values())
    print(f"\n{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def main():
    if sys.argv[1] == "--table":
        sys.exit(print_table(sys.argv[2]))
    read_log(*sys.argv[1:])


if __name__ == "__main__":
    main()
