/* SPDX-License-Identifier: Apache-2.0 */
/* A scripted database behind the store, and an asker in front of it. The fake aborts when the store
 * breaks the driver's contract: keys or ids that repeat or are not sorted, a submission without an
 * id, two threads on one connection. */
#ifndef JF_TESTS_STORE_FAKE_H
#define JF_TESTS_STORE_FAKE_H

#include "node/store/store.h"

enum fake_fn {
    FAKE_OPEN,
    FAKE_MIGRATE,
    FAKE_TAKE_IDS,
    FAKE_SUBMIT,
    FAKE_CLAIM,
    FAKE_FINISH,
    FAKE_CANCEL,
    FAKE_SCAN,
    FAKE_CALL,
    FAKE_N
};

#define FAKE_FOR_EVER UINT32_MAX
#define FAKE_ID_BLOCK 10
#define FAKE_MAX_LOG 64

extern const struct driver fake_driver;     /* several writers */
extern const struct driver fake_one_writer; /* the same with one */

void fake_reset(void);
/* The next `times` calls return rc: having done nothing, or (lost) having done all. */
void fake_fail(enum fake_fn fn, int rc, uint32_t times);
void fake_lose(enum fake_fn fn, int rc, uint32_t times);
/* After `skip` calls that work. */
void fake_fail_later(enum fake_fn fn, uint32_t skip, int rc, uint32_t times);
void fake_warn(const char *text); /* what open() warns of */
void fake_block(enum fake_fn fn); /* calls stop inside until released */
void fake_release(enum fake_fn fn);
void fake_wait_inside(enum fake_fn fn, unsigned n); /* until n calls stand inside */
unsigned fake_inside(enum fake_fn fn);
unsigned fake_calls(enum fake_fn fn);
/* The rows of the i-th call (failed ones included), and the key or id of its first row. */
size_t fake_rows(enum fake_fn fn, unsigned i);
const char *fake_first(enum fake_fn fn, unsigned i);
unsigned fake_open_connections(void);

/* ---- The asker --------------------------------------------------------------------------- */

/* One operation with up to ASK_ROWS rows, in memory of the test's. */
#define ASK_ROWS 40
struct ask {
    union {
        struct store_op op;
        struct submit_op submit;
        struct claim_op claim;
        struct finish_op finish;
        struct cancel_op cancel;
        struct scan_op scan;
        struct call_get call;
    };
    union {
        struct submit_item submits[ASK_ROWS];
        struct claim_item claims[ASK_ROWS];
        struct finish_item finishes[ASK_ROWS];
    };
    struct task tasks[ASK_ROWS];
    char keys[ASK_ROWS][24];
    unsigned n_done;    /* deliveries */
    unsigned order;     /* of its delivery: 1 is the first */
    bool was_committed; /* on_committed saw it before it came back */
};

struct asker {
    struct store *store;
    struct store_port port;
    struct store_config cfg;
    struct mailbox *mailbox;
};

/* Fills cfg with small limits and one connection. */
void asker_init(struct asker *a);
void asker_start(struct asker *a, const struct driver *d);
void asker_start_up(struct asker *a, const struct driver *d); /* and waits until it is up */
void asker_stop(struct asker *a); /* the store, then delivers; NULL store is accepted */
void asker_fini(struct asker *a);
void asker_wait(struct asker *a, const struct ask *ask); /* until it is back */
void asker_wait_state(struct asker *a, bool up);         /* until store_is_up() says so */
void asker_wait_reports(unsigned n);                     /* until on_state was called n times */
bool asker_report(unsigned i, const char **ret_text);    /* the i-th report */
unsigned asker_reports(void);
unsigned asker_warnings(void);

/* Make operations; rows are "<prefix><number>" or ids from `first` on. */
void ask_submit(struct ask *ask, const char *key);
void ask_submit_rows(struct ask *ask, const char *prefix, unsigned n);
void ask_claim(struct ask *ask, int64_t first, unsigned n);
void ask_finish(struct ask *ask, int64_t first, unsigned n);
void ask_cancel(struct ask *ask, const char *key);
void ask_scan(struct ask *ask);
void ask_call(struct ask *ask, enum call_what what);
void ask_free(struct ask *ask); /* what came back in it */

int asker_try(struct asker *a, struct ask *ask);   /* posts */
void asker_post(struct asker *a, struct ask *ask); /* posts; must be taken */

#endif
