/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP interface over a store in memory that answers from a thread of its own. */
#ifndef TEST_API_FIXTURE_H
#define TEST_API_FIXTURE_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/api/api.h"
#include "tests/unit/http_client.h"

#define FAKE_MAX_TASKS 5000
#define FAKE_MAX_SERVICES 16
#define FAKE_MAX_INSTANCES 4 /* of all services: one more is a conflict */

struct fake_service {
    struct service s; /* its strings point below */
    char name[TASK_NAME_MAX + 1];
    char base_url[256];
    char secret[256];
    char policy[TASK_POLICY_MAX + 1];
};

struct fake_instance {
    struct instance in; /* its strings point below */
    char service_name[TASK_NAME_MAX + 1];
    char name[INSTANCE_NAME_MAX + 1];
    char base_url[256];
};

struct fake_store {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct store_op *first, *last;
    bool is_stopping;
    bool is_held;      /* takes operations and does not answer them yet */
    atomic_int refuse; /* what `post` returns instead of taking an operation */
    atomic_int fail;   /* what operations come back with, without effect */
    atomic_uint n_posts;
    atomic_bool lose_finish; /* the next FINISH is lost to a rescue */
    atomic_int then_refuse;  /* what `refuse` becomes when a FINISH has run */
    atomic_int then_fail;    /* and `fail` */
    struct task *tasks[FAKE_MAX_TASKS];
    size_t n_tasks;
    struct fake_service services[FAKE_MAX_SERVICES];
    size_t n_services;
    struct fake_instance instances[FAKE_MAX_INSTANCES]; /* in no order */
    size_t n_instances;
    int64_t next_id;
    struct finish_item last_finish;
    char last_actor[64];
};

struct api_fixture {
    struct fake_store store;
    struct store_clock clock;
    struct counters counters;
    atomic_bool drains;
    atomic_int n_hints;
    atomic_int n_services_hints;
    atomic_int n_notified;
    atomic_bool takes_notices;
    struct hint last_hint;
    struct retry_policy policies[2];
    struct retry_policies all_policies;
    struct api *api;
    const char *address;
    atomic_bool is_ready;
    atomic_bool knows_services;
    atomic_uint n_services_changed;
    atomic_uint n_instances_put; /* what the node was told */
    atomic_uint n_instances_removed;
    struct sched_explanation explanation;
    /* What leases come to: outcome and hand_by are the test's, the rest is what was asked. */
    struct lease_query last_lease;
    struct task *leased[4]; /* the test's */
    size_t n_leased;
    atomic_bool holds_leases;
    atomic_uint n_held; /* leases that wait, or did */
    atomic_uint n_cancelled;
    const char *forwarded; /* what another member answered, with one claim; NULL: none did */
    atomic_uint n_given_back;
    struct lease_claim last_given_back;
};

struct api_config api_fixture_config(void);
/* All but the store, and what the API is to be started with. `f` is zeroed. */
struct api_env api_fixture_env(struct api_fixture *f);
void api_fixture_start(struct api_fixture *f, const struct api_config *cfg);
void api_fixture_stop(struct api_fixture *f);

/* fake_store.c */
void fake_start(struct fake_store *s);
void fake_stop(struct fake_store *s);
int fake_post(void *impl, struct store_op *op);
/* For a store without a thread. fake_run answers what was posted; returns how many. */
void fake_init(struct fake_store *s);
unsigned fake_run(struct fake_store *s);
void fake_fini(struct fake_store *s);
void fake_hold(struct fake_store *s, bool held);
/* Puts a stored task into a state. */
void fake_put(struct fake_store *s, const char *biz_uuid, enum task_status status, int32_t attempt);
/* A copy: task_free. NULL when there is none. */
struct task *fake_get(struct fake_store *s, const char *biz_uuid);

/* Calls, and expects the status; the body is returned (free). */
char *expect_call(struct api_fixture *f, const char *method, const char *path, const char *body,
                  int status);
/* The same, of a problem that names the field (NULL = no field). */
void expect_problem(struct api_fixture *f, const char *method, const char *path, const char *body,
                    int status, const char *field);
/* The raw JSON at a path such as "results.0.status"; fails when there is none. */
void expect_json(const char *json, const char *path, const char *wanted);
bool json_at(const char *json, const char *path, char *dst, size_t cap);

#endif
