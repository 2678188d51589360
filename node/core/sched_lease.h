/* SPDX-License-Identifier: Apache-2.0 */
/* What the scheduler's files know of leases. Only sched*.c include this. */
#ifndef JF_CORE_SCHED_LEASE_H
#define JF_CORE_SCHED_LEASE_H

#include "node/core/sched_internal.h"
#include "node/core/sched_pull.h"

/* A worker that waits. An open one stands in its service's queue and has no claims out between two
 * events; one whose round is out stands nowhere but in the list of all. */
struct lease {
    struct lease *prev; /* of the service's queue */
    struct lease *next;
    struct lease *prev_all;
    struct lease *next_all;
    struct lease *next_round; /* of those that the present pump claims for */
    struct svc *svc;
    void *ctx;
    int64_t number;
    uint32_t want;
    uint32_t n_out; /* claims */
    uint32_t n_got;
    int32_t visibility_ms;
    bool open;
    bool ended; /* what comes back is given back */
};

static inline bool is_pull(const struct svc *v)
{
    return v->conf->delivery == DELIVERY_PULL;
}
/* The first open lease gets the claim that is about to be asked. */
void lease_take(struct sched *s, struct entry *e, struct claim_item *item);
void lease_round_end(struct sched *s); /* after a pump */
/* Hands the claimed row over. False: the lease cannot take it, the caller gives it back. */
bool lease_give(struct sched *s, struct lease *l, struct task *t, struct actions *out);
/* A claim for it is back, whatever became of it. NULL is accepted. */
void lease_claim_back(struct sched *s, struct lease *l, struct actions *out);
void lease_news(struct sched *s, const struct svc *v); /* something became READY */
void lease_list_check(const struct sched *s);
void lease_list_free(struct sched *s);
/* Whether a ghost of a leased row is worth a place in memory by now. */
bool ghost_is_near(const struct sched *s, const struct svc *v, const struct scan_row *r);

#endif
