/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/calls.h"

#include <stdlib.h>

#include "node/core/nodecall.h"
#include "node/store/instances.h"
#include "node/store/seen.h"
#include "node/store/services.h"

/* A call that came back before and is run again starts with empty outputs. */
static void drop_task(struct task **t)
{
    task_free(*t);
    *t = NULL;
}

/* What cannot be carried over now is so the next time; the list is as good without it. */
static int run_service_list(struct sql *db, struct call_service_list *call, struct err *err)
{
    struct err ignored = {{0}};
    int rc = call->fold ? seen_fold(db, &ignored) : 0;

    (void)rc;
    return service_list(db, call, err);
}

static int run_reading(struct sql *db, struct store_call *call, bool *ret_done, struct err *err)
{
    *ret_done = true;
    switch (call->what) {
    case CALL_GET:
        return call_get(db, (struct call_get *)call, err);
    case CALL_GET_MANY:
        return call_get_many(db, (struct call_get_many *)call, err);
    case CALL_LIST:
        return call_list(db, (struct call_list *)call, err);
    case CALL_SERVICE_LIST:
        return run_service_list(db, (struct call_service_list *)call, err);
    case CALL_INSTANCE_LIST:
        return instance_list(db, (struct call_instance_list *)call, err);
    case CALL_CLOCK:
        return call_clock(db, (struct call_clock *)call, err);
    default:
        *ret_done = false;
        return 0;
    }
}

static int run_writing(struct sql *db, struct store_call *call, struct err *err)
{
    switch (call->what) {
    case CALL_MOVE:
        return call_move(db, (struct call_move *)call, err);
    case CALL_RUN:
        return call_run(db, (struct call_run *)call, err);
    case CALL_EXTEND:
        return call_extend(db, (struct call_extend *)call, err);
    case CALL_EXTEND_MANY:
        return call_extend_many(db, (struct call_extend_many *)call, err);
    case CALL_SERVICE_PUT:
        return service_put(db, (struct call_service_put *)call, err);
    case CALL_SERVICE_PAUSE:
        return service_pause(db, (struct call_service_pause *)call, err);
    case CALL_SERVICE_DELETE:
        return service_delete(db, (struct call_service_delete *)call, err);
    case CALL_INSTANCE_PUT:
        return instance_put(db, (struct call_instance_put *)call, err);
    case CALL_INSTANCE_DELETE:
        return instance_delete(db, (struct call_instance_delete *)call, err);
    case CALL_INSTANCE_PURGE:
        return instance_purge(db, (struct call_instance_purge *)call, err);
    case CALL_NODE_START:
        return call_node_start(db, (struct call_node_start *)call, err);
    case CALL_NODE_BEAT:
        return call_node_beat(db, (struct call_node_beat *)call, err);
    case CALL_ALERT_LIST:
        return call_alert_list(db, (struct call_alert_list *)call, err);
    case CALL_ALERT_END:
        return call_alert_end(db, (struct call_alert_end *)call, err);
    case CALL_PURGE:
        return call_purge(db, (struct call_purge *)call, err);
    default:
        abort();
    }
}

/* After a commit that failed: what was read then may not hold. NOT_FOUND and CONFLICT keep theirs.
 */
static void drop_outputs(struct store_call *call)
{
    struct call_service_put *put = (struct call_service_put *)call;
    struct call_service_pause *pause = (struct call_service_pause *)call;
    struct call_alert_list *alerts = (struct call_alert_list *)call;

    switch (call->what) {
    case CALL_MOVE:
        drop_task(&((struct call_move *)call)->task);
        break;
    case CALL_RUN:
        drop_task(&((struct call_run *)call)->task);
        break;
    case CALL_EXTEND:
        drop_task(&((struct call_extend *)call)->task);
        break;
    case CALL_SERVICE_PUT:
        free(put->stored);
        put->stored = NULL;
        break;
    case CALL_SERVICE_PAUSE:
        free(pause->stored);
        pause->stored = NULL;
        break;
    case CALL_ALERT_LIST:
        for (size_t i = 0; i < alerts->n; i++)
            task_free(alerts->alerts[i].task);
        free(alerts->alerts);
        alerts->alerts = NULL;
        alerts->n = 0;
        break;
    default:
        break;
    }
}

/* That others' transactions may have; absent: it waits for no task's. */
static struct str key_of(const struct store_call *call)
{
    if (call->what == CALL_MOVE)
        return ((const struct call_move *)call)->biz_uuid;
    if (call->what == CALL_RUN)
        return ((const struct call_run *)call)->biz_uuid;
    return (struct str){0};
}

int calls_run(struct sql *db, struct store_call *call, struct err *err)
{
    struct str key = key_of(call);
    bool done;
    int rc = run_reading(db, call, &done, err);

    if (done)
        return rc;
    rc = key.p ? sql_begin_patient(db, err) : db->d->begin(db, err);
    if (!rc)
        rc = run_writing(db, call, err);
    rc = sql_end(db, rc, err);
    if (key.p)
        rc = sql_key_error(db, rc, key, err);
    if (rc && rc != ERR_NOT_FOUND && rc != ERR_CONFLICT)
        drop_outputs(call);
    return rc;
}
