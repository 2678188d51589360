/* SPDX-License-Identifier: Apache-2.0 */
/* A deterministic world in virtual time around the real scheduler core: one event queue, one
 * random generator, one fake database, a few virtual nodes, fake business services and clients. The
 * same seed gives the same run, event by event. A run ends at the first broken promise. */
#ifndef JF_SIM_SIM_H
#define JF_SIM_SIM_H

#include "common/heap.h"
#include "node/core/sched.h"
#include "tests/sim/fake_driver.h"
#include "tests/sim/met.h"

#define SIM_START INT64_C(1700000000000)
#define SIM_SERVICES_MAX 4
#define SIM_NODES_MAX 3
#define SIM_TASKS_MAX 700
#define SIM_BATCH_MAX 8         /* tasks of one request */
#define SIM_ENVELOPE_BYTES 3000 /* of a request's body, for each of them */

struct sim;

/* Stands in the struct of whoever waits, who is freed, kept or waits again in `fn`. */
struct sim_event {
    struct heap_node node; /* first */
    void (*fn)(struct sim *s, struct sim_event *ev);
    void (*drop)(struct sim_event *ev); /* when the world ends before; NULL: nothing to do */
};

/* How a fake service may answer. */
enum reaction {
    REACT_OK,
    REACT_SLOW, /* in time, but late; with heartbeats */
    REACT_500,
    REACT_BUSY,  /* 429 or 503 with Retry-After */
    REACT_FINAL, /* 422, or a body that says "do not retry" */
    REACT_SNOOZE,
    REACT_ASYNC,   /* 202 */
    REACT_HANG,    /* no answer */
    REACT_REFUSED, /* no connection */
    REACT_RESET,   /* the work is done, the answer is lost */
    REACT_N
};

/* One thing goes wrong for good. Node 0 is the one it happens to. */
enum plot {
    PLOT_NONE,
    PLOT_ETCD_DIES,
    PLOT_ETCD_FORGETS,  /* all keys, and takes no writes */
    PLOT_UNHEARD_DRAIN, /* etcd takes no writes, then a node drains */
    PLOT_LOST_BY_STORE  /* a node's operations do not reach the store */
};

/* Rates are out of 10,000: of steps of a node, of store operations. Counts are per run. */
struct scenario {
    const char *name;
    int n_nodes;
    int n_services;
    int n_tasks;
    int64_t span_ms; /* clients and faults act for so long; then all is healed */
    int crash_rate;
    int lost_rate;        /* store operations lost before their effect */
    int answer_lost_rate; /* … after it */
    int late_rate;
    int twice_rate;
    int slow_rate; /* of store operations that take seconds */
    int n_outages;
    int n_pauses;
    int n_steps;
    int64_t skew_ms; /* how wrong a node's reading of the store's clock is */
    int n_stops;
    int n_cancels;
    int n_moves;
    int n_replaces;
    int n_runs;
    int n_repeats;
    int n_service_pauses;
    int n_service_puts;
    int n_drains;
    int n_etcd_troubles;        /* away, full, or cut off from a node */
    int n_leases_lost;          /* that were kept alive */
    int lost_watch_rate;        /* of events */
    int stale_rate;             /* of etcd's answers and events */
    bool tight;                 /* tables of a few entries, few slots */
    bool one_by_one;            /* services with few slots */
    int n_pull;                 /* services in pull mode, the last ones */
    int n_batch;                /* services in batch mode, those before them */
    bool mode_changes;          /* each PUT of one in pull mode gives it another */
    bool bursts;                /* many tasks are due together */
    uint8_t poison;             /* percent of tasks for which a request is refused; the bodies of
                                   requests are limited then */
    uint8_t doomed;             /* percent of tasks that no handler ever likes */
    uint8_t reactions[REACT_N]; /* weights */
    enum met must[12]; /* what all its seeds together must have met; ends with MET_DELIVERIES */
    bool isolation; /* service 0 is healthy, the others as `reactions` say; compared without them */
    bool punctual;  /* nothing is late */
    bool no_hints;  /* … though only scans find the tasks, which are submitted early enough */
    bool in_order;  /* a flood into few slots: the urgent go first */
    bool one_dies;  /* node 0 dies in the middle and stays dead; its tasks are rescued in time */
    bool clustered; /* members share the services; else each node works for all */
    enum plot plot; /* of a calm cluster */
};
size_t scenarios_n(void);
const struct scenario *scenario_at(size_t i); /* i < scenarios_n() */

struct sim_options {
    bool trace;          /* prints each event */
    bool without_others; /* isolation's reference run: service 0 alone */
};

struct cluster;
struct oracle;
struct vnode;
struct handlers;
struct clients;
struct workers;

struct sim {
    const struct scenario *sc;
    uint64_t seed;
    struct sim_options opt;
    struct rng rng;
    wall_ms now; /* the true time */
    struct heap events;
    uint64_t hash; /* of the trace */
    uint64_t n_events;
    int64_t store_offset_ms; /* the store's clock - the true time */
    bool store_down;
    bool healed; /* no more faults */
    struct fake_db *db;
    struct driver_conn *conn;
    struct oracle *oracle;
    struct vnode *nodes[SIM_NODES_MAX];
    struct handlers *handlers;
    struct clients *clients;
    struct workers *workers;
    struct cluster *cluster;
    uint64_t met[MET_N];
    bool failed;
};

/* What a run left behind. */
struct sim_result {
    uint64_t hash;
    uint64_t met[MET_N];
    wall_ms ended_at;
    int64_t p99_lateness_ms; /* of service 0's first attempts */
    bool failed;
};
/* Runs one seed to its end; prints what broke. */
void sim_run(const struct scenario *sc, uint64_t seed, const struct sim_options *opt,
             struct sim_result *ret);

void *sim_alloc(size_t size); /* zeroed; aborts when out of memory */
void sim_at(struct sim *s, struct sim_event *ev, wall_ms at,
            void (*fn)(struct sim *s, struct sim_event *ev));
void sim_forget(struct sim *s, struct sim_event *ev); /* if it waits */
wall_ms sim_store_now(const struct sim *s);

/* One line of the trace: goes into the hash, and out when tracing. `fmt` takes four long longs. */
void sim_note(struct sim *s, const char *fmt, int64_t a, int64_t b, int64_t c, int64_t d);
/* A broken promise: prints it and how to replay, ends the run. */
void sim_fail(struct sim *s, const char *fmt, ...) PRINTF_LIKE(2, 3);

int64_t sim_between(struct sim *s, int64_t low, int64_t high); /* both included */
bool sim_chance(struct sim *s, int per_10000);                 /* false once healed */
int64_t sim_latency(struct sim *s);                            /* of one network hop */

#endif
