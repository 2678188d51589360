/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/sched_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void set_services(struct fixture *f)
{
    sched_services(f->s, f->now, f->services, f->n_services, &f->a);
}

void add_service(struct fixture *f, const char *name, int32_t concurrency)
{
    f->services[f->n_services++] = (struct service){.name = str_from(name),
                                                    .shards = 1,
                                                    .shards_seen = 1,
                                                    .concurrency = concurrency,
                                                    .lanes = 1u << 4};
}

static int sched_setup_with(void **state, uint32_t max_in_flight, uint32_t lane_limit)
{
    struct fixture *f = calloc(1, sizeof(*f));

    f->now = T0;
    f->policy = (struct retry_policy){"default", {100, 1000, 2.0, 0.0}, 3};
    f->policies = (struct retry_policies){&f->policy, 1, 60000, 60000, 3};
    struct sched_config c = {
        .lookahead_ms = 2000,
        .scan_interval_ms = 1000,
        .slack_ms = 5000,
        .full_read_ms = 60000,
        .ghost_margin_ms = MARGIN,
        .default_timeout_ms = 5000,
        .default_concurrency = 4,
        .lane_limit = lane_limit,
        .max_tracked = 1000,
        .max_in_flight = max_in_flight,
        .policies = &f->policies,
        .node = STR("n1"),
        .alerts = true,
    };
    assert_int_equal(sched_new(&c, 1, &f->s), 0);
    (void)sched_members(f->s, f->now, &c.node, 1, &f->a);
    add_service(f, "orders", 8);
    sched_store_state(f->s, f->now, true);
    set_services(f);
    *state = f;
    return 0;
}

int sched_setup(void **state)
{
    return sched_setup_with(state, 64, 20);
}

int sched_setup_small(void **state)
{
    return sched_setup_with(state, 16, 1000);
}

int sched_teardown(void **state)
{
    struct fixture *f = *state;

    sched_check(f->s);
    sched_free(f->s);
    actions_fini(&f->a);
    free(f);
    return 0;
}

size_t take_actions(struct fixture *f, enum action_kind kind, struct action *dst, size_t cap)
{
    size_t n = 0;
    size_t kept = 0;

    for (size_t i = 0; i < f->a.n; i++) {
        if (f->a.list[i].kind == kind) {
            assert_true(n < cap);
            dst[n++] = f->a.list[i];
        } else {
            f->a.list[kept++] = f->a.list[i];
        }
    }
    f->a.n = kept;
    return n;
}

void tick_at(struct fixture *f, wall_ms now)
{
    f->now = now;
    sched_tick(f->s, now, &f->a);
    sched_check(f->s);
}

size_t answer_scans(struct fixture *f, struct scan_row *rows, size_t n_rows, int32_t lane)
{
    struct action scans[64];
    struct scan_key keys[64];
    size_t n = take_actions(f, ACTION_SCAN, scans, 64);

    for (size_t i = 0; i < n; i++) {
        keys[i] = scans[i].scan;
        for (size_t r = 0; keys[i].lane == lane && r < n_rows; r++)
            rows[r].key = (uint32_t)i;
    }
    if (n)
        sched_scanned(f->s, f->now, 0, 0, keys, n, rows, n_rows, &f->a);
    sched_check(f->s);
    return n;
}

void hint(struct fixture *f, const char *service, int32_t lane, int64_t id, wall_ms at)
{
    const struct hint h = {
        .service_name = str_from(service), .lane = lane, .id = id, .next_attempt_time = at};

    assert_int_equal(sched_hint(f->s, f->now, &h), HINT_TAKEN);
}

struct task *claimed_task(int64_t id, const char *service, int32_t attempt, int32_t retries)
{
    struct task t = task_empty();

    t.id = id;
    trace_id_make(id, 7, t.trace_id);
    t.status = TASK_SENDING;
    t.biz_uuid = STR("k");
    t.service_name = str_from(service);
    t.handler = STR("h");
    t.attempt = attempt;
    t.retry_count = retries;
    t.max_retry = 3;
    t.priority = 5;
    t.claimed_at = T0;
    t.deadline_at = T0 + 5000 + MARGIN;
    return task_dup(&t);
}

struct task *win(struct fixture *f, const struct action *claim, const char *service,
                 int32_t retries)
{
    struct claim_item item = claim->claim;
    struct action send[8];

    item.result = CLAIM_WON;
    item.task = claimed_task(item.id, service, item.attempt + 1, retries);
    sched_claimed(f->s, f->now, 0, &item, &f->a);
    assert_int_equal(take_actions(f, ACTION_SEND, send, 8), 1);
    sched_check(f->s);
    return send[0].send.task;
}

void answer_send(struct fixture *f, struct task *t, enum verdict_kind kind, struct action *finish)
{
    struct verdict v = {.kind = kind, .retry_after_ms = -1};

    sched_answered(f->s, f->now, t, &v, &f->a);
    assert_int_equal(take_actions(f, ACTION_FINISH, finish, 1), 1);
    task_free(t);
}

void finished(struct fixture *f, const struct action *finish, enum finish_result result)
{
    struct finish_item item = finish->finish;

    item.result = result;
    sched_finished(f->s, f->now, 0, &item, &f->a);
    tick_at(f, f->now);
}
