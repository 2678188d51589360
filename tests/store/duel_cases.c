/* SPDX-License-Identifier: Apache-2.0 */
/* Two that want different things of one task, at the same instant, again and again: one of them
 * wins, both hear of it, and the row says the same. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "tests/store/actors.h"

enum { TURNS = 60, LATER_MS = 600000, HEAD_START_US = 1200 };

/* What one side asked and heard, of one turn. */
struct side {
    int rc;
    union {
        struct claim_item claim;
        struct finish_item finish;
        struct cancel_op cancel;
        struct submit_item submit;
        struct call_move move;
    };
    struct task task; /* of a submission */
};

struct duel {
    void (*fight)(struct actor *a, struct side *side);
    struct side sides[TURNS];
};

struct arena {
    pthread_barrier_t barrier;
    struct duel first;
    struct duel second;
    struct str keys[TURNS];
    int64_t ids[TURNS];
};

static const struct str new_payload = STR("{\"new\":true}");

/* Either may be first, though their statements take different times. */
static void linger(struct actor *a)
{
    const struct timespec ts = {.tv_nsec = (long)rng_below(&a->rng, HEAD_START_US) * 1000};

    (void)nanosleep(&ts, NULL);
}

static void *run_side(void *arg)
{
    struct actor *a = arg;
    struct arena *arena = a->ctx;
    struct duel *d = a->index ? &arena->second : &arena->first;

    for (size_t i = 0; i < TURNS; i++) {
        (void)pthread_barrier_wait(&arena->barrier);
        linger(a);
        d->fight(a, &d->sides[i]);
    }
    return NULL;
}

/* ---- The sides ----------------------------------------------------------------------------- */

static void fight_claim(struct actor *a, struct side *side)
{
    struct claim_item *list[] = {&side->claim};

    (void)TRY(a, a->w->d->claim(a->conn, list, 1, STR(NODE), MARGIN_MS, &a->err));
}

static void fight_finish(struct actor *a, struct side *side)
{
    struct finish_item *list[] = {&side->finish};

    (void)TRY(a, a->w->d->finish(a->conn, list, 1, &a->err));
}

static void fight_cancel(struct actor *a, struct side *side)
{
    struct cancel_op *list[] = {&side->cancel};

    (void)TRY(a, a->w->d->cancel(a->conn, list, 1, &a->err));
}

static void fight_submit(struct actor *a, struct side *side)
{
    struct submit_item *list[] = {&side->submit};

    (void)TRY(a, a->w->d->submit(a->conn, list, 1, &a->err));
}

static void fight_move(struct actor *a, struct side *side)
{
    side->rc = ACTOR_RUN(a, a->w->d->call(a->conn, &side->move.call, &a->err));
    (void)actor_expect(a, side->rc, ERR_CONFLICT);
}

/* ---- Before and after ---------------------------------------------------------------------- */

static struct arena *prepare(struct world *w, void (*first)(struct actor *a, struct side *s),
                             void (*second)(struct actor *a, struct side *s))
{
    struct arena *arena = world_keep(w, calloc(1, sizeof(*arena)));
    struct task like = draft(w, "like");

    assert_non_null(arena);
    arena->first.fight = first;
    arena->second.fight = second;
    put_many(w, "d", TURNS, &like, arena->ids);
    for (size_t i = 0; i < TURNS; i++)
        arena->keys[i] = world_text(w, "d%04zu", i);
    return arena;
}

static void fight_all(struct world *w, struct arena *arena)
{
    struct actor actors[2];

    assert_int_equal(pthread_barrier_init(&arena->barrier, NULL, 2), 0);
    for (size_t i = 0; i < 2; i++)
        actor_start(w, &actors[i], i, run_side, arena);
    actors_join(actors, 2);
    (void)pthread_barrier_destroy(&arena->barrier);
}

/* Who was first is up to the machine. */
static void tell(struct world *w, const char *what, size_t n)
{
    print_message("# %s: %s in %zu of %d\n", w->backend->name, what, n, (int)TURNS);
}

static void claim_all(struct world *w, struct arena *arena, int32_t timeout_ms, int64_t margin_ms)
{
    struct claim_item items[TURNS];
    struct claim_item *list[TURNS];
    wall_ms last = 0;
    struct err err = {0};

    for (size_t i = 0; i < TURNS; i++) {
        items[i] = (struct claim_item){.id = arena->ids[i], .timeout_ms = timeout_ms};
        list[i] = &items[i];
    }
    assert_int_equal(w->d->claim(w->conn, list, TURNS, STR(NODE), margin_ms, &err), 0);
    for (size_t i = 0; i < TURNS; i++) {
        assert_int_equal(items[i].result, CLAIM_WON);
        last = world_keep_task(w, items[i].task)->deadline_at;
    }
    if (margin_ms < MARGIN_MS)
        world_wait_past(w, last);
}

/* The repeat of arena's key number i, with another payload. */
static void repeat_of(struct world *w, struct arena *arena, size_t i)
{
    struct side *side = &arena->second.sides[i];

    side->task = draft_key(w, arena->keys[i]);
    side->task.payload = new_payload;
    side->submit.task = &side->task;
}

/* ---- Claim against cancel ------------------------------------------------------------------ */

static void test_claim_against_cancel(struct world *w)
{
    struct arena *arena = prepare(w, fight_claim, fight_cancel);
    size_t n_won = 0;

    for (size_t i = 0; i < TURNS; i++) {
        arena->first.sides[i].claim = claim_of(arena->ids[i], 0);
        arena->second.sides[i].cancel.biz_uuid = arena->keys[i];
    }
    fight_all(w, arena);
    for (size_t i = 0; i < TURNS; i++) {
        const struct claim_item *claimed = &arena->first.sides[i].claim;
        const struct cancel_op *cancelled = &arena->second.sides[i].cancel;
        const struct task *now = look_key(w, arena->keys[i]);

        (void)world_keep_task(w, claimed->task);
        (void)world_keep_task(w, cancelled->task);
        assert_true(now->id == arena->ids[i]);
        if (claimed->result == CLAIM_WON) {
            n_won++;
            assert_int_equal(cancelled->result, CANCEL_IN_FLIGHT);
            assert_same_task(now, claimed->task);
        } else {
            assert_int_equal(claimed->result, CLAIM_LOST);
            assert_int_equal(cancelled->result, CANCEL_DONE);
            assert_same_task(now, cancelled->task);
            assert_int_equal(now->attempt, 0);
        }
    }
    tell(w, "the claim won", n_won);
}

/* ---- Claim against move -------------------------------------------------------------------- */

static void test_claim_against_move(struct world *w)
{
    struct arena *arena = prepare(w, fight_claim, fight_move);
    wall_ms later = world_now(w) + LATER_MS;
    size_t n_won = 0;

    for (size_t i = 0; i < TURNS; i++) {
        arena->first.sides[i].claim = claim_of(arena->ids[i], 0);
        arena->second.sides[i].move =
            (struct call_move){.call = {.op = {.kind = STORE_CALL}, .what = CALL_MOVE},
                               .biz_uuid = arena->keys[i],
                               .execute_time = later,
                               .set_payload = true,
                               .payload = new_payload};
    }
    fight_all(w, arena);
    for (size_t i = 0; i < TURNS; i++) {
        const struct claim_item *claimed = &arena->first.sides[i].claim;
        const struct side *moved = &arena->second.sides[i];
        const struct task *now = look_key(w, arena->keys[i]);

        (void)world_keep_task(w, claimed->task);
        (void)world_keep_task(w, moved->move.task);
        assert_true(str_eq(now->payload, new_payload) == (moved->rc == 0));
        if (claimed->result == CLAIM_WON) {
            n_won++;
            assert_int_equal(moved->rc, ERR_CONFLICT);
            assert_same_task(now, claimed->task);
        } else {
            assert_int_equal(claimed->result, CLAIM_NOT_DUE);
            assert_true(claimed->next_attempt_time == later);
            assert_int_equal(moved->rc, 0);
            assert_same_task(now, moved->move.task);
            assert_int_equal(now->attempt, 0);
        }
    }
    tell(w, "the claim won", n_won);
}

/* ---- Claim against replace ----------------------------------------------------------------- */

/* Every other one stays due: then both may have their way, and the claim has the new payload. */
static void judge_replace(struct world *w, struct arena *arena, size_t i)
{
    const struct claim_item *claimed = &arena->first.sides[i].claim;
    const struct submit_item *replaced = &arena->second.sides[i].submit;
    const struct task *won = world_keep_task(w, claimed->task);
    const struct task *now = look_key(w, arena->keys[i]);

    (void)world_keep_task(w, replaced->existing);
    assert_true(now->id == arena->ids[i]);
    assert_true(str_eq(now->payload, new_payload) == (replaced->result == SUBMIT_REPLACED));
    if (replaced->result != SUBMIT_REPLACED) {
        assert_int_equal(replaced->result, SUBMIT_REFUSED);
        assert_int_equal(claimed->result, CLAIM_WON);
    } else if (i % 2) {
        assert_int_equal(claimed->result, CLAIM_NOT_DUE);
        assert_true(claimed->next_attempt_time == replaced->task->execute_time);
        assert_same_task(now, replaced->existing);
    } else {
        assert_int_equal(claimed->result, CLAIM_WON);
    }
    if (won)
        assert_same_task(now, won);
}

static void test_claim_against_replace(struct world *w)
{
    struct arena *arena = prepare(w, fight_claim, fight_submit);
    size_t n_replaced = 0;

    for (size_t i = 0; i < TURNS; i++) {
        struct side *second = &arena->second.sides[i];

        arena->first.sides[i].claim = claim_of(arena->ids[i], 0);
        repeat_of(w, arena, i);
        second->submit.on_conflict = ON_CONFLICT_REPLACE;
        if (i % 2)
            second->task.execute_time = second->task.next_attempt_time += LATER_MS;
    }
    fight_all(w, arena);
    for (size_t i = 0; i < TURNS; i++) {
        judge_replace(w, arena, i);
        n_replaced += arena->second.sides[i].submit.result == SUBMIT_REPLACED;
    }
    tell(w, "it was replaced", n_replaced);
}

/* ---- Finish against rescue ----------------------------------------------------------------- */

static void test_finish_against_rescue(struct world *w)
{
    struct arena *arena = prepare(w, fight_finish, fight_finish);
    size_t n_won = 0;

    claim_all(w, arena, 1, 1);
    for (size_t i = 0; i < TURNS; i++) {
        struct finish_item *rescue = &arena->second.sides[i].finish;

        arena->first.sides[i].finish = finish_of(w, arena->ids[i], 1, FINISH_SUCCESS);
        *rescue = finish_of(w, arena->ids[i], 1, FINISH_RETRY);
        rescue->past_deadline = true;
        rescue->outcome = "ghost";
    }
    fight_all(w, arena);
    for (size_t i = 0; i < TURNS; i++) {
        bool won = arena->first.sides[i].finish.result == FINISH_DONE;
        bool rescued = arena->second.sides[i].finish.result == FINISH_DONE;
        struct call_get c = look_attempts(w, arena->ids[i]);

        assert_true(won != rescued);
        assert_int_equal(c.task->status, won ? TASK_SUCCESS : TASK_RETRYING);
        assert_int_equal(c.task->attempt, 1);
        assert_int_equal(c.n_attempts, won ? 0 : 1);
        n_won += won;
    }
    tell(w, "the answer won", n_won);
}

/* ---- Submission against the end of the same key -------------------------------------------- */

/* The key is answered for by its first task, live or in history, and stands in one table. */
static void judge_repeats(struct world *w, struct arena *arena, enum task_status status)
{
    size_t n_live = 0;

    for (size_t i = 0; i < TURNS; i++) {
        const struct submit_item *repeat = &arena->second.sides[i].submit;
        const struct task *told = world_keep_task(w, repeat->existing);

        assert_int_equal(repeat->result, SUBMIT_DUPLICATE);
        assert_true(told->id == arena->ids[i]);
        assert_int_equal(repeat->mismatch, MISMATCH_PAYLOAD);
        assert_true(told->status == status || told->finished_at == WALL_NONE);
        n_live += told->status != status;
        assert_null(look_id(w, repeat->task->id));
        assert_true(look_key(w, arena->keys[i])->id == arena->ids[i]);
        assert_int_equal(look_id(w, arena->ids[i])->status, status);
    }
    if (has_sql(w)) {
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 0);
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task_history"), TURNS);
    }
    tell(w, "the submission met it alive", n_live);
}

static void test_submission_against_finish(struct world *w)
{
    struct arena *arena = prepare(w, fight_finish, fight_submit);

    claim_all(w, arena, TIMEOUT_MS, MARGIN_MS);
    for (size_t i = 0; i < TURNS; i++) {
        arena->first.sides[i].finish = finish_of(w, arena->ids[i], 1, FINISH_SUCCESS);
        repeat_of(w, arena, i);
    }
    fight_all(w, arena);
    for (size_t i = 0; i < TURNS; i++)
        assert_int_equal(arena->first.sides[i].finish.result, FINISH_DONE);
    judge_repeats(w, arena, TASK_SUCCESS);
}

static void test_submission_against_cancel(struct world *w)
{
    struct arena *arena = prepare(w, fight_cancel, fight_submit);

    for (size_t i = 0; i < TURNS; i++) {
        arena->first.sides[i].cancel.biz_uuid = arena->keys[i];
        repeat_of(w, arena, i);
    }
    fight_all(w, arena);
    for (size_t i = 0; i < TURNS; i++) {
        (void)world_keep_task(w, arena->first.sides[i].cancel.task);
        assert_int_equal(arena->first.sides[i].cancel.result, CANCEL_DONE);
    }
    judge_repeats(w, arena, TASK_CANCELLED);
}

static const struct test_case cases[] = {
    {"duel: claim against cancel", test_claim_against_cancel, NEEDS_THREADS},
    {"duel: claim against move", test_claim_against_move, NEEDS_THREADS},
    {"duel: claim against replace", test_claim_against_replace, NEEDS_THREADS},
    {"duel: finish against rescue", test_finish_against_rescue, NEEDS_THREADS},
    {"duel: submission against finish", test_submission_against_finish, NEEDS_THREADS},
    {"duel: submission against cancel", test_submission_against_cancel, NEEDS_THREADS},
};

const struct case_list duel_cases = CASE_LIST(cases);
