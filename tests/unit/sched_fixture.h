/* SPDX-License-Identifier: Apache-2.0 */
/* A scheduler with one service, "orders", its clock and its list of actions. */
#ifndef TEST_SCHED_FIXTURE_H
#define TEST_SCHED_FIXTURE_H

#include "node/core/sched.h"

#include <stddef.h>

#define T0 INT64_C(1800000000000)
#define MARGIN 1000

struct fixture {
    struct sched *s;
    struct actions a;
    wall_ms now;
    struct retry_policy policy;
    struct retry_policies policies;
    struct service services[4];
    size_t n_services;
};

void set_services(struct fixture *f); /* tells the scheduler of f->services */
void add_service(struct fixture *f, const char *name, int32_t concurrency);
/* For cmocka: 64 in flight and 20 tasks a lane; the small one: 16 and 1000. */
int sched_setup(void **state);
int sched_setup_small(void **state);
int sched_teardown(void **state); /* checks the books */

/* Takes the actions of one kind off the list into `dst`; returns how many. */
size_t take_actions(struct fixture *f, enum action_kind kind, struct action *dst, size_t cap);
void tick_at(struct fixture *f, wall_ms now);
/* Answers the scans that are out with these rows, all of lane `lane` of the first service. */
size_t answer_scans(struct fixture *f, struct scan_row *rows, size_t n_rows, int32_t lane);
void hint(struct fixture *f, const char *service, int32_t lane, int64_t id, wall_ms at);
struct task *claimed_task(int64_t id, const char *service, int32_t attempt, int32_t retries);
/* Wins a claim and returns the task that is to be sent. */
struct task *win(struct fixture *f, const struct action *claim, const char *service,
                 int32_t retries);
/* The request's end; *finish is what is asked for then. */
void answer_send(struct fixture *f, struct task *t, enum verdict_kind kind, struct action *finish);
void finished(struct fixture *f, const struct action *finish, enum finish_result result);

#endif
