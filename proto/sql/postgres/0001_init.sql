-- No index and no predicate names a column that a claim changes (status, attempt, claimed_by,
-- claimed_at, deadline_at, updated_at), and half of each page is left free, so that claims are HOT updates.
CREATE TABLE job_delay_task (
    id bigint PRIMARY KEY,
    trace_id text COLLATE "C" NOT NULL,
    biz_uuid text COLLATE "C" NOT NULL,
    service_name text COLLATE "C" NOT NULL,
    handler text COLLATE "C" NOT NULL,
    shard int NOT NULL DEFAULT 0,
    lane int NOT NULL,
    priority int NOT NULL,
    status text COLLATE "C" NOT NULL,
    execute_time timestamptz NOT NULL,
    next_attempt_time timestamptz,
    attempt int NOT NULL DEFAULT 0,
    retry_count int NOT NULL DEFAULT 0,
    max_retry int NOT NULL,
    snooze_count int NOT NULL DEFAULT 0,
    policy text COLLATE "C",
    timeout_ms int,
    payload_json text COLLATE "C",
    claimed_by text COLLATE "C",
    claimed_at timestamptz,
    deadline_at timestamptz,
    failed_at timestamptz,
    last_error text COLLATE "C",
    last_http_status int,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 20000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE UNIQUE INDEX job_delay_task_biz_uuid ON job_delay_task (biz_uuid);
CREATE INDEX job_delay_task_due ON job_delay_task (service_name, shard, lane, next_attempt_time, id)
    WHERE next_attempt_time IS NOT NULL;
CREATE INDEX job_delay_task_failed ON job_delay_task (failed_at) WHERE failed_at IS NOT NULL;

CREATE TABLE job_delay_task_history (
    id bigint PRIMARY KEY,
    trace_id text COLLATE "C" NOT NULL,
    biz_uuid text COLLATE "C" NOT NULL,
    service_name text COLLATE "C" NOT NULL,
    handler text COLLATE "C" NOT NULL,
    shard int NOT NULL,
    lane int NOT NULL,
    priority int NOT NULL,
    status text COLLATE "C" NOT NULL,
    execute_time timestamptz NOT NULL,
    next_attempt_time timestamptz,
    attempt int NOT NULL,
    retry_count int NOT NULL,
    max_retry int NOT NULL,
    snooze_count int NOT NULL,
    policy text COLLATE "C",
    timeout_ms int,
    payload_json text COLLATE "C",
    claimed_by text COLLATE "C",
    claimed_at timestamptz,
    deadline_at timestamptz,
    failed_at timestamptz,
    last_error text COLLATE "C",
    last_http_status int,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX job_delay_task_history_biz_uuid ON job_delay_task_history (biz_uuid);

-- A row for each attempt that did not succeed; a success stands in history.
CREATE TABLE job_attempt (
    task_id bigint NOT NULL,
    attempt int NOT NULL,
    started_at timestamptz,
    ended_at timestamptz NOT NULL,
    http_status int,
    outcome text COLLATE "C" NOT NULL,
    error text COLLATE "C",
    node text COLLATE "C",
    PRIMARY KEY (task_id, attempt)
);

CREATE TABLE job_service (
    name text COLLATE "C" PRIMARY KEY,
    base_url text COLLATE "C",
    secret text COLLATE "C",
    policy text COLLATE "C",
    shards int NOT NULL DEFAULT 1,
    shards_seen int NOT NULL DEFAULT 1,
    concurrency int NOT NULL DEFAULT 0,
    timeout_ms int NOT NULL DEFAULT 0,
    lanes int NOT NULL DEFAULT 0,
    paused int NOT NULL DEFAULT 0,
    version bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);

CREATE TABLE job_node (
    name text COLLATE "C" PRIMARY KEY,
    epoch bigint NOT NULL,
    address text COLLATE "C" NOT NULL,
    version text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE job_audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    actor text COLLATE "C" NOT NULL,
    action text COLLATE "C" NOT NULL,
    task_id bigint NOT NULL,
    trace_id text COLLATE "C" NOT NULL,
    biz_uuid text COLLATE "C" NOT NULL,
    from_status text COLLATE "C" NOT NULL
);

-- The outbox of FAILED tasks of which nobody has been told yet.
CREATE TABLE job_alert (
    task_id bigint NOT NULL,
    attempt int NOT NULL,
    next_try timestamptz NOT NULL,
    tries int NOT NULL DEFAULT 0,
    PRIMARY KEY (task_id, attempt)
);

-- Each value is the first of a block of 1,000 ids that one node takes for itself.
CREATE SEQUENCE job_id_block INCREMENT BY 1000 START WITH 1000;
