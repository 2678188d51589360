/* SPDX-License-Identifier: Apache-2.0 */
#include "node/ops/metrics.h"

#include <inttypes.h>
#include <stdio.h>

static void put_head(struct buf *b, const char *name, const char *type, const char *help)
{
    buf_addf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_one(struct buf *b, const char *name, const char *type, const char *help,
                    uint64_t value)
{
    put_head(b, name, type, help);
    buf_addf(b, "%s %" PRIu64 "\n", name, value);
}

static void put_lateness(struct buf *b, const struct counters *c)
{
    static const char name[] = "jobflow_lateness_seconds";
    uint64_t total = 0;

    put_head(b, name, "histogram",
             "How long after its time the first attempt of a task began, in seconds.");
    for (int i = 0; i < LATENESS_BUCKETS; i++) {
        total += counter_get(&c->lateness[i]);
        buf_addf(b, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name,
                 (double)lateness_bounds_ms[i] / 1000, total);
    }
    total += counter_get(&c->lateness[LATENESS_BUCKETS]);
    buf_addf(b, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, total);
    buf_addf(b, "%s_sum %.3f\n", name, (double)counter_get(&c->lateness_sum_ms) / 1000);
    buf_addf(b, "%s_count %" PRIu64 "\n", name, total);
}

static void put_tasks(struct buf *b, const struct counters *c)
{
    static const enum task_status ends[] = {TASK_SUCCESS, TASK_FAILED, TASK_CANCELLED};

    put_one(b, "jobflow_tasks_submitted_total", "counter", "New tasks stored.",
            counter_get(&c->submitted));
    put_one(b, "jobflow_tasks_duplicate_total", "counter",
            "Submissions answered with the record of an earlier one.", counter_get(&c->duplicates));
    put_one(b, "jobflow_tasks_refused_total", "counter", "Submissions refused with 4xx or 503.",
            counter_get(&c->refused));
    put_head(b, "jobflow_attempts_total", "counter", "Attempts that ended, by outcome.");
    for (int k = 0; k <= VERDICT_UNSENT; k++)
        buf_addf(b, "jobflow_attempts_total{outcome=\"%s\"} %" PRIu64 "\n",
                 verdict_name((enum verdict_kind)k), counter_get(&c->attempts[k]));
    put_head(b, "jobflow_tasks_finished_total", "counter", "Tasks that came to an end, by status.");
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        buf_addf(b, "jobflow_tasks_finished_total{status=\"%s\"} %" PRIu64 "\n",
                 task_status_name(ends[i]), counter_get(&c->finished[ends[i]]));
    put_one(b, "jobflow_retries_total", "counter", "Retries scheduled.", counter_get(&c->retries));
    put_one(b, "jobflow_rescued_total", "counter",
            "Attempts that nobody finished, ended by this node.", counter_get(&c->rescued));
    put_one(b, "jobflow_alerts_told_total", "counter", "FAILED tasks that the webhook took.",
            counter_get(&c->alerts_told));
    put_one(b, "jobflow_alerts_failed_total", "counter", "Tries that the webhook did not take.",
            counter_get(&c->alerts_failed));
    put_one(b, "jobflow_hints_dropped_total", "counter",
            "Hints about other members' tasks for which there was no room.",
            counter_get(&c->hints_dropped));
    put_one(b, "jobflow_hints_failed_total", "counter",
            "Calls with hints that the owner did not take.", counter_get(&c->hints_failed));
    put_one(b, "jobflow_http_requests_total", "counter", "Requests to the HTTP interface.",
            counter_get(&c->http_requests));
}

static void put_scheduler(struct buf *b, const struct sched_stats *s)
{
    put_head(b, "jobflow_tasks_in_flight", "gauge", "Tasks between claim and stored end.");
    buf_addf(b,
             "jobflow_tasks_in_flight{stage=\"claiming\"} %u\n"
             "jobflow_tasks_in_flight{stage=\"sending\"} %u\n"
             "jobflow_tasks_in_flight{stage=\"finishing\"} %u\n",
             s->n_claiming, s->n_sending, s->n_finishing);
    put_one(b, "jobflow_tasks_backlog", "gauge",
            "Due tasks that this node has read and not claimed yet.", s->n_ready);
    put_one(b, "jobflow_owned_shards", "gauge", "Shards of services that this node works for.",
            s->n_shards);
    put_one(b, "jobflow_tasks_waiting", "gauge", "Tasks in this node's timers.", s->n_waiting);
    put_one(b, "jobflow_tasks_ghosts", "gauge",
            "Attempts of others that this node watches until their deadline.", s->n_ghosts);
    put_one(b, "jobflow_claims_lost_total", "counter", "Claims that another write came before.",
            s->n_claims_lost);
    put_one(b, "jobflow_claims_early_total", "counter",
            "Claims that the store's clock found too early.", s->n_claims_early);
    put_one(b, "jobflow_finishes_lost_total", "counter",
            "Ends of attempts that were no longer the live one.", s->n_finishes_lost);
}

static void put_instances(struct buf *b, const struct metrics_gauges *g)
{
    put_one(b, "jobflow_instances", "gauge", "Live instances of services.", g->n_instances);
    put_one(b, "jobflow_instances_set_aside", "gauge",
            "Live instances that this node passes over since it could not connect to them.",
            g->n_instances_aside);
}

static void put_store(struct buf *b, const struct metrics_gauges *g)
{
    static const char *const kinds[STORE_N_KINDS] = {
        [STORE_SUBMIT] = "submit", [STORE_CLAIM] = "claim", [STORE_FINISH] = "finish",
        [STORE_CANCEL] = "cancel", [STORE_SCAN] = "scan",   [STORE_CALL] = "call",
    };

    put_one(b, "jobflow_store_up", "gauge", "1 while the database answers.", g->store_up);
    put_one(b, "jobflow_store_queued", "gauge", "Operations that wait for the database.",
            g->store_queued);
    put_head(b, "jobflow_store_batches_total", "counter", "Transactions, by kind.");
    for (int k = 0; k < STORE_N_KINDS; k++)
        buf_addf(b, "jobflow_store_batches_total{kind=\"%s\"} %" PRIu64 "\n", kinds[k],
                 g->store_batches[k]);
    put_head(b, "jobflow_store_rows_total", "counter", "Rows in these transactions, by kind.");
    for (int k = 0; k < STORE_N_KINDS; k++)
        buf_addf(b, "jobflow_store_rows_total{kind=\"%s\"} %" PRIu64 "\n", kinds[k],
                 g->store_rows[k]);
    put_one(b, "jobflow_store_retries_total", "counter", "Transactions run again.",
            g->store_retries);
    put_one(b, "jobflow_store_reconnects_total", "counter", "Connections opened again.",
            g->store_reconnects);
}

void metrics_put(struct buf *b, const struct counters *c, const struct metrics_gauges *g)
{
    put_head(b, "jobflow_build_info", "gauge", "Version and node, as labels.");
    buf_addf(b, "jobflow_build_info{version=\"%s\",node=\"%s\"} 1\n", JF_VERSION, g->node);
    put_tasks(b, c);
    put_lateness(b, c);
    put_scheduler(b, &g->sched);
    put_instances(b, g);
    put_store(b, g);
}
