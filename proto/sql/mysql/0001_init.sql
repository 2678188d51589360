-- MariaDB 10.6 and MySQL 8.0.17, or newer. Each statement ends in a semicolon at the end of a line. DDL
-- commits by itself here: what a migration that was cut off has made already is passed over when it
-- is run again.
--
-- Keys compare byte for byte, blanks at the end included: the collations named are the binary ones
-- without padding, MariaDB's in its own comments and MySQL's in versioned ones, which the other ignores.
--
-- No index names a column that a claim changes (status, attempt, claimed_by, claimed_at, deadline_at,
-- updated_at). There are no partial indexes: rows without a value stand at an index's front.
CREATE TABLE job_delay_task (
    id bigint NOT NULL PRIMARY KEY,
    trace_id varchar(32) NOT NULL,
    biz_uuid varchar(128) NOT NULL,
    service_name varchar(128) NOT NULL,
    handler varchar(128) NOT NULL,
    shard int NOT NULL DEFAULT 0,
    lane int NOT NULL,
    priority int NOT NULL,
    status varchar(16) NOT NULL,
    execute_time datetime(3) NOT NULL,
    next_attempt_time datetime(3),
    attempt int NOT NULL DEFAULT 0,
    retry_count int NOT NULL DEFAULT 0,
    max_retry int NOT NULL,
    snooze_count int NOT NULL DEFAULT 0,
    policy varchar(128),
    timeout_ms int,
    payload_json mediumtext,
    claimed_by varchar(255),
    claimed_at datetime(3),
    deadline_at datetime(3),
    failed_at datetime(3),
    last_error text,
    last_http_status int,
    created_at datetime(3) NOT NULL,
    updated_at datetime(3) NOT NULL,
    UNIQUE KEY job_delay_task_biz_uuid (biz_uuid),
    KEY job_delay_task_due (service_name, shard, lane, next_attempt_time, id),
    KEY job_delay_task_failed (failed_at)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

CREATE TABLE job_delay_task_history (
    id bigint NOT NULL PRIMARY KEY,
    trace_id varchar(32) NOT NULL,
    biz_uuid varchar(128) NOT NULL,
    service_name varchar(128) NOT NULL,
    handler varchar(128) NOT NULL,
    shard int NOT NULL,
    lane int NOT NULL,
    priority int NOT NULL,
    status varchar(16) NOT NULL,
    execute_time datetime(3) NOT NULL,
    next_attempt_time datetime(3),
    attempt int NOT NULL,
    retry_count int NOT NULL,
    max_retry int NOT NULL,
    snooze_count int NOT NULL,
    policy varchar(128),
    timeout_ms int,
    payload_json mediumtext,
    claimed_by varchar(255),
    claimed_at datetime(3),
    deadline_at datetime(3),
    failed_at datetime(3),
    last_error text,
    last_http_status int,
    created_at datetime(3) NOT NULL,
    updated_at datetime(3) NOT NULL,
    finished_at datetime(3) NOT NULL,
    UNIQUE KEY job_delay_task_history_biz_uuid (biz_uuid)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

-- A row for each attempt that did not succeed; a success stands in history.
CREATE TABLE job_attempt (
    task_id bigint NOT NULL,
    attempt int NOT NULL,
    started_at datetime(3),
    ended_at datetime(3) NOT NULL,
    http_status int,
    outcome varchar(32) NOT NULL,
    error text,
    node varchar(255),
    PRIMARY KEY (task_id, attempt)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

CREATE TABLE job_service (
    name varchar(128) NOT NULL PRIMARY KEY,
    base_url text,
    secret text,
    policy mediumtext,
    shards int NOT NULL DEFAULT 1,
    shards_seen int NOT NULL DEFAULT 1,
    concurrency int NOT NULL DEFAULT 0,
    timeout_ms int NOT NULL DEFAULT 0,
    lanes int NOT NULL DEFAULT 0,
    paused int NOT NULL DEFAULT 0,
    version bigint NOT NULL DEFAULT 0,
    created_at datetime(3) NOT NULL,
    updated_at datetime(3) NOT NULL
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

CREATE TABLE job_node (
    name varchar(128) NOT NULL PRIMARY KEY,
    epoch bigint NOT NULL,
    address text NOT NULL,
    version text NOT NULL,
    state varchar(32) NOT NULL,
    started_at datetime(3) NOT NULL,
    heartbeat_at datetime(3) NOT NULL
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

CREATE TABLE job_audit (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at datetime(3) NOT NULL,
    actor text NOT NULL,
    action varchar(32) NOT NULL,
    task_id bigint NOT NULL,
    trace_id varchar(32) NOT NULL,
    biz_uuid varchar(128) NOT NULL,
    from_status varchar(16) NOT NULL
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

-- The outbox of FAILED tasks of which nobody has been told yet.
CREATE TABLE job_alert (
    task_id bigint NOT NULL,
    attempt int NOT NULL,
    next_try datetime(3) NOT NULL,
    tries int NOT NULL DEFAULT 0,
    PRIMARY KEY (task_id, attempt)
) ENGINE=InnoDB;

-- The first of the next block of 1,000 ids that one node takes for itself.
CREATE TABLE job_id_block (
    one int NOT NULL PRIMARY KEY,
    next_id bigint NOT NULL
) ENGINE=InnoDB;
INSERT INTO job_id_block (one, next_id) VALUES (1, 1) ON DUPLICATE KEY UPDATE one = one;
