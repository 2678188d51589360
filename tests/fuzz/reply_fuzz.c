/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a service's answer, as the short way reads them. The input's first line is the limit
 * of the body, then, behind other characters, how long the pieces are in which it comes, over and
 * over; the rest is the answer, at whose end the connection ends. Read whole, in those pieces and
 * byte by byte it must be the same answer. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "node/dispatch/reply_internal.h"
#include "tests/fuzz/fuzz.h"

#define PIECES_MAX 16
#define LIMIT_MAX 100000

struct cutting {
    size_t lens[PIECES_MAX];
    size_t n; /* 0 = not at all */
};

struct script {
    size_t max_body;
    struct cutting pieces;
};

/* One that was read, with where its end was. */
struct reading {
    enum reply_state state;
    size_t used; /* of all */
    bool by_end; /* the connection ended before it did */
};

static struct script read_script(struct str line)
{
    struct script s = {.max_body = (size_t)fuzz_take_number(&line) % LIMIT_MAX};

    while (line.len > 0 && s.pieces.n < PIECES_MAX) {
        line.p++;
        line.len--;
        size_t len = (size_t)fuzz_take_number(&line);
        if (len > 0)
            s.pieces.lens[s.pieces.n++] = len;
    }
    return s;
}

/* In memory of just its size, so that a read beyond it is noticed. */
static enum reply_state feed_piece(struct reply *r, struct str piece, size_t *used)
{
    char *copy = malloc(piece.len);
    enum reply_state state;

    assert(copy);
    memcpy(copy, piece.p, piece.len);
    state = reply_feed(r, (struct str){copy, piece.len}, used);
    free(copy);
    return state;
}

static void check_clean(const struct reply *r)
{
    assert(reply_is_empty(r) && r->body.len == 0 && !r->failure[0]);
    assert(!r->is_begun && !r->is_cut && !r->is_whole && !r->keep_alive && !r->has_retry_after);
}

static struct reading read_in(struct reply *r, struct str in, size_t max_body,
                              const struct cutting *c)
{
    struct reading got = {.state = REPLY_MORE};

    reply_begin(r, max_body);
    check_clean(r);
    for (size_t i = 0; got.state == REPLY_MORE && got.used < in.len; i++) {
        struct str piece = {in.p + got.used, in.len - got.used};
        size_t used = 0;

        if (c->n && c->lens[i % c->n] < piece.len)
            piece.len = c->lens[i % c->n];
        got.state = feed_piece(r, piece, &used);
        assert(used <= piece.len);
        assert(got.state != REPLY_MORE || used == piece.len);
        assert(r->body.len <= max_body);
        assert(!reply_is_empty(r));
        got.used += used;
    }
    got.by_end = got.state == REPLY_MORE;
    if (got.by_end)
        got.state = reply_end(r);
    return got;
}

static void check_reading(const struct reply *r, const struct reading *got)
{
    assert(got->state == REPLY_DONE || got->state == REPLY_BAD);
    assert((got->state == REPLY_BAD) == (r->failure[0] != '\0'));
    fuzz_clean_text("the failure", str_from(r->failure));
    if (got->state == REPLY_BAD)
        return;
    unsigned status = r->parser.status_code;
    assert(status >= 200 && status <= 999 && r->is_begun);
    assert((status != 204 && status != 304) || r->body.len == 0);
    assert(!r->keep_alive || (r->is_whole && !r->is_cut && !got->by_end));
    assert(!r->is_cut || r->body.len == r->max_body);
    assert(!r->has_retry_after || r->retry_after_len <= REPLY_RETRY_AFTER_MAX);
    assert(r->header_len <= REPLY_HEADERS_MAX);
}

static struct str retry_after_of(const struct reply *r)
{
    return r->has_retry_after ? (struct str){r->retry_after, r->retry_after_len} : (struct str){0};
}

/* What is wrong with a bad one may be told by another of its faults. */
static void check_same(const struct reply *a, const struct reading *got_a, const struct reply *b,
                       const struct reading *got_b)
{
    assert(got_a->state == got_b->state);
    if (got_a->state == REPLY_BAD)
        return;
    assert(a->parser.status_code == b->parser.status_code);
    assert(a->keep_alive == b->keep_alive && a->is_cut == b->is_cut);
    assert(got_a->by_end == got_b->by_end);
    assert(a->is_cut || got_a->used == got_b->used);
    fuzz_same("the body", buf_str(&a->body), buf_str(&b->body));
    fuzz_same("Retry-After", retry_after_of(a), retry_after_of(b));
}

void fuzz_one(struct str input)
{
    static const struct cutting whole = {.n = 0};
    static const struct cutting bytes = {.lens = {1}, .n = 1};
    struct script s = read_script(fuzz_take_line(&input));
    const struct cutting *cuttings[] = {&s.pieces, &bytes};
    struct reply a = {0};
    struct reply b = {0};
    struct reading got_a = read_in(&a, input, s.max_body, &whole);

    check_reading(&a, &got_a);
    for (size_t i = 0; i < sizeof(cuttings) / sizeof(cuttings[0]); i++) {
        struct reading got_b = read_in(&b, input, s.max_body, cuttings[i]);

        check_reading(&b, &got_b);
        check_same(&a, &got_a, &b, &got_b);
    }
    /* Behind it, whatever it was, each is as new. */
    reply_begin(&a, s.max_body);
    check_clean(&a);
    reply_fini(&a);
    reply_fini(&b);
}
