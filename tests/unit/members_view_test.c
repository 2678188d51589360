/* SPDX-License-Identifier: Apache-2.0 */
/* Who owns, by two witnesses and the time: the whole table of what both may say, against the rules
 * written down a second time; then what happens in time. */
#include "node/core/members_view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "node/core/ownership.h"

#define TTL 10000
#define T0 INT64_C(1000000)
#define SELF "b"
#define OTHER "a"
#define EPOCH 7

static struct members_view v; /* large */

static struct member member(const char *name, enum member_state state, int64_t epoch)
{
    struct member m = {.state = state, .epoch = epoch, .hash_version = OWNERSHIP_HASH_VERSION};

    assert_true(member_set_text(m.name, sizeof(m.name), str_from(name)));
    return m;
}

static int setup(void **state)
{
    (void)state;
    members_view_init(&v, SELF, TTL, T0);
    members_view_set_epoch(&v, EPOCH);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    members_view_fini(&v);
    return 0;
}

static struct members_decision decide(mono_ms now)
{
    struct members_decision d;

    members_view_decide(&v, now, &d);
    assert_true(d.look_again > now);
    return d;
}

static void reads(enum view_source source, mono_ms now, const struct member *list, size_t n)
{
    assert_int_equal(members_view_read(&v, source, now, list, n, now), 0);
}

/* The owners' names, with commas. */
static const char *owners(void)
{
    static char text[128];
    struct str names[VIEW_MEMBERS_MAX];
    size_t n = members_view_owners(&v, names);
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s" STR_FMT, i ? "," : "",
                                 STR_ARG(names[i]));
    return text;
}

/* ---- The whole table ----------------------------------------------------------------------- */

/* How one witness shows a member; of the other one and of this node, where it makes sense. */
enum shown {
    SHOWN_NOT,
    SHOWN_JOINING,
    SHOWN_ACTIVE,
    SHOWN_DRAINING,
    SHOWN_LEFT,
    SHOWN_EARLIER_ACTIVE, /* with an earlier boot epoch */
    SHOWN_EARLIER_DRAINING,
    SHOWN_LATER_DRAINING, /* with a later one */
    SHOWN_OTHER_HASH,     /* active */
    SHOWN_N
};

enum age { AGE_NEVER, AGE_FRESH, AGE_OLD, AGE_N };
enum told { TOLD_NOTHING, TOLD_TO_DRAIN, TOLD_TO_STOP, TOLD_N };

struct combination {
    enum age age[VIEW_ROWS + 1];
    enum shown self[VIEW_ROWS + 1];
    enum shown other[VIEW_ROWS + 1];
    bool was_active;
    bool is_ready;
    enum told told;
};

static bool show(const char *name, enum shown how, struct member *ret)
{
    static const struct {
        enum member_state state;
        int64_t epoch;
    } as[] = {
        [SHOWN_JOINING] = {MEMBER_JOINING, EPOCH},
        [SHOWN_ACTIVE] = {MEMBER_ACTIVE, EPOCH},
        [SHOWN_DRAINING] = {MEMBER_DRAINING, EPOCH},
        [SHOWN_LEFT] = {MEMBER_LEFT, EPOCH},
        [SHOWN_EARLIER_ACTIVE] = {MEMBER_ACTIVE, EPOCH - 1},
        [SHOWN_EARLIER_DRAINING] = {MEMBER_DRAINING, EPOCH - 1},
        [SHOWN_LATER_DRAINING] = {MEMBER_DRAINING, EPOCH + 1},
        [SHOWN_OTHER_HASH] = {MEMBER_ACTIVE, EPOCH},
    };

    if (how == SHOWN_NOT)
        return false;
    *ret = member(name, as[how].state, as[how].epoch);
    if (how == SHOWN_OTHER_HASH)
        ret->hash_version++;
    return true;
}

/* The node as it is before the two witnesses speak, a day ago. */
static void begin(const struct combination *c)
{
    const mono_ms then = T0 - 86400000;

    members_view_init(&v, SELF, TTL, then);
    members_view_set_epoch(&v, EPOCH);
    if (c->is_ready)
        members_view_set_ready(&v);
    if (c->was_active) {
        reads(VIEW_ROWS, then, NULL, 0);
        (void)decide(then);
        assert_int_equal(v.state, MEMBER_ACTIVE);
    }
    v.view.lists[VIEW_ROWS].asked_at = INT64_MIN;
}

static void speak(const struct combination *c, enum view_source source)
{
    mono_ms asked_at = c->age[source] == AGE_FRESH ? T0 - TTL : T0 - TTL - 1;
    struct member list[2];
    size_t n = 0;

    if (c->age[source] == AGE_NEVER)
        return;
    n += show(SELF, c->self[source], &list[n]);
    n += show(OTHER, c->other[source], &list[n]);
    assert_int_equal(members_view_read(&v, source, asked_at, list, n, asked_at), 0);
}

struct expected {
    enum view_source source;
    enum member_state state;
    char owners[8];
};

/* The epoch and state that `source` gives a member, corrected by the rows. */
static bool find(const struct combination *c, enum view_source source, const char *name,
                 struct member *ret)
{
    bool is_self = !strcmp(name, SELF);
    enum shown in_row = is_self ? c->self[VIEW_ROWS] : c->other[VIEW_ROWS];
    struct member row;

    if (source == VIEW_NONE || !show(name, is_self ? c->self[source] : c->other[source], ret))
        return false;
    if (c->age[VIEW_ROWS] == AGE_FRESH && show(name, in_row, &row) && row.epoch >= ret->epoch &&
        (row.state == MEMBER_DRAINING || row.state == MEMBER_LEFT))
        ret->state = row.state;
    return true;
}

static void expect(const struct combination *c, struct expected *ret)
{
    enum member_state before = c->was_active ? MEMBER_ACTIVE : MEMBER_JOINING;
    bool is_trusted = c->self[VIEW_ETCD] == (c->was_active ? SHOWN_ACTIVE : SHOWN_JOINING) ||
                      (c->was_active && c->self[VIEW_ETCD] == SHOWN_OTHER_HASH);
    struct member self;
    struct member other;

    ret->source = c->age[VIEW_ETCD] == AGE_FRESH && is_trusted ? VIEW_ETCD
                  : c->age[VIEW_ROWS] == AGE_FRESH             ? VIEW_ROWS
                                                               : VIEW_NONE;
    bool has_self = find(c, ret->source, SELF, &self);
    bool has_other = find(c, ret->source, OTHER, &other);
    bool differs =
        has_other && other.state == MEMBER_ACTIVE && other.hash_version != OWNERSHIP_HASH_VERSION;

    if (c->told != TOLD_NOTHING)
        ret->state = MEMBER_DRAINING;
    else if (ret->source == VIEW_ETCD && c->age[VIEW_ROWS] != AGE_FRESH)
        ret->state = MEMBER_JOINING;
    else if (c->is_ready && ret->source != VIEW_NONE && (c->was_active || !differs))
        ret->state = MEMBER_ACTIVE;
    else
        ret->state = before;
    (void)snprintf(
        ret->owners, sizeof(ret->owners), "%s%s", has_other && view_may_own(&other) ? OTHER : "",
        has_self && view_may_own(&self) && self.epoch == EPOCH && ret->state == MEMBER_ACTIVE ? SELF
                                                                                              : "");
}

static void check(const struct combination *c, const struct expected *e, const char *when)
{
    char names[8] = "";
    size_t used = 0;

    for (size_t i = 0; i < v.n_owners; i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s", v.owners[i]);
    if (v.source != e->source || v.state != e->state || strcmp(names, e->owners) != 0 ||
        v.can_own != (strstr(e->owners, SELF) != NULL))
        fail_msg("%s: etcd %d (self %d, other %d), rows %d (self %d, other %d), was active %d, "
                 "ready %d, told %d: source %s, state %s, owners \"%s\"; expected %s, %s, \"%s\"",
                 when, c->age[VIEW_ETCD], c->self[VIEW_ETCD], c->other[VIEW_ETCD],
                 c->age[VIEW_ROWS], c->self[VIEW_ROWS], c->other[VIEW_ROWS], c->was_active,
                 c->is_ready, c->told, view_source_name(v.source), member_state_name(v.state),
                 names, view_source_name(e->source), member_state_name(e->state), e->owners);
}

static void try(const struct combination *c)
{
    struct members_decision d;
    struct expected e;
    enum member_state before;

    begin(c);
    before = v.state;
    if (c->told == TOLD_TO_DRAIN)
        members_view_set_drained(&v, true);
    if (c->told == TOLD_TO_STOP)
        members_view_set_stopping(&v);
    speak(c, VIEW_ETCD);
    speak(c, VIEW_ROWS);
    expect(c, &e);
    d = decide(T0);
    check(c, &e, "at once");
    assert_int_equal(d.is_new_state, v.state != before);
    assert_int_equal(d.has_new_owners, v.n_owners > 0); /* there were none before */
    /* Fresh lists are so to the millisecond, so all of them end next. */
    if (e.source != VIEW_NONE)
        assert_true(d.look_again == T0 + 1);
    (void)decide(T0);
    check(c, &e, "again");
    members_view_fini(&v);
}

static void test_the_whole_table(void **state)
{
    struct combination c = {0};
    unsigned n = 0;

    (void)state;
    /* This node's row says no more of itself than another's would: four of its kinds are enough. */
    static const enum shown own_rows[] = {SHOWN_NOT, SHOWN_ACTIVE, SHOWN_DRAINING,
                                          SHOWN_EARLIER_DRAINING};
    for (unsigned i = 0; i < AGE_N * SHOWN_N * SHOWN_N * AGE_N * 4 * SHOWN_N * 3 * TOLD_N; i++) {
        unsigned k = i;

        c.age[VIEW_ETCD] = (enum age)(k % AGE_N), k /= AGE_N;
        c.self[VIEW_ETCD] = (enum shown)(k % SHOWN_N), k /= SHOWN_N;
        c.other[VIEW_ETCD] = (enum shown)(k % SHOWN_N), k /= SHOWN_N;
        c.age[VIEW_ROWS] = (enum age)(k % AGE_N), k /= AGE_N;
        c.self[VIEW_ROWS] = own_rows[k % 4], k /= 4;
        c.other[VIEW_ROWS] = (enum shown)(k % SHOWN_N), k /= SHOWN_N;
        c.was_active = k % 3 == 2, c.is_ready = k % 3 >= 1, k /= 3;
        c.told = (enum told)k;
        try(&c);
        n++;
    }
    print_message("%u combinations\n", n);
}

/* ---- In time ------------------------------------------------------------------------------- */

static const struct member *both(enum member_state other)
{
    static struct member list[2];

    list[0] = member(OTHER, other, 3);
    list[1] = member(SELF, v.state, EPOCH);
    return list;
}

/* From the start to owning, without etcd. */
static void test_life(void **state)
{
    struct members_decision d = decide(T0);

    (void)state;
    assert_false(d.is_new_state || d.has_new_owners || d.is_line_due);
    assert_true(d.look_again == INT64_MAX);
    reads(VIEW_ROWS, T0, both(MEMBER_ACTIVE), 2);
    d = decide(T0);
    assert_int_equal(v.state, MEMBER_JOINING); /* nothing of the store is known */
    assert_string_equal(owners(), OTHER);
    assert_true(d.is_line_due && d.has_new_owners && !d.is_new_state);
    members_view_set_ready(&v);
    d = decide(T0 + 10);
    assert_true(d.is_new_state && !d.has_new_owners);
    assert_int_equal(v.state, MEMBER_ACTIVE);
    reads(VIEW_ROWS, T0 + 20, both(MEMBER_ACTIVE), 2);
    d = decide(T0 + 20);
    assert_string_equal(owners(), OTHER "," SELF);
    assert_true(v.can_own);
    d = decide(T0 + 20 + TTL);
    assert_true(v.can_own && d.look_again == T0 + 21 + TTL);
    d = decide(d.look_again); /* silence */
    assert_string_equal(owners(), "");
    assert_true(d.has_new_owners && !d.is_new_state);
    assert_true(v.source == VIEW_NONE && !v.can_own);
}

static void test_drain_and_resume(void **state)
{
    struct members_decision d;

    (void)state;
    members_view_set_ready(&v);
    reads(VIEW_ROWS, T0, both(MEMBER_ACTIVE), 2);
    (void)decide(T0);
    reads(VIEW_ROWS, T0, both(MEMBER_ACTIVE), 2);
    (void)decide(T0);
    assert_string_equal(owners(), OTHER "," SELF);
    members_view_set_drained(&v, true);
    d = decide(T0 + 1);
    assert_true(d.is_new_state && v.state == MEMBER_DRAINING);
    assert_string_equal(owners(), OTHER);
    members_view_set_drained(&v, false);
    d = decide(T0 + 2);
    assert_true(d.is_new_state && v.state == MEMBER_ACTIVE);
    members_view_set_stopping(&v);
    (void)decide(T0 + 3);
    members_view_set_drained(&v, false);
    (void)decide(T0 + 4);
    assert_int_equal(v.state, MEMBER_DRAINING);
}

/* etcd takes no writes: by its list a member is active for ever. */
static void test_a_drain_that_etcd_did_not_hear_of(void **state)
{
    struct member rows[2];

    (void)state;
    members_view_set_ready(&v);
    reads(VIEW_ROWS, T0, both(MEMBER_ACTIVE), 2);
    (void)decide(T0);
    reads(VIEW_ETCD, T0, both(MEMBER_ACTIVE), 2);
    (void)decide(T0);
    assert_int_equal(v.source, VIEW_ETCD);
    assert_string_equal(owners(), OTHER "," SELF);
    memcpy(rows, both(MEMBER_DRAINING), sizeof(rows));
    reads(VIEW_ROWS, T0 + 100, rows, 2);
    (void)decide(T0 + 100);
    assert_int_equal(v.source, VIEW_ETCD);
    assert_string_equal(owners(), SELF);
    assert_int_equal(members_view_find(&v, STR(OTHER))->state,
                     MEMBER_DRAINING);                  /* as it is shown */
    reads(VIEW_ETCD, T0 + 200, both(MEMBER_ACTIVE), 2); /* still */
    (void)decide(T0 + 200);
    assert_string_equal(owners(), SELF);
    rows[0].state = MEMBER_ACTIVE; /* it takes part again */
    reads(VIEW_ROWS, T0 + 300, rows, 2);
    (void)decide(T0 + 300);
    assert_string_equal(owners(), OTHER "," SELF);
    assert_null(members_view_find(&v, STR("c")));
}

static void test_other_hash(void **state)
{
    struct member list[2];
    struct members_decision d;

    (void)state;
    members_view_set_ready(&v);
    memcpy(list, both(MEMBER_ACTIVE), sizeof(list));
    list[0].hash_version--;
    reads(VIEW_ROWS, T0, list, 2);
    d = decide(T0);
    assert_int_equal(v.state, MEMBER_JOINING);
    assert_non_null(d.disagrees);
    assert_string_equal(d.disagrees->name, OTHER);
    d = decide(T0 + 1);
    assert_null(d.disagrees); /* said once */
    list[0].state = MEMBER_DRAINING;
    reads(VIEW_ROWS, T0 + 2, list, 2);
    (void)decide(T0 + 2);
    assert_int_equal(v.state, MEMBER_ACTIVE);
    list[0].state = MEMBER_ACTIVE; /* who comes later waits, not who is there */
    reads(VIEW_ROWS, T0 + 3, list, 2);
    d = decide(T0 + 3);
    assert_int_equal(v.state, MEMBER_ACTIVE);
    assert_null(d.disagrees);
}

/* ---- What is said -------------------------------------------------------------------------- */

/* A member comes and goes ten times a second, for a minute. */
static void test_flapping_makes_a_line_a_second(void **state)
{
    mono_ms said_at = INT64_MIN;
    unsigned n_lines = 0;
    uint32_t n_changes = 0;
    struct members_decision d = {0};
    mono_ms now = T0;

    (void)state;
    for (int i = 0; i < 600; i++, now += 100) {
        reads(VIEW_ROWS, now, both(i % 2 ? MEMBER_JOINING : MEMBER_ACTIVE), 2);
        d = decide(now);
        assert_true(d.has_new_owners);
        if (!d.is_line_due)
            continue;
        assert_true(said_at == INT64_MIN || now - said_at >= MEMBERS_VIEW_LINE_MS);
        said_at = now;
        n_lines++;
        n_changes += d.n_changes;
    }
    assert_int_equal(n_lines, 60);
    /* The last change comes when its time has come, though nothing happens any more. */
    now -= 100;
    assert_false(d.is_line_due);
    assert_true(d.look_again > now && d.look_again <= said_at + MEMBERS_VIEW_LINE_MS);
    d = decide(d.look_again);
    assert_true(d.is_line_due && !d.has_new_owners);
    assert_int_equal(n_changes + d.n_changes, 600); /* none is lost */
    assert_string_equal(owners(), "");
    d = decide(said_at + 3 * MEMBERS_VIEW_LINE_MS);
    assert_false(d.is_line_due);
}

/* What the line compares with is what the last one said. */
static void test_a_line_knows_the_last_one(void **state)
{
    struct members_decision d;

    (void)state;
    reads(VIEW_ROWS, T0, both(MEMBER_ACTIVE), 2);
    d = decide(T0);
    assert_true(d.is_line_due && d.source_before == VIEW_NONE && v.source == VIEW_ROWS);
    reads(VIEW_ETCD, T0 + 10, both(MEMBER_ACTIVE), 2); /* the same owners, another witness */
    d = decide(T0 + 10);
    assert_false(d.is_line_due || d.has_new_owners);
    d = decide(d.look_again);
    assert_true(d.is_line_due && d.source_before == VIEW_ROWS && v.source == VIEW_ETCD);
    assert_int_equal(d.n_changes, 1);
}

static void test_too_many_members(void **state)
{
    static struct member list[VIEW_MEMBERS_MAX + 3];
    char name[16];

    (void)state;
    for (size_t i = 0; i < VIEW_MEMBERS_MAX + 3; i++) {
        (void)snprintf(name, sizeof(name), "m%03zu", i);
        list[i] = member(name, MEMBER_ACTIVE, 1);
    }
    reads(VIEW_ROWS, T0, list, VIEW_MEMBERS_MAX);
    assert_int_equal(decide(T0).n_cut, 0);
    reads(VIEW_ROWS, T0, list, VIEW_MEMBERS_MAX + 3);
    assert_int_equal(decide(T0).n_cut, 3);
    assert_int_equal(v.n_owners, VIEW_MEMBERS_MAX); /* the first by name */
    assert_string_equal(v.owners[VIEW_MEMBERS_MAX - 1], "m255");
    for (int i = 1; i < 20; i++) { /* for much longer than a TTL, and now and then there is room */
        mono_ms now = T0 + i * (int64_t)TTL / 2;

        reads(VIEW_ROWS, now, list, i % 2 ? VIEW_MEMBERS_MAX + 1 : VIEW_MEMBERS_MAX);
        assert_int_equal(decide(now).n_cut, 0); /* said once */
    }
    mono_ms later = T0 + 12 * (int64_t)TTL;
    reads(VIEW_ROWS, later, list, VIEW_MEMBERS_MAX + 2); /* again, after room for a TTL */
    assert_int_equal(decide(later).n_cut, 2);
}

/* ---- The start, and the heartbeats --------------------------------------------------------- */

static void test_may_start(void **state)
{
    (void)state;
    assert_true(members_view_may_start(&v, true, false, T0));
    assert_false(members_view_may_start(&v, false, false, T0 + TTL)); /* etcd has its time */
    assert_true(members_view_may_start(&v, false, false, T0 + TTL + 1));
    assert_true(members_view_may_start(&v, false, true, T0 + TTL + 1)); /* said of old */
    reads(VIEW_ETCD, T0 + TTL, both(MEMBER_ACTIVE), 2);
    assert_false(members_view_may_start(&v, false, true, T0 + 2 * TTL));
    assert_true(members_view_may_start(&v, false, true, T0 + 2 * TTL + 1));
    assert_true(members_view_may_start(&v, true, true, T0)); /* it is this node's by now */
}

static void test_beat(void **state)
{
    (void)state;
    assert_int_equal(members_view_beat_ms(&v, 100), TTL / 3);
    reads(VIEW_ROWS, T0, both(MEMBER_ACTIVE) + 1, 1);
    (void)decide(T0);
    assert_int_equal(members_view_beat_ms(&v, 100), TTL / 3); /* nobody else would hear */
    reads(VIEW_ROWS, T0, both(MEMBER_ACTIVE), 2);
    (void)decide(T0);
    assert_int_equal(members_view_beat_ms(&v, 100), 100);
    assert_int_equal(members_view_beat_ms(&v, TTL), TTL / 3);
    reads(VIEW_ETCD, T0, both(MEMBER_ACTIVE), 2);
    (void)decide(T0);
    assert_int_equal(members_view_beat_ms(&v, 100), TTL / 3);
    /* The row of a member that has resumed may be older than what etcd says. */
    reads(VIEW_ROWS, T0, both(MEMBER_DRAINING), 2);
    (void)decide(T0);
    assert_true(v.is_overruled);
    assert_int_equal(members_view_beat_ms(&v, 100), 100);
    reads(VIEW_ROWS, T0, both(MEMBER_ACTIVE), 2);
    (void)decide(T0);
    assert_false(v.is_overruled);
    assert_int_equal(members_view_beat_ms(&v, 100), TTL / 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_whole_table),
        cmocka_unit_test_setup_teardown(test_life, setup, teardown),
        cmocka_unit_test_setup_teardown(test_drain_and_resume, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_drain_that_etcd_did_not_hear_of, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_hash, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flapping_makes_a_line_a_second, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_line_knows_the_last_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_many_members, setup, teardown),
        cmocka_unit_test_setup_teardown(test_may_start, setup, teardown),
        cmocka_unit_test_setup_teardown(test_beat, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
