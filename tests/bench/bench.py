#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures JobFlow beside its limit and its peers, and says which goals are reached.

Run by scripts/bench, which builds the programs first.
"""

import argparse
import copy
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile

import goals
import peerset
import plan as planning
import plots
import report
import sections
import sections_long
from figures import Figures
from programs import Programs

# name → (section, the row that stands for it where it could not be set up, the groups that it holds)
SECTIONS = {
    "postgres": (sections.postgres, "lifecycle", ("limit", "submissions", "lifecycles", "lateness")),
    "sqlite": (sections.sqlite, "stores", ("sqlite",)),
    "mariadb": (sections.mariadb, "stores", ("mariadb",)),
    "slow": (sections_long.slow_disk, "slow_single", ("slow",)),
    "pending": (sections_long.pending, "pending", ("pending",)),
    "aged": (sections_long.aged, "aged", ("aged", "aged_limit", "aged_p50", "aged_p99", "aged_max")),
    "cluster": (sections_long.cluster, "cluster", ("cluster",)),
    "profile": (sections_long.profile, "cpu", ("profile",)),
}
GROUPS = [group for _, _, groups in SECTIONS.values() for group in groups] + ["peers"]
QUICK_GROUPS = ["limit", "submissions", "lifecycles", "lateness", "sqlite", "peers"]


def document(name):
    try:
        with open(name, encoding="utf-8") as file:
            found = json.load(file)
        if {"figures", "not_measured", "machine", "sizes"} <= found.keys():
            return found
    except (OSError, ValueError) as why:
        raise argparse.ArgumentTypeError(f"{name}: {why}") from why
    raise argparse.ArgumentTypeError(f"{name} was not written by --json")


def check_earlier(parser, options):
    """Figures of different machines or sizes say nothing beside each other."""
    for earlier in options.earlier:
        here, there = machine(), earlier["machine"]
        for name in ("cores", "memory", "kernel", "PostgreSQL"):
            if there.get(name) != here[name]:
                parser.error(f"--with: its {name} is {there.get(name)}, not {here[name]}")
        if earlier["sizes"]["name"] != options.sizes.name:
            parser.error(f"--with: its sizes are those of --{earlier['sizes']['name']}")


def parse(words):
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__.split("\n")[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_const", dest="sizes", const=planning.QUICK,
                     default=planning.QUICK,
                     help="the everyday figures, in under 3 minutes (the default); peers only where "
                          "an earlier --full, or --only with their names, has installed them")
    how.add_argument("--full", action="store_const", dest="sizes", const=planning.FULL,
                     help="everything, with all peers: hours")
    how.add_argument("--tiny", action="store_const", dest="sizes", const=planning.TINY,
                     help="figures that mean nothing: to try the harness itself")
    parser.add_argument("--only", metavar="ROWS", type=lambda text: text.split(","),
                        help=f"some of: {', '.join(GROUPS)}; or names of peers")
    parser.add_argument("--repeat", metavar="N", type=int, default=5, choices=range(1, 100),
                        help="repetitions of each figure, by turns (5)")
    parser.add_argument("--with", metavar="FILE", dest="earlier", type=document, action="append",
                        default=[], help="what an earlier run wrote with --json: its figures stand "
                        "where this one has none, so that a long run can be made in parts")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path,
                        help="writes every figure with its spread, after each section")
    parser.add_argument("--markdown", metavar="FILE", type=pathlib.Path,
                        help="writes the tables, between the marks of a file that has them")
    parser.add_argument("--plots", metavar="DIR", type=pathlib.Path, help="draws SVG files")
    parser.add_argument("--peer-home", metavar="DIR", type=pathlib.Path,
                        default=peerset.default_home(), help="where the peers are installed")
    parser.add_argument("--programs", metavar="DIR", type=pathlib.Path, required=True,
                        help="the build folder")
    options = parser.parse_args(words)
    names = [peer.name for peer in peerset.all_peers(options.peer_home)]
    for name in options.only or []:
        if name not in GROUPS and name not in names:
            parser.error(f"--only: no row {name}; there are {', '.join(GROUPS + names)}")
    check_earlier(parser, options)
    if options.json and options.json.exists() and not options.json.is_file():
        parser.error(f"--json: {options.json} is not a file")
    return options


def wanted_groups(options):
    if options.only:
        wanted = list(options.only)
        if not any(group in wanted for group in SECTIONS["postgres"][2]) and \
                any(name == "peers" or name not in GROUPS for name in wanted):
            wanted += ["submissions", "lifecycles", "lateness"]  # what peers are compared in
        return wanted
    return GROUPS if options.sizes is planning.FULL else QUICK_GROUPS


def wanted_peers(options, groups):
    peers = peerset.all_peers(options.peer_home)
    if "peers" in groups:
        return peers
    return [peer for peer in peers if peer.name in groups]


def first_line(*command):
    try:
        answer = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, text=True,
                                capture_output=True, cwd=pathlib.Path(__file__).parent)
        return (answer.stdout.splitlines() or ["unknown"])[0]
    except OSError:
        return "none"


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as cpus:
        models = [line.split(":", 1)[1].strip() for line in cpus if line.startswith("model name")]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    postgres = first_line("sh", "-c", "ls /usr/lib/postgresql/*/bin/postgres | tail -1")
    return {
        "cores": f"{len(os.sched_getaffinity(0))} × {models[0] if models else platform.machine()}",
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
        "PostgreSQL": first_line(postgres, "--version").split("PostgreSQL) ")[-1].split(" ")[0],
        "commit": first_line("git", "rev-parse", "--short", "HEAD"),
        "date": datetime.date.today().isoformat(),
    }


def measure(options, figures, folder):
    groups = wanted_groups(options)
    plan = planning.Plan(Programs(options.programs.resolve()), figures, folder, options.sizes,
                         options.repeat, None)
    # --quick by itself takes what is there; who names peers wants them.
    peers = peerset.prepare(plan, wanted_peers(options, groups),
                            options.sizes is planning.FULL or bool(options.only))
    for section, row, holds in SECTIONS.values():
        if any(group in groups for group in holds):
            sections_long.guarded(plan, section, row, groups, peers)
            write_json(options, merged(options, figures))  # hours may be lost with what comes next
    plan.say("done\n")
    return plan


def merged(options, figures):
    """With what earlier runs have measured, where this one has nothing (so far)."""
    whole = copy.deepcopy(figures)
    for earlier in options.earlier:
        whole.take_over(earlier)
    commits = {found["machine"]["commit"] for found in [figures.notes, *options.earlier]}
    whole.notes["machine"]["commit"] = ", ".join(sorted(commits))
    return whole


def write_json(options, whole):
    if options.json:
        document = {**whole.document(), "goals": goals.judge(whole)}
        new = options.json.with_name(options.json.name + ".new")  # what is there stays until then
        new.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        new.replace(options.json)


def stop(number, _frame):
    raise SystemExit(128 + number)


def main():
    options = parse(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    figures = Figures()
    figures.notes.update(
        command="`scripts/bench " + f"--{options.sizes.name}`", repeat=options.repeat,
        machine=machine(), sizes=dataclasses.asdict(options.sizes))
    with tempfile.TemporaryDirectory(prefix="jobflow-bench-") as folder:
        os.chmod(folder, 0o755)  # the servers' users have to reach theirs
        plan = measure(options, figures, folder)
    figures = merged(options, figures)
    text = report.markdown(figures, goals.judge(figures))
    sys.stdout.write(text)
    write_json(options, figures)
    if options.markdown:
        report.write_markdown(options.markdown, text)
    if options.plots:
        plots.write(figures, options.plots)
    return 1 if plan.failed else 0


if __name__ == "__main__":
    sys.exit(main())
