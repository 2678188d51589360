/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/membership_fixture.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <event2/event.h>

static void note(struct peer *p, char letter)
{
    size_t len = strlen(p->story);

    assert_true(len + 1 < STORY_MAX);
    p->story[len] = letter;
}

static void on_registered(void *ctx)
{
    struct peer *p = ctx;

    assert_true(membership_is_registered(p->m));
    note(p, 'R');
}

static void on_lost(void *ctx, const char *why)
{
    struct peer *p = ctx;

    assert_false(membership_is_registered(p->m));
    (void)snprintf(p->why, sizeof(p->why), "%s", why);
    note(p, 'L');
}

static void on_held(void *ctx, const struct member *holder)
{
    struct peer *p = ctx;

    assert_false(membership_is_registered(p->m));
    p->holder = *holder;
    note(p, 'H');
}

static void on_members(void *ctx, mono_ms asked_at, const struct member *members, size_t n)
{
    struct peer *p = ctx;

    assert_true(n <= SEEN_MAX);
    assert_true(asked_at >= p->asked_at && asked_at <= clock_mono());
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            assert_true(strcmp(members[i - 1].name, members[i].name) < 0);
        p->members[i] = members[i];
    }
    p->n = n;
    p->n_told++;
    p->n_asked += asked_at != p->asked_at;
    p->asked_at = asked_at;
}

static void on_trouble(void *ctx, int rc, const struct err *err)
{
    struct peer *p = ctx;

    assert_true((rc != 0) == (err->text[0] != '\0'));
    if (!rc) {
        p->n_good++;
        return;
    }
    p->n_troubles++;
    p->n_corrupt += rc == ERR_CORRUPT;
    p->n_not_found += rc == ERR_NOT_FOUND;
    if (rc == ERR_CORRUPT || !p->is_trouble_kept)
        (void)snprintf(p->trouble, sizeof(p->trouble), "%s", err->text);
}

void peer_open(struct peer *p, struct fixture *f, const struct etcd_config *etcd, const char *name,
               int64_t ttl_ms)
{
    struct membership_config cfg = {
        .cluster = CLUSTER,
        .ttl_ms = ttl_ms,
        .ctx = p,
        .on_registered = on_registered,
        .on_lost = on_lost,
        .on_held = on_held,
        .on_members = on_members,
        .on_trouble = on_trouble,
    };
    struct err err = {0};

    memset(p, 0, sizeof(*p));
    p->f = f;
    p->asked_at = INT64_MIN;
    p->self = (struct member){.epoch = 1, .hash_version = 1, .started_at = 1767225600000};
    (void)snprintf(p->self.name, sizeof(p->self.name), "%s", name);
    (void)snprintf(p->self.address, sizeof(p->self.address), "%s:80", name);
    (void)snprintf(p->self.version, sizeof(p->self.version), "1.0");
    if (etcd_new(f->base, etcd, &p->e, &err))
        fail_msg("%s", err.text);
    assert_int_equal(membership_new(f->base, p->e, &cfg, &p->self, &p->m), 0);
    assert_int_equal(p->n_troubles + p->n_told, 0); /* nothing is called inside */
}

void peer_close(struct peer *p)
{
    membership_free(p->m);
    p->m = NULL;
    etcd_free(p->e);
    p->e = NULL;
}

static void on_left(void *ctx)
{
    struct peer *p = ctx;

    p->n_left++;
    if (p->frees_itself) {
        membership_free(p->m);
        p->m = NULL;
    }
}

void peer_leave(struct peer *p, int64_t timeout_ms)
{
    membership_leave(p->m, timeout_ms, on_left);
    assert_false(membership_is_registered(p->m));
    assert_int_equal(p->n_left, 0);
    wait_count(p, &p->n_left, 1);
    assert_int_equal(p->n_left, 1);
}

const char *member_json(const char *name, int64_t epoch)
{
    static char text[256];

    (void)snprintf(text, sizeof(text),
                   "{\"name\":\"%s\",\"address\":\"%s:80\",\"state\":\"active\",\"epoch\":%" PRId64
                   ",\"version\":\"1.0\",\"hashVersion\":1,"
                   "\"startedAt\":\"2026-01-01T00:00:00.000Z\"}",
                   name, name, epoch);
    return text;
}

void assert_was_well(const struct peer *p)
{
    assert_true(!p->n_good || p->n_troubles > p->n_corrupt);
}

/* ---- Conditions ---------------------------------------------------------------------------- */

const struct member *peer_find(const struct peer *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++) {
        if (!strcmp(p->members[i].name, name))
            return &p->members[i];
    }
    return NULL;
}

struct wanted {
    const struct peer *p;
    const char *text;
    int64_t epoch;
    enum member_state state;
    const unsigned *count;
    unsigned at_least;
};

static bool has_story(void *ctx)
{
    const struct wanted *w = ctx;
    bool is_as_wanted = !strncmp(w->p->story, w->text, strlen(w->p->story));

    if (!is_as_wanted)
        fail_msg("%s: \"%s\" happened, \"%s\" was to (%s, %s)", w->p->self.name, w->p->story,
                 w->text, w->p->why, w->p->trouble);
    return strlen(w->p->story) == strlen(w->text);
}

static bool has_seen(void *ctx)
{
    const struct wanted *w = ctx;
    const struct member *m = peer_find(w->p, w->text);

    return m && m->epoch == w->epoch && m->state == w->state;
}

static bool has_gone(void *ctx)
{
    const struct wanted *w = ctx;

    return !peer_find(w->p, w->text);
}

static bool has_counted(void *ctx)
{
    const struct wanted *w = ctx;

    return *w->count >= w->at_least;
}

void wait_story(struct peer *p, const char *story)
{
    fixture_wait(p->f, has_story, &(struct wanted){.p = p, .text = story});
}

void wait_seen(struct peer *p, const char *name, int64_t epoch, enum member_state state)
{
    fixture_wait(p->f, has_seen,
                 &(struct wanted){.p = p, .text = name, .epoch = epoch, .state = state});
}

void wait_gone(struct peer *p, const char *name)
{
    fixture_wait(p->f, has_gone, &(struct wanted){.p = p, .text = name});
}

void wait_count(struct peer *p, const unsigned *count, unsigned at_least)
{
    fixture_wait(p->f, has_counted, &(struct wanted){.p = p, .count = count, .at_least = at_least});
}

void wait_asked(struct peer *p, unsigned n)
{
    wait_count(p, &p->n_asked, p->n_asked + n);
}
