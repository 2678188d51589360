/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of two JSON texts as values. Walks both token arrays together without recursion; the
 * members of an object are visited in the order of their sorted keys, which costs n log n. */
#include "common/json_impl.h"

#include <stdlib.h>

/* A container that is being compared. Its sorted keys (of an object) are a part of `arena`. */
struct frame {
    uint32_t n;
    uint32_t i;      /* children done */
    uint32_t next_a; /* of an array: the next element's index */
    uint32_t next_b;
    const struct json_token **keys_a; /* NULL for an array */
    const struct json_token **keys_b;
};

struct side {
    struct json_doc doc;
    const struct json_token **arena; /* owned; room for all keys of the text */
};

struct walk {
    struct side a;
    struct side b;
    size_t used; /* of each arena: what the objects opened so far have taken */
    unsigned depth;
    struct frame stack[JSON_MAX_DEPTH];
};

static int side_init(struct side *side, struct str text)
{
    /* A text of n bytes has at most n values. */
    uint32_t max = text.len < UINT32_MAX ? (uint32_t)text.len : UINT32_MAX;
    int rc = json_parse(&side->doc, text, max, NULL);
    if (rc)
        return rc;
    side->arena = reallocarray(NULL, side->doc.n_tokens, sizeof(side->arena[0]));
    return side->arena ? 0 : ERR_NOMEM;
}

static void side_fini(struct side *side)
{
    json_doc_fini(&side->doc);
    free(side->arena);
}

/* Without the sign of a zero. */
static struct str normal_number(struct str s)
{
    size_t i = 1;
    if (s.p[0] != '-')
        return s;
    while (i < s.len && (s.p[i] == '0' || s.p[i] == '.'))
        i++;
    bool is_zero = i == s.len || s.p[i] == 'e' || s.p[i] == 'E';
    return is_zero ? (struct str){s.p + 1, s.len - 1} : s;
}

static void push(struct walk *w, uint32_t ia, uint32_t ib)
{
    const struct json_token *a = &w->a.doc.tokens[ia];
    const struct json_token *b = &w->b.doc.tokens[ib];
    struct frame *f = &w->stack[w->depth++];
    *f = (struct frame){.n = a->n, .next_a = ia + 1, .next_b = ib + 1};
    if (a->type == JSON_ARRAY)
        return;
    f->keys_a = w->a.arena + w->used;
    f->keys_b = w->b.arena + w->used;
    w->used += a->n;
    json_sorted_keys(&w->a.doc, a, f->keys_a);
    json_sorted_keys(&w->b.doc, b, f->keys_b);
}

/* Compares two values, but only opens containers. */
static bool same_head(struct walk *w, uint32_t ia, uint32_t ib)
{
    const struct json_token *a = &w->a.doc.tokens[ia];
    const struct json_token *b = &w->b.doc.tokens[ib];
    if (a->type != b->type || a->n != b->n)
        return false;
    switch (a->type) {
    case JSON_NUMBER:
        return str_eq(normal_number(a->raw), normal_number(b->raw));
    case JSON_STRING:
        return json_same_string(a, b);
    case JSON_ARRAY:
    case JSON_OBJECT:
        push(w, ia, ib);
        return true;
    case JSON_NULL:
    case JSON_FALSE:
    case JSON_TRUE:
        break;
    }
    return true;
}

/* Compares the next child of the innermost open container. */
static bool same_child(struct walk *w)
{
    struct frame *f = &w->stack[w->depth - 1];
    uint32_t ia = f->next_a;
    uint32_t ib = f->next_b;
    if (f->keys_a) {
        const struct json_token *key_a = f->keys_a[f->i];
        const struct json_token *key_b = f->keys_b[f->i];
        if (!json_same_string(key_a, key_b))
            return false;
        ia = (uint32_t)(key_a - w->a.doc.tokens) + 1;
        ib = (uint32_t)(key_b - w->b.doc.tokens) + 1;
    } else {
        f->next_a = w->a.doc.tokens[ia].next;
        f->next_b = w->b.doc.tokens[ib].next;
    }
    f->i++;
    return same_head(w, ia, ib);
}

static bool same_trees(struct walk *w)
{
    if (!same_head(w, 0, 0))
        return false;
    while (w->depth > 0) {
        const struct frame *f = &w->stack[w->depth - 1];
        if (f->i == f->n)
            w->depth--;
        else if (!same_child(w))
            return false;
    }
    return true;
}

bool json_same_value(struct str a, struct str b)
{
    if (str_eq(a, b))
        return true;
    struct walk w = {0};
    bool same = side_init(&w.a, a) == 0 && side_init(&w.b, b) == 0 && same_trees(&w);
    side_fini(&w.a);
    side_fini(&w.b);
    return same;
}
