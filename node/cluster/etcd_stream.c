/* SPDX-License-Identifier: Apache-2.0 */
#include "node/cluster/etcd_stream.h"

#include <string.h>

#define KEEP_CAP_MAX ((size_t)64 << 10)

void etcd_stream_fini(struct etcd_stream *s)
{
    buf_fini(&s->in);
}

void etcd_stream_reset(struct etcd_stream *s)
{
    struct buf in = s->in;

    *s = (struct etcd_stream){.in = in};
    if (s->in.cap > KEEP_CAP_MAX)
        buf_fini(&s->in);
    else
        buf_clear(&s->in);
}

/* Takes the objects away that were handed out. */
static void drop_taken(struct etcd_stream *s)
{
    if (s->begin == 0)
        return;
    s->in.len -= s->begin;
    s->seen -= s->begin;
    if (s->in.len > 0)
        memmove(s->in.data, s->in.data + s->begin, s->in.len);
    else if (s->in.cap > KEEP_CAP_MAX)
        buf_fini(&s->in);
    s->begin = 0;
}

int etcd_stream_push(struct etcd_stream *s, struct str bytes)
{
    drop_taken(s);
    buf_adds(&s->in, bytes);
    return buf_ok(&s->in) ? 0 : ERR_NOMEM;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Which kind of bracket closes which is left to the parser. True at the end of an object. */
static bool step(struct etcd_stream *s, char c)
{
    if (s->is_string) {
        if (s->is_escape)
            s->is_escape = false;
        else if (c == '\\')
            s->is_escape = true;
        else if (c == '"')
            s->is_string = false;
        return false;
    }
    if (c == '"')
        s->is_string = true;
    else if (c == '{' || c == '[')
        s->depth++;
    else if (c == '}' || c == ']')
        return --s->depth == 0;
    return false;
}

int etcd_stream_next(struct etcd_stream *s, size_t max, struct str *ret)
{
    while (s->seen < s->in.len) {
        char c = s->in.data[s->seen];
        if (s->depth == 0 && is_space(c)) {
            s->begin = ++s->seen;
            continue;
        }
        if (s->depth == 0 && c != '{')
            return ERR_PROTOCOL;
        s->seen++;
        if (s->seen - s->begin > max)
            return ERR_TOO_BIG;
        if (step(s, c)) {
            *ret = (struct str){s->in.data + s->begin, s->seen - s->begin};
            s->begin = s->seen;
            return 1;
        }
    }
    return 0;
}
