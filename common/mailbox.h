/* SPDX-License-Identifier: Apache-2.0 */
/* How threads hand work to an event loop: any thread posts, the loop's thread takes all at once.
 * The mailbox owns an eventfd that the loop watches for reading. */
#ifndef JF_COMMON_MAILBOX_H
#define JF_COMMON_MAILBOX_H

#include "common/err.h"

/* Stands inside the sender's struct. on_delivery runs on the loop's thread and may free it. */
struct mail {
    struct mail *next;
    void (*on_delivery)(struct mail *m);
};

struct mailbox;

/* Errors: ERR_NOMEM, ERR_IO. */
MUST_CHECK int mailbox_new(struct mailbox **ret);
/* Nothing may be posted any more, and every mailbox_post() has returned (so join the senders
 * first); mail still inside is not delivered and not freed. */
void mailbox_free(struct mailbox *mb);
int mailbox_fd(const struct mailbox *mb);

/* From any thread. Never blocks and never fails; the sender bounds what is outstanding. */
void mailbox_post(struct mailbox *mb, struct mail *m);

/* On the loop's thread: delivers all that is there, in the order posted. What is posted meanwhile
 * waits for the next call, and the descriptor is readable again. Returns how many. */
unsigned mailbox_deliver(struct mailbox *mb);

#endif
