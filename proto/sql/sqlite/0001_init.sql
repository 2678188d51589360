-- Times are integer milliseconds since 1970 (UTC).
CREATE TABLE job_delay_task (
    id INTEGER PRIMARY KEY,
    trace_id TEXT NOT NULL,
    biz_uuid TEXT NOT NULL,
    service_name TEXT NOT NULL,
    handler TEXT NOT NULL,
    shard INTEGER NOT NULL DEFAULT 0,
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    status TEXT NOT NULL,
    execute_time INTEGER NOT NULL,
    next_attempt_time INTEGER,
    attempt INTEGER NOT NULL DEFAULT 0,
    retry_count INTEGER NOT NULL DEFAULT 0,
    max_retry INTEGER NOT NULL,
    snooze_count INTEGER NOT NULL DEFAULT 0,
    policy TEXT,
    timeout_ms INTEGER,
    payload_json TEXT,
    claimed_by TEXT,
    claimed_at INTEGER,
    deadline_at INTEGER,
    failed_at INTEGER,
    last_error TEXT,
    last_http_status INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX job_delay_task_biz_uuid ON job_delay_task (biz_uuid);
CREATE INDEX job_delay_task_due ON job_delay_task (service_name, shard, lane, next_attempt_time, id)
    WHERE next_attempt_time IS NOT NULL;
CREATE INDEX job_delay_task_failed ON job_delay_task (failed_at) WHERE failed_at IS NOT NULL;

CREATE TABLE job_delay_task_history (
    id INTEGER PRIMARY KEY,
    trace_id TEXT NOT NULL,
    biz_uuid TEXT NOT NULL,
    service_name TEXT NOT NULL,
    handler TEXT NOT NULL,
    shard INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    status TEXT NOT NULL,
    execute_time INTEGER NOT NULL,
    next_attempt_time INTEGER,
    attempt INTEGER NOT NULL,
    retry_count INTEGER NOT NULL,
    max_retry INTEGER NOT NULL,
    snooze_count INTEGER NOT NULL,
    policy TEXT,
    timeout_ms INTEGER,
    payload_json TEXT,
    claimed_by TEXT,
    claimed_at INTEGER,
    deadline_at INTEGER,
    failed_at INTEGER,
    last_error TEXT,
    last_http_status INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX job_delay_task_history_biz_uuid ON job_delay_task_history (biz_uuid);

-- A row for each attempt that did not succeed; a success stands in history.
CREATE TABLE job_attempt (
    task_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER NOT NULL,
    http_status INTEGER,
    outcome TEXT NOT NULL,
    error TEXT,
    node TEXT,
    PRIMARY KEY (task_id, attempt)
) WITHOUT ROWID;

CREATE TABLE job_service (
    name TEXT PRIMARY KEY,
    base_url TEXT,
    secret TEXT,
    policy TEXT,
    shards INTEGER NOT NULL DEFAULT 1,
    shards_seen INTEGER NOT NULL DEFAULT 1,
    concurrency INTEGER NOT NULL DEFAULT 0,
    timeout_ms INTEGER NOT NULL DEFAULT 0,
    lanes INTEGER NOT NULL DEFAULT 0,
    paused INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE job_node (
    name TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    address TEXT NOT NULL,
    version TEXT NOT NULL,
    state TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE job_audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    task_id INTEGER NOT NULL,
    trace_id TEXT NOT NULL,
    biz_uuid TEXT NOT NULL,
    from_status TEXT NOT NULL
);

-- The outbox of FAILED tasks of which nobody has been told yet.
CREATE TABLE job_alert (
    task_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    next_try INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (task_id, attempt)
) WITHOUT ROWID;

CREATE TABLE job_id_block (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    next_id INTEGER NOT NULL
);
INSERT INTO job_id_block (one, next_id) VALUES (1, 1);
