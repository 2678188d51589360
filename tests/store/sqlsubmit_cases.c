/* SPDX-License-Identifier: Apache-2.0 */
/* jobflow_submit(): what it writes is a task like any other, and the node's part in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/core/nodecall.h"
#include "tests/store/rig.h"
#include "tests/store/world.h"

/* The call, as a statement or two whose value is whether it was a duplicate. */
static const char *call_text(struct world *w, const char *key, const char *service,
                             const char *payload, int priority, const char *policy)
{
    const char *fmt = w->backend->has & NEEDS_POSTGRES
                          ? "SELECT duplicate::int FROM jobflow_submit('%s', '%s', 'h', '%s', "
                            "priority => %d, policy => %s)"
                          : "CALL jobflow_submit('%s', '%s', 'h', '%s', NULL, NULL, %d, NULL, %s, "
                            "NULL, @t, @d); SELECT @d";

    return world_text(w, fmt, key, service, payload, priority, policy).p;
}

static bool is_duplicate(struct world *w, const char *key, const char *service)
{
    return sql_value(w, "%s", call_text(w, key, service, "{\"n\":1}", 5, "NULL")) != 0;
}

static int64_t n_seen(struct world *w)
{
    return sql_value(w, "SELECT count(*) FROM job_service_seen");
}

/* Reads the services, which carries over what was seen; the one of this name, or NULL. */
static const struct service *service(struct world *w, const char *name)
{
    struct call_service_list c = {.fold = true};

    assert_int_equal(call(w, &c.call, CALL_SERVICE_LIST), 0);
    (void)world_keep(w, c.services);
    for (size_t i = 0; i < c.n; i++) {
        if (str_eqz(c.services[i].name, name))
            return &c.services[i];
    }
    return NULL;
}

static void test_a_task_like_any_other(struct world *w)
{
    struct task again = draft(w, "k");
    const struct task *t;

    assert_false(is_duplicate(w, "k", "svc"));
    t = look(w, "k");
    assert_int_equal(t->id % 1000, 0); /* of a block that nobody else has */
    assert_int_equal(trace_id_task(str_from(t->trace_id)), t->id);
    assert_str(t->payload, "{\"n\":1}");
    assert_int_equal(t->status, TASK_PENDING);
    assert_int_equal(t->lane, 4);
    assert_int_equal(t->attempt, 0);
    assert_true(t->next_attempt_time == t->execute_time && t->execute_time == t->created_at);
    assert_true(t->created_at <= world_now(w));
    assert_int_equal(submit_one(w, &again, ON_CONFLICT_RETURN, false).result, SUBMIT_DUPLICATE);
    (void)claim_won(w, t->id, 0);
    finish_done(w, t->id, 1, FINISH_SUCCESS);
    assert_true(is_duplicate(w, "k", "svc"));
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 0);
}

static void test_ids_do_not_meet(struct world *w)
{
    int64_t ids[2][2];
    int64_t n;
    struct err err = {0};

    for (int i = 0; i < 2; i++) {
        assert_int_equal(w->d->take_ids(w->conn, &ids[i][0], &n, &err), 0);
        assert_int_equal(n, 1000);
        assert_false(is_duplicate(w, i ? "b" : "a", "svc"));
        ids[i][1] = look(w, i ? "b" : "a")->id;
        assert_true(ids[i][1] >= ids[i][0] + n);
    }
    assert_true(ids[1][0] > ids[0][1]);
}

static void test_services_are_carried_over(struct world *w)
{
    const struct service *s;

    assert_false(is_duplicate(w, "a", "new"));
    assert_false(is_duplicate(w, "b", "new"));
    assert_int_equal(n_seen(w), 2);
    s = service(w, "new");
    assert_int_equal(s->lanes, 1 << 4);
    assert_int_equal(s->shards_seen, 1);
    assert_int_equal(n_seen(w), 0);
    assert_false(is_duplicate(w, "c", "new"));
    assert_int_equal(n_seen(w), 0); /* there is nothing new */
    (void)sql_value(w, "%s", call_text(w, "d", "new", "1", 9, "NULL"));
    assert_int_equal(n_seen(w), 1);
    assert_int_equal(service(w, "new")->lanes, 1 << 4 | 1 << 0);
}

/* A transaction may have been open when its service was deleted. */
static void test_a_deleted_service_is_watched(struct world *w)
{
    struct call_service_delete c = {.name = STR("svc")};
    int64_t id = put_key(w, "first");

    (void)claim_won(w, id, 0);
    finish_done(w, id, 1, FINISH_SUCCESS);
    assert_int_equal(call(w, &c.call, CALL_SERVICE_DELETE), 0);
    assert_null(service(w, "svc"));
    assert_int_equal(n_seen(w), 1);
    assert_false(is_duplicate(w, "late", "svc"));
    (void)sql_value(w, "DELETE FROM job_service_seen WHERE watch_until IS NULL; SELECT 1");
    assert_int_equal(service(w, "svc")->lanes, 1 << 4);
    assert_int_equal(n_seen(w), 0);
    assert_int_equal(call(w, &c.call, CALL_SERVICE_DELETE), ERR_CONFLICT); /* it has a live task */
    assert_int_equal(n_seen(w), 0);
}

/* The services of a day that are gone stand in nobody's way, one row each. */
static void test_deleted_services_do_not_pile_up(struct world *w)
{
    static const char insert[] =
        "INSERT INTO job_service_seen (service_name, lanes, shards, "
        "watch_until) SELECT %s, 1, 1, %s FROM job_submit_rule AS a, "
        "job_submit_rule AS b, job_submit_rule AS c, job_submit_rule AS d, "
        "job_submit_rule AS e; SELECT 1";
    bool postgres = w->backend->has & NEEDS_POSTGRES;
    struct call_service_delete c = {.name = STR("svc")};

    (void)sql_value(w, insert, "'gone'",
                    postgres ? "now() + interval '1 day'" : "UTC_TIMESTAMP(3) + INTERVAL 1 DAY");
    assert_true(n_seen(w) > 1000);
    assert_false(is_duplicate(w, "a", "new"));
    assert_non_null(service(w, "new"));
    (void)sql_value(w, "DELETE FROM job_service_seen; SELECT 1");
    for (int i = 0; i < 2; i++) {
        finish_done(w, claim_won(w, put_key(w, i ? "k" : "j"), 0)->id, 1, FINISH_SUCCESS);
        assert_int_equal(call(w, &c.call, CALL_SERVICE_DELETE), 0);
        assert_int_equal(n_seen(w), 1);
    }
}

/* More rows than one transaction takes, most of them of one service. */
static void test_all_that_is_noted_is_carried_over(struct world *w)
{
    static const char insert[] = "INSERT INTO job_service_seen (service_name, lanes, shards) "
                                 "SELECT 'many', 2, 1 FROM job_submit_rule AS a, job_submit_rule "
                                 "AS b, job_submit_rule AS c, job_submit_rule AS d, "
                                 "job_submit_rule AS e; SELECT 1";

    (void)sql_value(w, insert);
    (void)sql_value(w, "INSERT INTO job_service_seen (service_name, lanes, shards) VALUES "
                       "('many', 4, 3), ('last', 1, 1); SELECT 1");
    assert_non_null(service(w, "last"));
    assert_int_equal(service(w, "many")->lanes, 2 | 4);
    assert_int_equal(service(w, "many")->shards_seen, 3);
    assert_true(service(w, "many")->version <= 4); /* changed once for each transaction at most */
    assert_int_equal(n_seen(w), 0);
}

static void test_a_list_changes_nothing(struct world *w)
{
    struct call_service_list c = {0};

    assert_false(is_duplicate(w, "a", "new"));
    assert_int_equal(call(w, &c.call, CALL_SERVICE_LIST), 0);
    (void)world_keep(w, c.services);
    assert_int_equal(n_seen(w), 1);
}

static void test_rules_are_the_nodes(struct world *w)
{
    const struct submit_rule rules[] = {{"max_payload", 10}, {"policy:slow", 3}};
    struct call_node_start c = {.name = STR("node-a"),
                                .address = STR("127.0.0.1:7070"),
                                .version = STR("0.1.0"),
                                .rules = rules,
                                .n_rules = 2};
    struct err err = {0};
    int64_t v;

    assert_false(w->backend->query(w->url, call_text(w, "a", "svc", "1", 5, "'slow'"), &v, &err));
    assert_int_equal(call(w, &c.call, CALL_NODE_START), 0);
    (void)sql_value(w, "%s", call_text(w, "a", "svc", "123456789", 5, "'slow'"));
    assert_int_equal(look(w, "a")->max_retry, 3);
    assert_str(look(w, "a")->policy, "slow");
    assert_false(
        w->backend->query(w->url, call_text(w, "b", "svc", "12345678901", 5, "NULL"), &v, &err));
    assert_non_null(strstr(err.text, "payload"));
    assert_null(look(w, "b"));
    c.n_rules = 1;
    assert_int_equal(call(w, &c.call, CALL_NODE_START), 0);
    assert_false(w->backend->query(w->url, call_text(w, "c", "svc", "1", 5, "'slow'"), &v, &err));
    assert_non_null(strstr(err.text, "policy"));
    (void)sql_value(w, "%s", call_text(w, "d", "svc", "1", 5, "NULL"));
    assert_int_equal(look(w, "d")->max_retry, 10);
}

/* A batch with a key that somebody's open transaction has is given back to be bisected. */
static void test_a_held_key_fails_its_batch(struct world *w)
{
    struct task held = draft(w, "held");
    struct task other = draft(w, "other");
    struct submit_item items[] = {{.task = &held}, {.task = &other}};
    struct submit_item *list[] = {&items[0], &items[1]};
    struct err err = {0};
    void *holder = w->backend->hold(w->url, call_text(w, "held", "svc", "1", 5, "NULL"));
    int rc = w->d->submit(w->conn, list, 2, &err);
    int rc_other = w->d->submit(w->conn, &list[1], 1, &err);

    w->backend->release(holder, false);
    assert_int_equal(rc, ERR_TIMEOUT);
    assert_int_equal(rc_other, 0);
    assert_int_equal(items[1].result, SUBMIT_CREATED);
    assert_int_equal(w->d->submit(w->conn, list, 1, &err), 0);
    assert_int_equal(items[0].result, SUBMIT_CREATED);
}

/* Several held keys together wait for no longer than one, after all others are stored. */
static void test_held_keys_share_one_wait(struct world *w)
{
    enum { N = 40, HELD = 12 };
    struct rig *r = rig_start(w, rig_config(w), true);
    struct job *j = rig_submit_job(r, N);
    struct buf text = BUF_INIT;
    mono_ms began;
    void *holder;

    for (size_t i = 0; i < N; i++) {
        j->tasks[i].biz_uuid = world_text(w, i < HELD ? "held-%02zu" : "free-%02zu", i);
        if (i < HELD)
            buf_addf(&text, "%s%s", i ? ";" : "",
                     call_text(w, j->tasks[i].biz_uuid.p, "svc", "1", 5, "NULL"));
    }
    buf_addc(&text, '\0');
    holder = w->backend->hold(w->url, text.data);
    began = clock_mono();
    rig_post(r, j);
    rig_wait(r);
    w->backend->release(holder, false);
    buf_fini(&text);
    assert_true(clock_mono() - began < HELD * INT64_C(1000) / 2);
    assert_int_equal(j->op.rc, 0);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(j->items[i].result, i < HELD ? SUBMIT_BUSY : SUBMIT_CREATED);
    assert_non_null(strstr(j->items[0].err.text, "another transaction"));
    assert_true(store_is_up(r->store));
}

/* ---- What people ask of keys that are held ------------------------------------------------- */

enum { N_HELD = 20, N_ASKS = 3 * N_HELD, N_FREE = 10, N_WORK = 4 * N_FREE, PATIENT_MS = 20000 };

/* On MariaDB a task that was not there before. PostgreSQL shows no such row, and gives no lock:
 * there the keys are of tasks that somebody has locked. */
static void *hold_keys(struct world *w)
{
    struct task like = draft(w, "like");
    struct buf text = BUF_INIT;
    int64_t ids[N_HELD];
    void *holder;

    if (w->backend->has & NEEDS_POSTGRES) {
        put_many(w, "held", N_HELD, &like, ids);
        return w->backend->hold(
            w->url, "SELECT 1 FROM job_delay_task WHERE biz_uuid LIKE 'held%' FOR UPDATE");
    }
    for (int i = 0; i < N_HELD; i++)
        buf_addf(&text, "%s%s", i ? ";" : "",
                 call_text(w, world_text(w, "held%04d", i).p, "svc", "1", 5, "NULL"));
    buf_addc(&text, '\0');
    holder = w->backend->hold(w->url, text.data);
    buf_fini(&text);
    return holder;
}

static struct job *ask_for(struct rig *r, int i)
{
    struct str key = world_text(r->w, "held%04d", i / 3);
    struct job *j = rig_job(r, i % 3 ? STORE_CALL : STORE_CANCEL);

    j->ctx = (void *)key.p;
    if (i % 3 == 0) {
        j->cancel.biz_uuid = key;
    } else if (i % 3 == 1) {
        j->move.call.what = CALL_MOVE;
        j->move.biz_uuid = key;
        j->move.execute_time = world_now(r->w);
    } else {
        j->run.call.what = CALL_RUN;
        j->run.biz_uuid = key;
        j->run.actor = STR("api test");
    }
    rig_post(r, j);
    return j;
}

/* The answer may be waited for while somebody's transaction is open: nothing fails before its end.
 */
static bool all_back(struct rig *r, struct job *const *jobs, size_t n)
{
    mono_ms until = clock_mono() + DEADLINE_MS;
    size_t i = 0;

    while (i < n && clock_mono() < until) {
        if (jobs[i]->back)
            i++;
        else
            rig_deliver(r, 10);
    }
    return i == n;
}

/* Other work: of each kind that writes. */
static void do_free_work(struct world *w, struct rig *r, const int64_t *ids, struct job **jobs)
{
    for (int i = 0; i < N_FREE; i++) {
        struct job *submits = rig_submit_job(r, 1);
        struct job *cancels = rig_job(r, STORE_CANCEL);

        submits->tasks[0].biz_uuid = world_text(w, "new%04d", i);
        cancels->cancel.biz_uuid = world_text(w, "free%04d", 2 * N_FREE + i);
        *jobs++ = submits;
        *jobs++ = rig_claim_job(r, ids[i], 0);
        *jobs++ = rig_finish_job(r, ids[N_FREE + i], 1, FINISH_RETRY);
        *jobs++ = cancels;
    }
    for (int i = 0; i < N_WORK; i++)
        rig_post(r, (jobs - N_WORK)[i]);
}

/* Of those about one key the first that gets it may be in the others' way. */
static void assert_went_on(const struct job *j)
{
    if (j->op.rc != ERR_CONFLICT)
        assert_int_equal(j->op.rc, 0);
}

/* No thread's wait for a key is as long as a statement's time, however many ask. */
static void test_asking_for_held_keys(struct world *w)
{
    struct store_config cfg = rig_config(w);
    struct task like = draft(w, "like");
    struct job *asks[N_ASKS];
    struct job *work[N_WORK];
    int64_t ids[3 * N_FREE];
    struct rig *r;
    void *holder;
    mono_ms began;
    bool back;

    cfg.driver.statement_timeout_ms = PATIENT_MS;
    cfg.give_up_ms = 4 * PATIENT_MS;
    put_many(w, "free", 3 * N_FREE, &like, ids);
    for (int i = 0; i < N_FREE; i++)
        (void)claim_won(w, ids[N_FREE + i], 0);
    holder = hold_keys(w);
    r = rig_start(w, cfg, true);
    began = clock_mono();
    for (int i = 0; i < N_ASKS; i++)
        asks[i] = ask_for(r, i);
    do_free_work(w, r, ids, work);
    back = all_back(r, work, N_WORK) && all_back(r, asks, N_ASKS);
    began = clock_mono() - began;
    w->backend->release(holder, true);
    assert_true(back && began < PATIENT_MS);
    for (int i = 0; i < N_WORK; i++)
        assert_int_equal(work[i]->op.rc, 0);
    for (int i = 0; i < N_ASKS; i++) {
        assert_int_equal(asks[i]->op.rc, ERR_TIMEOUT);
        assert_non_null(strstr(asks[i]->op.err.text, asks[i]->ctx));
    }
    assert_int_equal(atomic_load(&r->n_down), 0);
    for (int i = 0; i < N_ASKS; i++) {
        rig_post(r, asks[i]);
        rig_wait(r); /* so that they do not meet each other */
        assert_went_on(asks[i]);
    }
}

/* In time: it is waited for, and cancelled. */
static void test_a_key_that_is_let_go(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    mono_ms until = clock_mono() + DEADLINE_MS;
    struct job *j;
    void *holder;

    (void)put_key(w, "k");
    holder = w->backend->hold(
        w->url, "UPDATE job_delay_task SET updated_at = updated_at WHERE biz_uuid = 'k'");
    j = rig_job(r, STORE_CANCEL);
    j->cancel.biz_uuid = STR("k");
    rig_post(r, j);
    while (w->backend->ask_server(w->backend, w->backend->n_waiting) == 0 && !j->back &&
           clock_mono() < until)
        rig_deliver(r, 1);
    w->backend->release(holder, false);
    rig_wait(r);
    assert_int_equal(j->op.rc, 0);
    assert_int_equal(j->cancel.result, CANCEL_DONE);
}

/* Others' locks that have nothing to do with the keys: it waits as for any. */
static void test_a_held_service_is_waited_for(struct world *w)
{
    struct task t = draft(w, "k");
    struct submit_item item = {.task = &t};
    struct submit_item *list[] = {&item};
    const struct driver_options options = {.statement_timeout_ms = 2000, .named_statements = true};
    struct err err = {0};
    mono_ms began;
    void *holder;
    int rc;

    w->conn = world_connect_to(w, w->url, &options, NULL);
    w->d->set_key_patience(w->conn, 1);
    (void)put_key(w, "known");
    holder = w->backend->hold(w->url, w->backend->has & NEEDS_POSTGRES
                                          ? "LOCK TABLE job_service IN ACCESS EXCLUSIVE MODE"
                                          : "SELECT * FROM job_service FOR UPDATE");
    began = clock_mono();
    rc = w->d->submit(w->conn, list, 1, &err);
    began = clock_mono() - began;
    w->backend->release(holder, false);
    assert_int_equal(rc, ERR_BUSY);
    assert_true(began >= 1000);
    assert_int_equal(w->d->submit(w->conn, list, 1, &err), 0);
}

#define BOTH(name, run)                                                                            \
    {"sqlsubmit: " name, run, NEEDS_POSTGRES},                                                     \
    {                                                                                              \
        "sqlsubmit: " name, run, NEEDS_MYSQL                                                       \
    }

static const struct test_case cases[] = {
    BOTH("a task like any other", test_a_task_like_any_other),
    BOTH("ids do not meet", test_ids_do_not_meet),
    BOTH("services are carried over", test_services_are_carried_over),
    BOTH("a deleted service is watched", test_a_deleted_service_is_watched),
    BOTH("rules are the nodes'", test_rules_are_the_nodes),
    BOTH("a held key fails its batch", test_a_held_key_fails_its_batch),
    BOTH("held keys share one wait", test_held_keys_share_one_wait),
    BOTH("asking for held keys", test_asking_for_held_keys),
    BOTH("a key that is let go", test_a_key_that_is_let_go),
    BOTH("a held service is waited for", test_a_held_service_is_waited_for),
    BOTH("deleted services do not pile up", test_deleted_services_do_not_pile_up),
    BOTH("all that is noted is carried over", test_all_that_is_noted_is_carried_over),
    BOTH("a list changes nothing", test_a_list_changes_nothing),
};

const struct case_list sqlsubmit_cases = CASE_LIST(cases);
