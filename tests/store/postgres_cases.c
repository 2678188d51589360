/* SPDX-License-Identifier: Apache-2.0 */
/* What only PostgreSQL has. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/store/sql.h"
#include "tests/store/world.h"

/* Claims change no indexed column and find room in their page, also together with their
 * neighbours: their updates leave no dead index entries. */
static void test_claims_are_hot(struct world *w)
{
    enum { N = 5000 };
    mono_ms until = clock_mono() + DEADLINE_MS;
    int64_t updated;
    int64_t hot;

    claim_crowd(w, put_crowd(w, N, world_fill(w, "{\"orderId\":123456789}", 200)), N);
    do { /* the server counts with a delay, when the session next does something */
        assert_true(clock_mono() < until);
        nap();
        (void)world_now(w);
        updated = sql_value(w, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = "
                               "'job_delay_task'");
    } while (updated < N);
    hot = sql_value(w, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = "
                       "'job_delay_task'");
    assert_int_equal(updated, N);
    if (hot * 100 < updated * 95)
        fail_msg("%" PRId64 " of %" PRId64 " claims are HOT", hot, updated);
}

/* A batch of tasks whose keys are new but the last one's, which is `known`. */
static void put_batch_but(struct world *w, const char *prefix, const char *known)
{
    enum { N = 20 };
    struct submit_item items[N] = {0};
    struct task tasks[N];

    for (size_t i = 0; i < N; i++) {
        tasks[i] = draft_key(w, i < N - 1 ? world_text(w, "%s%02zu", prefix, i) : str_from(known));
        items[i].task = &tasks[i];
    }
    submit(w, items, N);
    for (size_t i = 0; i < N - 1; i++) {
        assert_int_equal(items[i].result, SUBMIT_CREATED);
        assert_int_equal(look_key(w, tasks[i].biz_uuid)->id, tasks[i].id);
    }
    assert_int_equal(items[N - 1].result, SUBMIT_DUPLICATE);
    assert_str(items[N - 1].existing->biz_uuid, known);
}

static int64_t n_inserted(struct world *w) /* also what was rolled back */
{
    return sql_value(w, "SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = "
                        "'job_delay_task'");
}

/* A batch supposes that its keys are free. When they are not it is inserted once more, with care;
 * and so are the next ones, at once. */
static void test_bare_batches(struct world *w)
{
    mono_ms until = clock_mono() + DEADLINE_MS;
    struct task like = draft(w, "like");
    int64_t wanted = 1 + 20 + (20 + 19) + 10 * 19;
    int64_t id = put_key(w, "z-known"); /* and with it the service */

    put_many(w, "free", 20, &like, NULL);
    put_batch_but(w, "a", "z-known");
    for (int i = 0; i < 10; i++)
        put_batch_but(w, world_text(w, "b%d-", i).p, "z-known");
    assert_int_equal(look(w, "z-known")->id, id);
    while (n_inserted(w) < wanted) { /* counted late, when the session next does something */
        assert_true(clock_mono() < until);
        nap();
        (void)world_now(w);
    }
    assert_int_equal(n_inserted(w), wanted);
}

static int64_t of_service(struct world *w, const char *column)
{
    return sql_value(w, "SELECT %s FROM job_service WHERE name = 'new'", column);
}

/* A session that has met no taken key yet: what a bare batch cannot be is seen, and done. */
static void test_bare_batches_that_fail(struct world *w)
{
    struct task like = draft(w, "like");

    (void)bring(w, "z-ended", TASK_SUCCESS);
    w->conn = world_connect(w);
    put_batch_but(w, "a", "z-ended");
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 19);

    w->conn = world_connect(w);
    like.service_name = STR("new");
    like.lane = 3;
    put_many(w, "service", 20, &like, NULL);
    assert_int_equal(of_service(w, "lanes"), 1 << 3);
    w->conn = world_connect(w);
    like.lane = 5;
    put_many(w, "lane", 20, &like, NULL);
    assert_int_equal(of_service(w, "lanes"), 1 << 3 | 1 << 5);
    w->conn = world_connect(w);
    like.shard = 2;
    put_many(w, "shard", 20, &like, NULL);
    assert_int_equal(of_service(w, "shards_seen"), 3);
}

enum { N_TWENTY = 20 };

/* k00 to k19. */
static void draft_twenty(struct world *w, struct task *tasks, struct submit_item *items)
{
    for (size_t i = 0; i < N_TWENTY; i++) {
        tasks[i] = draft_key(w, world_text(w, "k%02zu", i));
        items[i] = (struct submit_item){.task = &tasks[i]};
    }
}

static void submit_twenty(struct world *w, struct submit_item *items)
{
    submit(w, items, N_TWENTY);
    for (size_t i = 0; i < N_TWENTY; i++) {
        assert_int_equal(items[i].result, SUBMIT_CREATED);
        assert_null(items[i].existing);
    }
}

/* The answer to the commit was lost: the batch runs again on another connection, and by then one
 * task has ended. */
static void test_bare_batches_again(struct world *w)
{
    struct submit_item items[N_TWENTY];
    struct task tasks[N_TWENTY];

    (void)put_key(w, "first"); /* and with it the service */
    draft_twenty(w, tasks, items);
    submit_twenty(w, items);
    (void)claim_won(w, tasks[7].id, 0);
    finish_done(w, tasks[7].id, 1, FINISH_SUCCESS);
    w->conn = world_connect(w);
    submit_twenty(w, items);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), N_TWENTY);
    assert_status(w, "k07", TASK_SUCCESS);
}

static void set_trigger(struct world *w, const char *body)
{
    (void)sql_value(w,
                    "SET client_min_messages = warning; CREATE OR REPLACE FUNCTION meddle() "
                    "RETURNS trigger LANGUAGE plpgsql AS $$ "
                    "BEGIN IF NEW.biz_uuid = 'k07' THEN %s; END IF; RETURN NEW; END $$; "
                    "DROP TRIGGER IF EXISTS meddle ON job_delay_task; CREATE TRIGGER meddle BEFORE "
                    "INSERT ON job_delay_task FOR EACH ROW EXECUTE FUNCTION meddle(); SELECT 1",
                    body);
}

/* Somebody's trigger leaves a row out, or changes it: with an error nothing is stored. */
static void test_bare_batches_under_a_trigger(struct world *w)
{
    struct submit_item items[N_TWENTY];
    struct submit_item *list[N_TWENTY];
    struct task tasks[N_TWENTY];
    struct err err = {0};

    (void)put_key(w, "first");
    draft_twenty(w, tasks, items);
    for (size_t i = 0; i < N_TWENTY; i++)
        list[i] = &items[i];
    set_trigger(w, "RETURN NULL");
    assert_int_equal(w->d->submit(w->conn, list, N_TWENTY, &err), ERR_BUSY);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 1);
    w->conn = world_connect(w);
    set_trigger(w, "NEW.id = 1000000000000000");
    assert_int_equal(w->d->submit(w->conn, list, N_TWENTY, &err), ERR_CORRUPT);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 1);
    (void)sql_value(w, "DROP TRIGGER meddle ON job_delay_task; SELECT 1");
    w->conn = world_connect(w);
    submit_twenty(w, items);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 1 + N_TWENTY);
}

/* Behind a transaction pooler no prepared statement has a name. */
static void test_without_named_statements(struct world *w)
{
    const struct driver_options opt = {.statement_timeout_ms = 10000, .named_statements = false};
    struct task like = draft(w, "like");
    const struct task *t;

    w->conn = world_connect_to(w, w->url, &opt, NULL);
    for (int i = 0; i < 3; i++) {
        struct str key = world_text(w, "k%d", i);

        t = bring(w, key.p, TASK_RETRYING);
        (void)claim_won(w, t->id, 1);
        finish_done(w, t->id, 2, FINISH_SUCCESS);
        assert_status(w, key.p, TASK_SUCCESS);
    }
    assert_int_equal(cancel(w, "k0", NULL), CANCEL_FINISHED);
    assert_int_equal(cancel(w, "nobody", NULL), CANCEL_NOT_FOUND);
    put_many(w, "many", 20, &like, NULL);
    put_batch_but(w, "more", "k0");
}

/* A pooler that cannot be seen gives another session: what to set is said, and a new connection
 * does. */
static void test_statements_that_got_lost(struct world *w)
{
    struct call_clock clock = {.call = {.op = {.kind = STORE_CALL}, .what = CALL_CLOCK}};
    struct err err = {0};

    assert_int_equal(w->d->call(w->conn, &clock.call, &err), 0);
    assert_int_equal(sql_run((struct sql *)w->conn, /* its first member */
                             &(struct sql_query){.text = "DEALLOCATE ALL", .once = true}, &err),
                     0);
    assert_int_equal(w->d->call(w->conn, &clock.call, &err), ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "store.named_statements"));
    w->conn = world_connect(w);
    assert_int_equal(w->d->call(w->conn, &clock.call, &err), 0);
}

/* Two settings that weaken what an answer promises. */
static void test_weak_durability_is_told(struct world *w)
{
    const struct driver_options opt = {.statement_timeout_ms = 10000, .named_statements = true};
    const char *name = strrchr(w->url, '/') + 1;
    const char *warning = NULL;

    (void)world_connect_to(w, w->url, &opt, &warning);
    assert_null(warning);
    (void)sql_value(w, "ALTER DATABASE %s SET synchronous_commit = off", name);
    (void)world_connect_to(w, w->url, &opt, &warning);
    assert_non_null(warning);
    assert_non_null(strstr(warning, "synchronous_commit"));
}

/* A server-wide or per-database default must not change what the statements rely on. */
static void test_other_defaults_of_the_database(struct world *w)
{
    static const char *const settings[] = {
        "default_transaction_isolation = 'serializable'",
        "timezone = 'America/New_York'",
        "datestyle = 'German, DMY'",
        "intervalstyle = 'sql_standard'",
        "bytea_output = 'escape'",
        "extra_float_digits = -10",
        "standard_conforming_strings = off",
        "client_encoding = 'LATIN1'",
    };
    const char *name = strrchr(w->url, '/') + 1;
    struct task t = draft(w, "full");
    const struct task *won;

    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        (void)sql_value(w, "ALTER DATABASE %s SET %s", name, settings[i]);
    w->conn = world_connect(w);
    t.payload = STR("\"\\\\ \xf0\x9f\x90\x98 \xe4\xb8\xad\"");
    t.execute_time = t.next_attempt_time = INT64_C(1741503600123); /* a gap in New York */
    (void)put(w, &t);
    assert_same_task(look(w, "full"), &t);
    won = claim_won(w, t.id, 0);
    assert_true(won->claimed_at >= t.created_at && won->claimed_at <= world_now(w));
    assert_true(won->deadline_at == won->claimed_at + TIMEOUT_MS + MARGIN_MS);
    assert_str(won->payload, t.payload.p);
    finish_done(w, t.id, 1, FINISH_FAIL);
    assert_int_equal(cancel(w, "full", NULL), CANCEL_DONE);
}

/* A search path that points elsewhere, and objects of the same names there. */
static void test_another_schema_of_the_same_database(struct world *w)
{
    (void)sql_value(w, "CREATE SCHEMA other; CREATE TABLE other.job_delay_task (nothing integer);"
                       " CREATE TABLE other.job_schema (version integer, nothing integer);"
                       " INSERT INTO other.job_schema VALUES (987, 0)");
    w->conn = world_connect(w);
    (void)put_key(w, "k");
    assert_status(w, "k", TASK_PENDING);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM public.job_delay_task"), 1);
}

static const struct test_case cases[] = {
    {"postgres: claims are HOT", test_claims_are_hot, NEEDS_POSTGRES},
    {"postgres: bare batches", test_bare_batches, NEEDS_POSTGRES},
    {"postgres: bare batches that fail", test_bare_batches_that_fail, NEEDS_POSTGRES},
    {"postgres: bare batches again", test_bare_batches_again, NEEDS_POSTGRES},
    {"postgres: bare batches under a trigger", test_bare_batches_under_a_trigger, NEEDS_POSTGRES},
    {"database-53: without named statements", test_without_named_statements, NEEDS_POSTGRES},
    {"database-53: statements that got lost", test_statements_that_got_lost, NEEDS_POSTGRES},
    {"postgres: weak durability is told", test_weak_durability_is_told, NEEDS_POSTGRES},
    {"postgres: other defaults of the database", test_other_defaults_of_the_database,
     NEEDS_POSTGRES},
    {"postgres: another schema in the same database", test_another_schema_of_the_same_database,
     NEEDS_POSTGRES},
};

const struct case_list postgres_cases = CASE_LIST(cases);
