/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/health.h"

#include <string.h>

/* With `report` held. */
static void report_state(struct store *s, bool up, const char *text)
{
    if (s->has_reported && s->reported_up == up)
        return;
    s->has_reported = true;
    s->reported_up = up;
    if (s->cfg.on_state)
        s->cfg.on_state(s->cfg.ctx, up, up ? NULL : text);
}

/* With both locks held. */
static bool update_up(struct store *s)
{
    bool up = !atomic_load(&s->is_failing) && !atomic_load(&s->is_fatal);

    for (enum lane l = 0; l < N_LANES; l++)
        up = up && s->n_serving[l];
    atomic_store(&s->is_up, up);
    return up;
}

void health_serving(struct worker *w, bool serving, const char *text)
{
    struct store *s = w->store;
    bool up;

    pthread_mutex_lock(&s->report);
    pthread_mutex_lock(&s->lock);
    for (enum lane l = 0; l < N_LANES; l++) {
        if (w->lanes & LANE_BIT(l) && w->serving != serving)
            s->n_serving[l] += serving ? 1 : -1u;
    }
    w->serving = serving;
    up = update_up(s);
    pthread_mutex_unlock(&s->lock);
    /* A one-writer store whose second connection is still on its way has nothing to report yet. */
    if (up || !serving)
        report_state(s, up, text);
    pthread_mutex_unlock(&s->report);
}

void health_failing(struct store *s, const char *text)
{
    pthread_mutex_lock(&s->report);
    pthread_mutex_lock(&s->lock);
    if (!atomic_exchange(&s->is_failing, true))
        s->probe_at = clock_mono();
    (void)update_up(s);
    workers_wake_all(s);
    pthread_mutex_unlock(&s->lock);
    report_state(s, false, text);
    pthread_mutex_unlock(&s->report);
}

void health_wrote(struct store *s)
{
    bool up;

    if (!atomic_load(&s->is_failing))
        return;
    pthread_mutex_lock(&s->report);
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->is_failing, false);
    up = update_up(s);
    pthread_mutex_unlock(&s->lock);
    if (up)
        report_state(s, true, NULL);
    pthread_mutex_unlock(&s->report);
}

void health_fatal(struct store *s, const char *text)
{
    pthread_mutex_lock(&s->report);
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->is_fatal, true);
    (void)update_up(s);
    workers_wake_all(s);
    pthread_mutex_unlock(&s->lock);
    report_state(s, false, text);
    pthread_mutex_unlock(&s->report);
}

void health_warn(struct store *s, const char *text)
{
    char *copy;
    size_t i = 0;

    pthread_mutex_lock(&s->report);
    while (i < s->n_warnings && strcmp(s->warnings[i], text))
        i++;
    if (i == s->n_warnings && i < STORE_MAX_WARNINGS) {
        copy = strdup(text);
        if (copy)
            s->warnings[s->n_warnings++] = copy;
        if (s->cfg.on_warning)
            s->cfg.on_warning(s->cfg.ctx, text);
    }
    pthread_mutex_unlock(&s->report);
}

int64_t health_probe_wait(const struct worker *w)
{
    const struct store *s = w->store;
    int64_t left;

    if (!atomic_load(&s->is_failing) || s->is_probing || s->draining ||
        !(w->lanes & LANE_BIT(LANE_SUBMIT)))
        return -1;
    left = s->probe_at - clock_mono();
    return left > 0 ? left : 0;
}

void health_probe_begin(struct store *s)
{
    s->is_probing = true;
}

void health_probe_end(struct store *s, int rc, const char *text)
{
    int64_t pause =
        s->cfg.reconnect_max_ms < HEALTH_PROBE_MS ? s->cfg.reconnect_max_ms : HEALTH_PROBE_MS;

    pthread_mutex_lock(&s->lock);
    s->is_probing = false;
    s->probe_at = clock_mono() + pause;
    pthread_mutex_unlock(&s->lock);
    if (rc)
        health_failing(s, text);
    else
        health_wrote(s);
}
