/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the dispatcher share. A slot is one request on its way, with the libcurl handle
 * that carries it; idle slots are kept, since making a handle costs more than a request. */
#ifndef JF_DISPATCH_INTERNAL_H
#define JF_DISPATCH_INTERNAL_H

#include <curl/curl.h>
#include <event2/event_struct.h>

#include "common/buf.h"
#include "node/dispatch/address.h"
#include "node/dispatch/dispatch.h"
#include "node/dispatch/reply_internal.h"

#define DISPATCH_HEADERS_MAX 32
#define DISPATCH_IDLE_SLOTS_MAX 512
/* A timer that has not come by then is not on its way. */
#define DISPATCH_OVERDUE_MS 1000

struct plain;
struct plain_call;
struct watch;

struct dispatch {
    struct event_base *base; /* borrowed */
    CURLM *multi;
    struct plain *plain;           /* owned */
    struct event timer;            /* when libcurl wants to be called next, or earlier */
    mono_ms timer_at;              /* INT64_MAX = it is not set */
    struct event stall_timer;      /* runs while something is in flight */
    struct dispatch_slot *running; /* doubly linked */
    struct dispatch_slot *idle;    /* singly linked by `next` */
    struct watch **watches;        /* by descriptor; owned, as what they point to */
    size_t n_watches;
    uint32_t n_in_flight; /* requests, those of the short way too */
    uint32_t n_idle;
    int64_t connect_timeout_ms;
    int64_t low_speed_ms;
    size_t max_answer;
    long refresh_s;
    char *ca_file; /* owned; NULL = the system's */
    struct address_rules rules;
    bool is_ending; /* on_done callbacks are running */
};

struct dispatch_slot {
    struct dispatch *d;
    CURL *easy;
    CURLU *parsed;              /* of `url`; owned, and read by libcurl */
    char *url;                  /* owned; of the last request; NULL: it was not parsed */
    struct dispatch_request *r; /* NULL while idle */
    struct plain_call *call;    /* it only connects, for this one; NULL = it does all */
    bool connects_only;         /* what the handle was told */
    struct dispatch_slot *prev;
    struct dispatch_slot *next;
    struct buf answer;
    long read_size; /* of the handle's buffer */
    size_t answer_header_len;
    size_t retry_after_len;
    int64_t started_us;
    int64_t left_us; /* 0 = not one byte has left */
    mono_ms heard_at;
    bool is_fenced;   /* too late to be sent */
    bool is_tried;    /* a socket was opened for it */
    bool is_answered; /* the answer began, a 1xx aside */
    bool is_heard;    /* something came since the last look */
    bool is_cut;
    bool has_retry_after;
    bool has_length;
    int64_t length; /* the answer's Content-Length */
    char retry_after[REPLY_RETRY_AFTER_MAX];
    char failure[96]; /* ours; "" = see curl_error */
    char curl_error[CURL_ERROR_SIZE];
    struct curl_slist headers[DISPATCH_HEADERS_MAX + 1];
};

/* Lets libcurl act on a socket's events, or on time, then ends the requests that are done. Not to
 * be called from a callback of libcurl. */
void dispatch_advance(struct dispatch *d, curl_socket_t fd, int what);

/* Has libcurl do the request, or only connect for a call of the short way, which hears of it by
 * plain_connected or plain_unconnected, not from inside. Errors: ERR_NOMEM. */
MUST_CHECK int dispatch_by_libcurl(struct dispatch *d, struct dispatch_request *r,
                                   struct plain_call *call, int64_t timeout_ms);

/* One that cannot be added for want of memory fires at once instead of never. */
void dispatch_timer_set(struct event *timer, int64_t ms);

/* Gives back a request whose answer stands; it may be gone then. */
void dispatch_ended(struct dispatch *d, struct dispatch_request *r);

/* libcurl's callbacks: which events of a socket it wants, and how to close one that was given to
 * watch_open; ctx is the dispatcher. */
int watch_on_change(CURL *easy, curl_socket_t fd, int what, void *ctx, void *unused);
int watch_on_close(void *ctx, curl_socket_t fd);

/* Takes note of a new socket. False when out of memory. */
bool watch_open(struct dispatch *d, int fd);

/* Behind the last socket's close. */
void watches_fini(struct dispatch *d);

/* An idle slot with all that is the same for each request set. NULL when out of memory. */
struct dispatch_slot *slot_new(struct dispatch *d);
void slot_free(struct dispatch_slot *s);

/* Makes the slot ready for a request, or for the connection that `call` needs for it. Errors:
 * ERR_NOMEM. */
MUST_CHECK int slot_prepare(struct dispatch_slot *s, struct dispatch_request *r,
                            struct plain_call *call, int64_t timeout_ms);

/* Of a slot that has connected: the descriptor, which outlives the slot; the caller owns it. -1
 * with errno set when there are too many. */
int slot_steal(struct dispatch_slot *s);

/* Lets libcurl go on with a request whose connection is being made. When an address has used up its
 * share of the connect time, libcurl 7.88 picks the next one and tries it only at its next
 * occasion, which may be the end of that time. */
void slot_nudge(struct dispatch_slot *s);

/* Says why the request failed, where we know better than libcurl. */
void slot_fail(struct dispatch_slot *s, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Fills the request's answer from how the transfer ended. */
void slot_answer(struct dispatch_slot *s, CURLcode code);

/* Forgets the request; keeps the handle, and the answer's memory if it is small. */
void slot_reset(struct dispatch_slot *s);

#endif
