/* SPDX-License-Identifier: Apache-2.0 */
/* What is read of the due index, and when.
 *
 * Each lane has a cursor: everything up to it was read once. A regular scan begins where commits
 * may still have come late (at `seen`, the slack behind the scan before), or at the cursor where
 * that is further behind, and ends at the look-ahead. A lane with more rows than one scan brings is
 * read on from its cursor as soon as half of its room is free. A full read sets the cursor back to
 * the start of the index; it is then read forward in the same way, past what is known already.
 *
 * What has ended stays in the index until the database may forget it, which an old snapshot
 * elsewhere (a backup, a report) puts off for as long as it lasts: each read of a range passes over
 * all that ended there. So when reading takes long, the slack is read again after a pause, of as
 * much as the slack at most. Rows of ghosts that were still alive are looked at without the rest of
 * their lane (lane_look_again). And a lane whose reads from the start never come to an end goes on
 * from where it was, and begins at the start again after a pause that grows.
 *
 * Failures: a scan that came back with an error leaves the cursors alone and is asked again; only
 * a look is not, since the next full read does the same. A task for which there is no room sets the
 * cursor back before itself (lane_set_back); while a scan is out, which may have begun before that
 * task was there, its end does not go past it either. */
#include "node/core/sched_lease.h"

#include <string.h>

#define SCAN_ROWS 50000 /* that one scan may bring */
#define LANE_ROWS 5000  /* of them, for one lane */
#define SLACK_PAUSE 20  /* times as long as a read took the slack is left alone */
#define FULL_TRIES 3    /* reads from the start before a lane goes on without them */
#define FULL_PAUSE_SHIFT_MAX 5

static const struct cursor cursor_start = {WALL_NONE, 0};
static const struct cursor cursor_end = {WALL_MAX, INT64_MAX};

static bool cursor_before(struct cursor a, struct cursor b)
{
    return a.time < b.time || (a.time == b.time && a.id < b.id);
}

static bool has_reading_room(const struct sched *s, const struct lane *l)
{
    return l->n_tracked < s->cfg.lane_limit / 2 + 1 && svc_may_track(s, l->svc);
}

static bool can_scan(const struct sched *s, const struct lane *l)
{
    return !s->stopping && !l->svc->gone && l->owned;
}

static void lane_schedule(struct sched *s, struct lane *l, wall_ms at)
{
    if (l->reading || !can_scan(s, l))
        return;
    if (l->scan.pos)
        heap_move(&s->scans, &l->scan, at);
    else
        sched_must(heap_add(&s->scans, &l->scan, at));
}

void lane_start(struct sched *s, struct lane *l)
{
    l->cursor = l->missed = cursor_start; /* a scan that is out may have begun before */
    l->resume = (struct cursor){s->now - s->cfg.slack_ms, 0};
    l->seen = WALL_NONE;
    l->slack_at = s->now;
    l->look_at = WALL_MAX;
    l->n_full_failed = 0;
    l->full_at = s->now + s->cfg.full_read_ms;
    l->due_at = s->now;
    lane_schedule(s, l, s->now);
}

void lane_stop(struct sched *s, struct lane *l)
{
    if (l->scan.pos)
        heap_remove(&s->scans, &l->scan);
}

void lane_wake(struct sched *s, struct lane *l)
{
    if (l->truncated && l->scan.pos && l->scan.key > s->now && has_reading_room(s, l))
        heap_move(&s->scans, &l->scan, s->now);
}

void lane_set_back(struct lane *l, wall_ms time, int64_t id)
{
    struct cursor before = {time, id - 1};

    if (cursor_before(before, l->cursor))
        l->cursor = before;
    if (cursor_before(before, l->missed))
        l->missed = before;
    if (cursor_before(before, l->resume))
        l->resume = before;
    l->truncated = true;
}

void lane_look_again(struct sched *s, struct lane *l, wall_ms time)
{
    bool is_first = l->look_at == WALL_MAX;

    if (is_first || time < l->look_from)
        l->look_from = time;
    if (is_first || time > l->look_to)
        l->look_to = time;
    if (is_first)
        l->look_at = s->now + s->cfg.scan_interval_ms;
    if (l->scan.pos && l->look_at < l->scan.key)
        heap_move(&s->scans, &l->scan, l->look_at);
}

static wall_ms next_read(const struct lane *l)
{
    return l->look_at < l->due_at ? l->look_at : l->due_at;
}

/* Two scans at least within what one of them reads ahead, or tasks between two would be late. */
static int64_t scan_interval(const struct sched *s)
{
    int64_t half = s->cfg.lookahead_ms / 2 + 1;

    return s->cfg.scan_interval_ms < half ? s->cfg.scan_interval_ms : half;
}

/* At instants that all lanes share, so that one statement reads many of them whenever they came;
 * each node at its own, so that the database does not hear from all of them at once. */
static wall_ms next_round(const struct sched *s, int64_t interval_ms)
{
    wall_ms phase = (wall_ms)(hash_bytes(s->cfg.node, 0) % (uint64_t)interval_ms);

    return s->now - (s->now - phase) % interval_ms + interval_ms;
}

static void begin_at_start(struct sched *s, struct lane *l)
{
    l->full_at = s->now + s->cfg.full_read_ms;
    if (cursor_before(cursor_start, l->cursor)) /* else the read before has not come to an end */
        l->resume = l->cursor;
    l->cursor = cursor_start;
}

/* Fills the key of the lane's next scan. Returns false when there is nothing to read now. */
static bool lane_key(struct sched *s, struct lane *l, struct scan_key *k)
{
    bool is_due = l->due_at <= s->now;
    bool room = has_reading_room(s, l);
    wall_ms to = room ? s->now + s->cfg.lookahead_ms : s->now;

    if (is_due && l->full_at <= s->now && room)
        begin_at_start(s, l);
    struct cursor from = l->cursor;
    struct cursor seen = {l->seen, 0};
    l->reads = READ_ON;
    if (is_due && l->slack_at <= s->now && cursor_before(seen, from)) {
        l->reads = READ_SLACK;
        from = seen;
    } else if (is_due) {
        if (!room)
            return false; /* a backlog: what is in memory goes first */
    } else if (l->look_at <= s->now) {
        l->reads = READ_LOOK;
        from = (struct cursor){l->look_from - 1, INT64_MAX};
        to = l->look_to;
        l->look_at = WALL_MAX;
    } else if (!l->truncated || !room) {
        return false;
    }
    l->asked_at = s->now;
    k->service_name = l->svc->name;
    k->shard = l->shard;
    k->lane = l->number;
    k->from_time = from.time;
    k->from_id = from.id;
    k->to_time = to;
    k->ctx = l;
    return true;
}

/* Where a lane is read on, rows for which there is no room would be read again. What the slack
 * brings is known as a rule, and needs none. */
static uint32_t row_limit(const struct sched *s, const struct scan_key *k)
{
    const struct lane *l = k->ctx;
    bool reads_on = k->from_time == l->cursor.time && k->from_id == l->cursor.id;
    uint32_t limit = SCAN_ROWS / s->n_scans_out;
    uint32_t room = s->cfg.lane_limit;

    if (reads_on && has_reading_room(s, l))
        room -= l->n_tracked;
    if (limit > LANE_ROWS)
        limit = LANE_ROWS;
    return limit < room ? limit : room;
}

void scan_plan(struct sched *s, struct actions *out)
{
    size_t first_action = out->n;
    struct heap_node *first;

    if (s->n_scans_out || !s->store_up || s->stopping)
        return;
    while (s->n_scans_out < SCHED_SCAN_KEYS && (first = heap_first(&s->scans)) &&
           first->key <= s->now) {
        struct lane *l = (struct lane *)first;
        struct scan_key key = {0};
        bool wanted = lane_key(s, l, &key);

        if (l->due_at <= s->now)
            l->due_at =
                next_round(s, l->svc->conf->paused ? s->cfg.full_read_ms : scan_interval(s));
        if (!wanted) {
            heap_move(&s->scans, &l->scan, next_read(l));
            continue;
        }
        heap_remove(&s->scans, &l->scan);
        l->reading = true;
        l->missed = cursor_end;
        s->n_scans_out++;
        actions_add(out, ACTION_SCAN)->scan = key;
    }
    if (!s->n_scans_out)
        return;
    s->scan_number++;
    for (size_t i = first_action; i < out->n; i++) {
        if (out->list[i].kind == ACTION_SCAN)
            out->list[i].scan.limit = row_limit(s, &out->list[i].scan);
    }
}

static void ghost_fill(struct ghost *g, const struct scan_row *r)
{
    g->status = r->status;
    g->retry_count = r->retry_count;
    g->max_retry = r->max_retry;
    g->priority = r->priority;
    g->own_orphan = r->own_orphan;
    memcpy(g->policy, r->policy, sizeof(g->policy));
}

/* A row of somebody else's attempt: watch its deadline. */
static void see_ghost(struct sched *s, struct lane *l, const struct scan_row *r)
{
    struct entry *e = sched_entry(s, r->id);
    wall_ms at = r->own_orphan ? s->now : r->deadline_at;

    if (e && e->track != TRACK_GHOST && (e->track > TRACK_READY || e->attempt >= r->attempt))
        return; /* this node's own attempt, or newer than the row */
    if (e && e->track != TRACK_GHOST) {
        entry_forget(s, e);
        e = NULL;
    }
    if (e && e->lane != l) { /* it went on to another lane, and was claimed there */
        entry_forget(s, e);
        e = NULL;
    }
    if (!e) {
        if (!ghost_is_near(s, l->svc, r))
            return;
        e = entry_add(s, l, r->id, r->attempt, r->next_attempt_time);
        if (!e)
            return;
        e->ghost = sched_alloc(sizeof(*e->ghost));
        entry_move(s, e, TRACK_GHOST);
        sched_must(heap_add(&s->timers, &e->timer, at));
    } else {
        heap_move(&s->timers, &e->timer, at);
        e->next_attempt_time = r->next_attempt_time;
    }
    e->attempt = r->attempt;
    ghost_fill(e->ghost, r);
}

static void see_waiting(struct sched *s, struct lane *l, const struct scan_row *r)
{
    struct entry *e = sched_entry(s, r->id);

    /* A ghost that somebody else rescued, or a task that went on to another lane. */
    if (e && r->attempt >= e->attempt &&
        (e->track == TRACK_GHOST || (is_queued(e->track) && e->lane != l))) {
        entry_forget(s, e);
        e = NULL;
    }
    if (!e) {
        e = entry_add(s, l, r->id, r->attempt, r->next_attempt_time);
        if (e)
            entry_wait(s, e, r->next_attempt_time);
        return;
    }
    if (e->track == TRACK_READY) {
        if (r->attempt > e->attempt)
            e->attempt = r->attempt;
        return;
    }
    if (e->track != TRACK_WAITING)
        return;
    /* The earlier time of the two: a claim that comes too early is told the right one. */
    if (r->attempt > e->attempt || r->next_attempt_time < e->next_attempt_time) {
        e->next_attempt_time = r->next_attempt_time;
        heap_move(&s->timers, &e->timer, r->next_attempt_time);
    }
    if (r->attempt > e->attempt)
        e->attempt = r->attempt;
}

static bool is_from_start(const struct scan_key *k)
{
    return k->from_time == cursor_start.time;
}

/* What the read up to `end` says: nothing that commits within the slack is missing before it. */
static void see_up_to(struct sched *s, struct lane *l, const struct scan_key *k, wall_ms end)
{
    wall_ms settled = l->asked_at - s->cfg.slack_ms;

    if (k->from_time > l->seen)
        return; /* it left something out */
    if (end > settled)
        end = settled;
    if (l->seen < end)
        l->seen = end;
}

/* Where the lane stands after the rows of one key. */
static void lane_move(struct sched *s, struct lane *l, const struct scan_key *k,
                      const struct scan_row *rows, size_t n)
{
    struct cursor end = {k->to_time, INT64_MAX};

    if (n >= k->limit) {
        l->truncated = true;
        end = (struct cursor){rows[n - 1].next_attempt_time, rows[n - 1].id};
    } else if (!cursor_before(end, l->cursor)) {
        l->truncated = false;
    }
    if (cursor_before(l->missed, end)) {
        l->truncated = true;
        end = l->missed;
    }
    if (cursor_before(l->cursor, end))
        l->cursor = end;
    see_up_to(s, l, k, end.time);
}

/* A look leaves the cursor where it is, which may be before it or behind. */
static void look_on(struct sched *s, struct lane *l, const struct scan_key *k,
                    const struct scan_row *rows, size_t n)
{
    if (n < k->limit || rows[n - 1].next_attempt_time <= k->from_time + 1)
        return; /* more of one millisecond than a scan brings are left to the full read */
    lane_look_again(s, l, rows[n - 1].next_attempt_time);
    lane_look_again(s, l, k->to_time);
}

static void lane_read(struct sched *s, struct lane *l, const struct scan_key *k,
                      const struct scan_row *rows, size_t n)
{
    l->reading = false;
    if (l->reads == READ_LOOK)
        look_on(s, l, k, rows, n);
    else
        lane_move(s, l, k, rows, n);
    if (!can_scan(s, l))
        return;
    for (size_t i = 0; i < n; i++) {
        if (is_stale(s, &rows[i]))
            continue;
        if (task_status_bit(rows[i].status) & TASK_IN_FLIGHT)
            see_ghost(s, l, &rows[i]);
        else if (!l->svc->conf->paused)
            see_waiting(s, l, &rows[i]);
    }
    lane_schedule(s, l, l->truncated && has_reading_room(s, l) ? s->now : next_read(l));
}

/* The lane does without what stands at the start of the index, until it is tried again. */
static void leave_start(struct sched *s, struct lane *l)
{
    int shift = l->n_full_failed - FULL_TRIES;

    if (shift > FULL_PAUSE_SHIFT_MAX)
        shift = FULL_PAUSE_SHIFT_MAX;
    l->full_at = s->now + (s->cfg.full_read_ms << shift);
    l->cursor = cursor_before(l->missed, l->resume) ? l->missed : l->resume;
    l->truncated = true;
    if (l->seen < l->cursor.time)
        l->seen = l->cursor.time;
}

static void lane_failed(struct sched *s, struct lane *l, const struct scan_key *k)
{
    l->reading = false;
    if (is_from_start(k)) {
        l->n_full_failed += l->n_full_failed < UINT8_MAX;
        if (l->n_full_failed >= FULL_TRIES)
            leave_start(s, l);
    }
    lane_schedule(s, l, s->now + s->cfg.scan_interval_ms);
}

/* Reading must not be all that the database does. */
static void lane_pause(struct sched *s, struct lane *l, const struct scan_key *k, int64_t took_ms)
{
    int64_t pause = took_ms * SLACK_PAUSE;

    if (l->reads == READ_SLACK)
        l->slack_at = s->now + (pause < s->cfg.slack_ms ? pause : s->cfg.slack_ms);
    if (!is_from_start(k))
        return;
    l->n_full_failed = 0;
    if (l->full_at < s->now + pause)
        l->full_at = s->now + pause;
}

void sched_scanned(struct sched *s, wall_ms now, int rc, int64_t took_ms,
                   const struct scan_key *keys, size_t n_keys, const struct scan_row *rows,
                   size_t n_rows, struct actions *out)
{
    size_t at = 0;

    s->now = now;
    assert(n_keys == s->n_scans_out);
    s->n_scans_out = 0;
    for (size_t i = 0; i < n_keys; i++) {
        struct lane *l = keys[i].ctx;
        size_t begin = at;

        assert(l->reading);
        if (rc) {
            lane_failed(s, l, &keys[i]);
            continue;
        }
        lane_pause(s, l, &keys[i], took_ms);
        while (at < n_rows && rows[at].key == i)
            at++;
        lane_read(s, l, &keys[i], rows + begin, at - begin);
    }
    assert(rc || at == n_rows);
    sched_tick(s, now, out);
}
