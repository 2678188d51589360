#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves that the simulation can fail: puts one bug at a time into a copy of the scheduler, of the
fake store or of the virtual node, and expects some seed to catch it. TAP; a bug that survives is
"not ok", and so is one whose place in the source is no longer there.

    mutants.py SOURCE_ROOT [NAME…]    NAME: only the bugs whose name contains it
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SEEDS = int(os.environ.get("MUTANT_SEEDS", "1650"))
FOLDERS = ["common", "proto", "node/core", "tests/sim"]
MORE = ["node/parcel_learn.c"]
HEADERS = ["node"]
CFLAGS = "-std=gnu11 -D_GNU_SOURCE -O1 -w".split()

# (name, file, as it stands, as it is broken)
MUTANTS = [
    ("a claim without its time", "tests/sim/fake_hot.c",
     "    if (row->t->next_attempt_time > now) {", "    if (0) {"),
    ("a claim without its attempt", "tests/sim/fake_hot.c",
     " || row->t->attempt != item->attempt)\n        return;", ")\n        return;"),
    ("a claim that takes another node's for its own", "tests/sim/fake_hot.c",
     "        str_eq(row->t->claimed_by, holder)) {", "        1) {"),
    ("a claim that does not count the attempt", "tests/sim/fake_hot.c",
     "    next.attempt++;\n", ""),
    ("a finish without its attempt", "tests/sim/fake_hot.c",
     "if (fake_status_in(row, f->from) && row->t->attempt == f->attempt &&",
     "if (fake_status_in(row, f->from) &&"),
    ("a finish without its status", "tests/sim/fake_hot.c",
     "    if (fake_status_in(row, f->from) &&", "    if ("),
    ("a rescue without its deadline", "tests/sim/fake_hot.c",
     "(!f->past_deadline || row->t->deadline_at <= fake_now(db))", "1"),
    ("a put-back that forgets a snooze", "tests/sim/fake_hot.c",
     "        next.snooze_count += f->snoozed;\n", ""),
    ("a failure without an alert", "tests/sim/fake_hot.c",
     "    if (f->kind == FINISH_FAIL && f->alert)", "    if (0)"),
    ("a cancel of an attempt on its way", "tests/sim/fake_hot.c",
     "    if (fake_status_in(row, TASK_CANCELLABLE)) {",
     "    if (fake_status_in(row, TASK_CANCELLABLE | TASK_IN_FLIGHT)) {"),
    ("a submission that does not look into history", "tests/sim/fake_hot.c",
     "    if (!row) {\n        fake_service_seen", "    if (!row || !row->live) {\n        fake_service_seen"),
    ("a replacement of a task in flight", "tests/sim/fake_hot.c",
     "    if (!fake_status_in(row, TASK_WAITING)) {\n        item->result",
     "    if (!row->live) {\n        item->result"),
    ("every orphan is one's own", "tests/sim/fake_hot.c",
     "    return t->status == TASK_SENDING && prefix",
     "    return t->status == TASK_SENDING || prefix"),
    ("living attempts pass for orphans", "tests/sim/fake_hot.c",
     " &&\n           !str_eq(t->claimed_by, claimed_by);", ";"),
    ("a heartbeat that brings the deadline closer", "tests/sim/fake_calls.c",
     "    if (next.deadline_at < now + length)\n", ""),
    ("a heartbeat after the deadline", "tests/sim/fake_calls.c",
     " ||\n        row->t->deadline_at <= now)", ")"),
    ("a move that leaves the old time", "tests/sim/fake_calls.c",
     "        next.execute_time = next.next_attempt_time = c->execute_time;",
     "        next.execute_time = c->execute_time;"),
    ("a manual run that nobody is named for", "tests/sim/fake_calls.c",
     "    db->audits[db->n_audits++] = next.id;\n", ""),
    ("a request that knows no fence", "tests/sim/vnode_send.c",
     "    if (s->now >= f->send_by || n->stopping) {", "    if (n->stopping) {"),
    ("a fence that a repeated claim moves", "node/core/sched_claim.c",
     "    return by_claim < by_question ? by_claim : by_question;",
     "    (void)by_claim;\n    return by_question;"),
    ("a retry that is not counted", "node/core/retry.c",
     "    ret->retry_count = f->retry_count + 1;\n", ""),
    ("one retry too many", "node/core/retry.c",
     "    if (f->retry_count >= f->max_retry) {", "    if (f->retry_count > f->max_retry) {"),
    ("snoozes without an end", "node/core/retry.c",
     "        if (f->snooze_count < p->max_snoozes) {", "        if (1) {"),
    ("a wait beyond its cap", "node/core/retry.c",
     "    return wish > backoff ? wish : backoff;", "    return wish + backoff;"),
    ("a retry without a wait", "node/core/retry.c",
     "    ret->next_attempt_time = now + retry_wait(p, f, v, rng);",
     "    ret->next_attempt_time = now + 1 - 1 + 0 * retry_wait(p, f, v, rng);"),
    ("a claim given back that costs a try", "node/core/retry.c",
     '        decide_put_back(now + 1, "unsent", ret);',
     '        decide_put_back(now + 1, "unsent", ret);\n        ret->retry_count++;'),
    ("a rescue that does not ask for the deadline", "node/core/sched_finish.c",
     "    item.past_deadline = !g->own_orphan;", "    item.past_deadline = false;"),
    ("a rescue of whatever stands there", "node/core/sched_finish.c",
     "    item.from = task_status_bit(g->status);", "    item.from = 0;"),
    ("a failed finish that is forgotten in memory", "node/core/sched_finish.c",
     "    if (rc) {\n        finish_park(s, e);\n        return;\n    }\n    s->pause_ms = 0;\n"
     "    s->pause_until = WALL_NONE;\n    if (item->result",
     "    if (rc)\n        return;\n    if (item->result"),
    ("ghosts that nobody sees", "node/core/sched_scan.c",
     "    if (e && e->track != TRACK_GHOST && (e->track > TRACK_READY",
     "    if (1 || (e->track > TRACK_READY"),
    ("no full reads", "node/core/sched_scan.c",
     "    if (is_due && l->full_at <= s->now && room)", "    if (0)"),
    ("scans that do not look ahead", "node/core/sched_scan.c",
     "    wall_ms to = room ? s->now + s->cfg.lookahead_ms : s->now;",
     "    wall_ms to = s->now + 0 * room;"),
    ("scans further apart than they look ahead", "node/core/sched_scan.c",
     "    return s->cfg.scan_interval_ms < half ? s->cfg.scan_interval_ms : half;",
     "    return s->cfg.lookahead_ms * 2;"),
    ("a task that keeps its old lane", "node/core/sched_scan.c",
     "        (e->track == TRACK_GHOST || (is_queued(e->track) && e->lane != l))) {",
     "        e->track == TRACK_GHOST) {"),
    ("retries that take every slot", "node/core/sched_claim.c",
     "    return v->n_retry_slots < retry_slots(concurrency);", "    return true;"),
    ("no limit for a service", "node/core/sched_claim.c",
     "    if (v->n_ready == v->n_ready_retries || v->n_slots >= concurrency)\n        return false;",
     "    concurrency += 2;\n    if (v->n_ready == v->n_ready_retries)\n        return false;"),
    ("no limit for the node", "node/core/sched_claim.c",
     "    if (used >= max)\n        return false;", "    if (used > max)\n        return false;"),
    ("no reserve for the others", "node/core/sched_claim.c",
     "    return v->n_in_flight < max / (s->n_ring + 1) + 1;", "    return true;"),
    ("a reserve that the only busy service takes", "node/core/sched_claim.c",
     "    if (used < max - max / 4)", "    if (used < max - max / 4 || s->n_ring < 2)"),
    ("the urgent go last", "node/core/sched_claim.c",
     "    for (int32_t n = from; n < to; n++) {", "    for (int32_t n = to - 1; n >= from; n--) {"),
    ("a claim that goes on while the store is away", "node/core/sched_claim.c",
     "    if (!s->store_up || s->stopping || s->now < s->pause_until)", "    if (s->now < s->pause_until)"),
    ("an early claim that is repeated at once", "node/core/sched_claim.c",
     "            claim_was_early(s, e, item->next_attempt_time);",
     "            ready_push(s, e);"),
    ("a timer that wakes nobody", "node/core/sched.c",
     "    wall_ms at = timer ? timer->key : WALL_MAX;", "    wall_ms at = WALL_MAX;\n\n    (void)timer;"),
    ("a slot that is never given back", "node/core/sched.c",
     "    v->n_slots += (uint32_t)holds_slot(to) - (uint32_t)holds_slot(from);",
     "    v->n_slots += (uint32_t)(holds_slot(to) && !holds_slot(from));"),
    ("a late hint that counts more than the store", "node/core/sched_claim.c",
     "    case CLAIM_LOST:\n        s->n_claims_lost++;\n        entry_forget(s, e);",
     "    case CLAIM_LOST:\n        s->n_claims_lost++;\n        ready_push(s, e);"),
    ("a lost shard keeps its queue", "node/core/sched_members.c",
     "    drop_entries(s, is_foreign, NULL);\n", ""),
    ("a lost shard is scanned on", "node/core/sched_scan.c",
     "    return !s->stopping && !l->svc->gone && l->owned;", "    return !s->stopping && !l->svc->gone;"),
    ("a gained shard is not read", "node/core/sched_members.c",
     "        if (owned)\n            lane_start(s, l);", "        if (owned)\n            (void)l;"),
    ("all members own everything", "node/core/sched_members.c",
     "    return owner != OWNERSHIP_NOBODY && str_eq(s->members[owner], s->cfg.node);",
     "    return owner != OWNERSHIP_NOBODY;"),
    ("a new lane that nobody asks whose it is", "node/core/sched_services.c",
     "        l->owned = sched_owns(s, v->name, shard);", "        l->owned = true;"),
    ("a view that never grows old", "node/core/view.c",
     "        if (at != NEVER && now - at <= v->ttl_ms) {\n            *ret_until = at + v->ttl_ms + 1;",
     "        if (at != NEVER) {\n            *ret_until = now + v->ttl_ms + 1;"),
    ("rows that nobody goes by", "node/core/view.c",
     "    for (enum view_source s = VIEW_ETCD; s <= VIEW_ROWS; s++) {",
     "    for (enum view_source s = VIEW_ETCD; s < VIEW_ROWS; s++) {"),
    ("a drain that etcd alone may tell of", "node/core/view.c",
     "row->epoch >= ret[i].epoch && has_given_up(row->state)", "0"),
    ("an owner by another's key", "node/core/members_view.c",
     "(v->state == MEMBER_ACTIVE && m->epoch == v->epoch)", "1"),
    ("a drained node that goes on", "node/core/members_view.c",
     "    if (v->is_drained || v->is_stopping)", "    if (v->is_stopping)"),
    ("a stopping node that goes on", "node/core/members_view.c",
     "    if (v->is_drained || v->is_stopping)", "    if (v->is_drained)"),
    ("a look that comes too late", "node/core/members_view.c",
     "    ret->is_new_state = state != v->state;",
     "    ret->is_new_state = state != v->state;\n    ret->look_again += 5000;"),
    ("a node that is cut off and stays", "node/core/members_view.c",
     "    return v->source == VIEW_ETCD && !view_is_fresh(&v->view, VIEW_ROWS, now);",
     "    (void)v;\n    (void)now;\n    return false;"),
    ("a list without this node that is believed", "node/core/members_view.c",
     "    if (self && self->epoch == v->epoch && self->state == v->state)", "    if (source == VIEW_ETCD)"),
    ("owners of whom nobody hears", "node/core/members_view.c",
     "    is_new |= n != v->n_owners;\n", ""),
    ("a hint that takes what is another's", "node/core/sched.c",
     "    if (!l->owned || s->stopping)\n        return HINT_FOREIGN;\n", ""),
    ("any lease of a process takes what another has", "tests/sim/fake_hot.c",
     "    struct str holder = claim_holder(item, claimed_by, text);\n",
     "    struct str holder = claimed_by;\n\n    (void)text;\n"),
    ("tasks for a worker that has gone", "node/core/sched_pull.c",
     "    if (l->ended || (!t->timeout_ms", "    if ((!t->timeout_ms"),
    ("a lease that is not asked again", "node/core/sched_pull.c",
     "    } else {\n        lease_open(s, l, true);\n    }", "    }"),
    ("more tasks than the worker asked for", "node/core/sched_pull.c",
     "    if (++l->n_out == l->want)", "    if (++l->n_out == l->want + 1)"),
    ("a round that never ends", "node/core/sched_claim.c", "    lease_round_end(s);\n", ""),
    ("a leased row that stays in the books", "node/core/sched_claim.c",
     "        note_claimed(s, e->id, e->attempt);\n        entry_forget(s, e);",
     "        note_claimed(s, e->id, e->attempt);\n        entry_move(s, e, TRACK_SENDING);"),
    ("a task without a result that passes for done", "node/core/verdict_batch.c",
     "    if (b->parts[i] == NO_PART)\n",
     "    if (b->parts[i] == NO_PART)\n        b->verdict.kind = VERDICT_SUCCESS;\n    else if (0)\n"),
    ("results that count by their place", "node/core/verdict_batch.c",
     "    if (guess < x->n && is_id(id, x->trace_ids[guess]))", "    if (guess < x->n)"),
    ("of two results that differ the first counts", "node/core/verdict_batch.c",
     "        *part = CONTRADICTION;\n", "        return;\n"),
    ("a refused batch whose tasks all fail", "node/core/verdict_batch.c",
     "    if (n > 1 && a->sent && !a->failure.p && verdict_wants_fewer(a->http_status)) {", "    if (0) {"),
    ("refused tasks that meet again in as many", "node/parcel_learn.c",
     "    uint32_t max_tasks = (uint32_t)batch_size >> k;", "    uint32_t max_tasks = (uint32_t)batch_size;"),
    ("tasks of different time limits in one request", "tests/sim/vnode_parcel.c",
     " || q->timeout_ms != f->timeout_ms)", ")"),
    ("a batch that knows no fence", "tests/sim/vnode_parcel.c",
     "        if (q->node->sim->now >= f->send_by) {\n            give_back(f);\n            continue;\n        }\n"
     "        q->flights[kept++] = f;\n        if (f->send_by < q->send_by)\n            q->send_by = f->send_by;\n",
     "        q->flights[kept++] = f;\n"),
]


def pkg_config(*args):
    out = subprocess.run(["pkg-config", *args, "libxxhash", "jansson", "yaml-0.1"], check=True,
                         capture_output=True, text=True).stdout
    return shlex.split(out)


class Build:
    """The sources once, as objects; each mutant replaces one of them."""

    def __init__(self, root, work):
        self.root, self.work = root, work
        self.cc = shlex.split(os.environ.get("CC", "cc"))
        self.cflags = CFLAGS + ["-I", str(work)] + pkg_config("--cflags")
        self.libs = pkg_config("--libs") + ["-lm", "-lpthread"]
        for folder in FOLDERS + HEADERS:
            shutil.copytree(root / folder, work / folder, dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        self.sources = sorted([p for f in FOLDERS for p in (work / f).glob("*.c")]
                              + [work / name for name in MORE])
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            self.objects = dict(zip(self.sources, pool.map(self.compile, self.sources)))

    def compile(self, source, suffix=".o"):
        target = source.with_suffix(suffix)
        subprocess.run([*self.cc, *self.cflags, "-c", str(source), "-o", str(target)], check=True)
        return target

    def link(self, objects, target):
        subprocess.run([*self.cc, "-o", str(target), *map(str, objects), *self.libs], check=True)

    def mutant(self, number, path, old, new):
        original = self.work / path
        text = original.read_text()
        if text.count(old) != 1:
            return None
        changed = original.with_name(f"mutant_{number}.c")
        changed.write_text(text.replace(old, new))
        objects = [o for s, o in self.objects.items() if s != original]
        target = self.work / f"mutant_{number}"
        self.link(objects + [self.compile(changed)], target)
        return target


def hunt(program):
    """(caught, by which check)"""
    try:
        done = subprocess.run([str(program), "--hunt", "--seeds", str(SEEDS)], timeout=300,
                              capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return True, "it hangs"
    if done.returncode == 0:
        return False, f"{SEEDS} seeds saw nothing"
    seed = re.search(r"--seed (\d+)", done.stdout)
    why = [line for line in (done.stderr + done.stdout).splitlines()
           if "ssertion" in line or re.match(r"# .*(T\+|G10)", line)]
    why = re.sub(r"^.*Assertion", "assertion", why[0]) if why else f"exit {done.returncode}"
    return True, f"seed {seed.group(1) if seed else '?'}: {why.lstrip('# ')}"


def main():
    root = Path(sys.argv[1]).resolve()
    wanted = [m for m in MUTANTS if not sys.argv[2:] or any(w in m[0] for w in sys.argv[2:])]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        build = Build(root, Path(folder))
        healthy = Path(folder) / "healthy"
        build.link(build.objects.values(), healthy)

        def one(numbered):
            number, (_, path, old, new) = numbered
            program = build.mutant(number, path, old, new)
            return hunt(program) if program else (False, f"not found (once) in {path}")

        print(f"1..{len(wanted) + 1}", flush=True)
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for i, (caught, why) in enumerate(pool.map(one, enumerate(wanted))):
                failures += not caught
                print(f"{'ok' if caught else 'not ok'} {i + 1} - {wanted[i][0]}\n# {why}", flush=True)
        sick, why = hunt(healthy)
        failures += sick
        print(f"{'not ok' if sick else 'ok'} {len(wanted) + 1} - without them nothing is wrong\n# {why}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
