# SPDX-License-Identifier: Apache-2.0
"""The everyday sections: what PostgreSQL can do at best, JobFlow on it, its peers, and SQLite."""

import contextlib

import peerset
from plan import Measurement
from programs import PLAIN, fsync_figure
from rigs import Mariadb, Postgres, Rig, SqliteDatabase

NODE = "JobFlow"
LIMIT = "limit, 1 session"
LIMIT_2 = "limit, 2 sessions"
LIMIT_HTTP = "limit, HTTP alone"  # nothing is stored
MODES = {"push": NODE, "batch": f"{NODE}, batch push", "pull": f"{NODE}, pull"}


# ---- JobFlow ------------------------------------------------------------------------------------

def emptied(rig, measure, n, **options):
    rig.empty()
    return rig.bench(measure, n, **options)


def lifecycle(plan, rig, row, subject, n, with_cpu=False, **options):
    def run():
        rig.empty()
        before = rig.cpu()
        found = rig.bench("lifecycle", n, **options)
        plan.figures.add(row, subject, found["per_second"])
        if with_cpu:
            plan.figures.add("cpu", subject, (rig.cpu() - before) * 1e6 / found["n"])
    return Measurement(row, subject, run)


def submissions(plan, rig, subject):
    sizes = plan.sizes
    return [plan.rate("batch", subject, lambda: emptied(rig, "submit", sizes.batch, size=500,
                                                        connections=4)),
            plan.rate("single", subject, lambda: emptied(rig, "submit", sizes.single, size=1,
                                                         connections=64)),
            plan.rate("single", LIMIT_HTTP, lambda: plan.programs.stub(
                sizes.single, size=1, connections=64))]


def lifecycles(plan, rig, modes):
    """One HTTP call per task is what the peers' row with HTTP has; batch push and pull make few."""
    n = plan.sizes.lifecycle
    return [*(lifecycle(plan, rig, "lifecycle_http" if mode == "push" else "lifecycle",
                        MODES[mode], n, with_cpu=mode == "push", mode=mode) for mode in modes),
            plan.rate("drain", NODE, lambda: emptied(rig, "drain", n))]


def add_lateness(plan, subject, found, prefix):
    for key in ("p50", "p99", "p999", "max"):
        plan.figures.add(f"{prefix}_{key}", subject, found[f"{key}_ms"])
    histograms = plan.figures.notes.setdefault("histograms", {})
    name = f"{subject}, {found['rate']:,.0f} a second"
    total = dict(histograms.get(name, []))
    for ms, count in found["histogram"]:
        total[ms] = total.get(ms, 0) + count
    histograms[name] = sorted([ms, count] for ms, count in total.items())


def lateness(plan, rig, subject, prefix, rate):
    """Submitted one by one up to 1,000 a second, above that what is due in a millisecond at once."""
    size = max(1, rate // 1000)
    n = rate * plan.sizes.lateness_s // size * size
    return Measurement(f"{prefix}_p50", subject, lambda: add_lateness(
        plan, subject, emptied(rig, "lateness", n, rate=rate, size=size, connections=16), prefix))


def bursts(plan, rig, subject):
    def run():
        found = emptied(rig, "burst", plan.sizes.burst, ahead=plan.sizes.ahead_ms)
        plan.figures.add("burst_http", subject, found["all_ms"])
    return [Measurement("burst_http", subject, run)]


def note_fsync(plan, server, name=PLAIN):
    plan.figures.notes.setdefault("fsync", {})[name] = fsync_figure(server)


# ---- The limit ----------------------------------------------------------------------------------

def limit(plan, database, sessions, row, measure, targets):
    """With the batch size that is best in the first repetition. `targets`: measure → row."""
    subject = LIMIT if sessions == 1 else LIMIT_2
    sizes = plan.figures.notes.setdefault("limit_batch", {})
    key = f"{measure}, {subject}"

    def run_with(batch):
        database.empty()
        return plan.programs.limit(database, measure, plan.sizes.limit, batch=batch,
                                   sessions=sessions)

    def run():
        if key not in sizes:
            sizes[key] = max(plan.sizes.limit_batches, key=lambda batch: run_with(batch)[0]["per_second"])
        for found in run_with(sizes[key]):
            plan.figures.add(targets[found["measure"]], subject, found["per_second"])
    return Measurement(row, subject, run)


def limits(plan, database):
    phases = {"insert": "batch", "claim": "claim", "finish": "finish"}
    return [limit(plan, database, sessions, row, measure, targets)
            for sessions in (1, 2)
            for row, measure, targets in (("batch", "phases", phases),
                                          ("lifecycle", "lifecycle", {"lifecycle": "lifecycle"}))]


# ---- Sections -----------------------------------------------------------------------------------

def postgres(plan, wanted, peers):
    """limit, submissions, lifecycles, lateness: one server for all that is compared there."""
    with contextlib.ExitStack() as stack:
        plan.say("starting PostgreSQL")
        server = stack.enter_context(contextlib.closing(Postgres(plan.subfolder("main"))))
        note_fsync(plan, server)
        groups = {name: [] for name in ("limit", "submissions", "lifecycles", "lateness")}
        bare = server.database("bare")
        plan.programs.migrate(bare)
        rig = stack.enter_context(contextlib.closing(
            Rig(plan.programs, plan.subfolder("node"), server.database("jobflow"))))
        groups["limit"] += limits(plan, bare)
        groups["submissions"] += submissions(plan, rig, NODE)
        groups["lifecycles"] += lifecycles(plan, rig, MODES)
        groups["lateness"] += [lateness(plan, rig, NODE, "late", 500), *bursts(plan, rig, NODE)]
        add_peers(plan, server, peers, groups, stack)
        # The limit stands beside what is divided by it.
        if "submissions" in wanted or "lifecycles" in wanted or "limit" in wanted:
            together = groups["limit"] + [m for name in ("submissions", "lifecycles")
                                          if name in wanted for m in groups[name]]
            plan.by_turns("PostgreSQL", together)
        if "lateness" in wanted:
            plan.by_turns("lateness", groups["lateness"])
            half_rate(plan, rig)


def add_peers(plan, server, peers, groups, stack):
    if not peers:
        return
    receiver, url = plan.programs.receiver()
    stack.callback(receiver.wait)
    stack.callback(receiver.terminate)
    for opened in peerset.start(plan, peers, server, url, plan.folder):
        stack.enter_context(contextlib.closing(opened))
    for peer in peers:
        for group, measurement in peerset.measurements(plan, peer):
            groups[group].append(measurement)


def half_rate(plan, rig):
    """Lateness at half of the rate at which whole lifecycles go through."""
    highest = plan.figures.median("lifecycle_http", NODE)
    if not highest:
        highest = emptied(rig, "lifecycle", plan.sizes.lifecycle)["per_second"]
    rate = max(1, int(highest / 2))
    if rate > 1000:
        rate -= rate % 1000
    plan.figures.add("half_rate", NODE, rate)
    plan.by_turns("lateness at half of the highest rate", [lateness(plan, rig, NODE, "half", rate)])


def sqlite(plan, _wanted, _peers):
    """The embedded store, durable: synchronous=FULL."""
    with contextlib.ExitStack() as stack:
        folder = plan.subfolder("sqlite")
        bare = SqliteDatabase(folder, "bare")
        rig = stack.enter_context(contextlib.closing(
            Rig(plan.programs, folder, SqliteDatabase(folder, "jobflow"))))

        def bare_file():
            bare.empty()
            plan.programs.migrate(bare)
            return plan.programs.limit(bare, "lifecycle", plan.sizes.sqlite, batch=500)[0]

        plan.by_turns("SQLite", [
            plan.rate("stores", "limit, SQLite", bare_file),
            lifecycle(plan, rig, "stores", f"{NODE}, SQLite", plan.sizes.sqlite)])


def mariadb(plan, _wanted, _peers):
    """MariaDB beside PostgreSQL."""
    with contextlib.ExitStack() as stack:
        plan.say("starting MariaDB and PostgreSQL")
        rigs, found = {}, []
        for name, kind in (("MariaDB", Mariadb), ("PostgreSQL", Postgres)):
            server = stack.enter_context(contextlib.closing(kind(
                plan.subfolder(f"beside-{name.lower()}"))))
            bare = server.database("bare")
            plan.programs.migrate(bare)
            rigs[name] = stack.enter_context(contextlib.closing(
                Rig(plan.programs, plan.subfolder(f"node-{name.lower()}"),
                    server.database("measured"))))
            found.append(plan.rate("stores", f"limit, {name}", lambda b=bare: limit_of(plan, b)))
            found.append(lifecycle(plan, rigs[name], "stores", f"{NODE}, {name}",
                                   plan.sizes.lifecycle))
            if name == "PostgreSQL":
                note_fsync(plan, server)
        plan.by_turns("stores", found)
        if not plan.figures.get("stores", f"{NODE}, MariaDB"):
            return
        log = rigs["MariaDB"].nodes[0].log_file.read_text(encoding="utf-8", errors="replace")
        plan.figures.add("deadlocks", f"{NODE}, MariaDB", log.lower().count("deadlock"))


def limit_of(plan, database):
    database.empty()
    return plan.programs.limit(database, "lifecycle", plan.sizes.limit, batch=500)[0]
