-- Submission inside the business transaction: jobflow_submit(). docs/sql-submission.md is its manual.
--
-- The nodes write their limits and defaults here when they start: the procedure goes by the same ones as
-- the HTTP interface.
CREATE TABLE job_submit_rule (
    name varchar(64) NOT NULL PRIMARY KEY,
    value bigint NOT NULL
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
INSERT INTO job_submit_rule (name, value) VALUES ('max_ahead_ms', 315360000000), ('max_payload', 65536),
    ('max_timeout_ms', 86400000), ('policy:default', 10) ON DUPLICATE KEY UPDATE value = value;

-- Services, lanes and shards that the procedure used and job_service did not name. Writing them there
-- would lock the service's row until the business transaction ends; here each has a row of its own. The
-- nodes carry them over. A row with watch_until stands for a service that was deleted: a transaction
-- that was open then may still bring a task of it.
CREATE TABLE job_service_seen (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    service_name varchar(128) NOT NULL,
    lanes int NOT NULL,
    shards int NOT NULL,
    watch_until datetime(3)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

-- Each value is a block of 1,000 ids, for a node or for one call of the procedure; taking one locks
-- nothing that another needs. Rows do not stay. It begins far behind job_id_block, from which nodes of
-- an earlier version go on taking theirs while a cluster is upgraded.
CREATE TABLE job_id_step (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY
) ENGINE=InnoDB;
INSERT INTO job_id_step (id) SELECT next_id DIV 1000 + 1000000 FROM job_id_block WHERE one = 1
    ON DUPLICATE KEY UPDATE id = id; -- of a try that was cut off
DELETE FROM job_id_step;

CREATE PROCEDURE jobflow_submit(
    IN p_biz_uuid TEXT CHARACTER SET utf8mb4 COLLATE
        /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */,
    IN p_service_name TEXT CHARACTER SET utf8mb4 COLLATE
        /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */,
    IN p_handler TEXT CHARACTER SET utf8mb4 COLLATE
        /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */,
    IN p_payload LONGTEXT CHARACTER SET utf8mb4 COLLATE
        /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */,
    IN p_execute_time_ms BIGINT,
    IN p_delay_ms BIGINT,
    IN p_priority BIGINT,
    IN p_max_retry BIGINT,
    IN p_policy TEXT CHARACTER SET utf8mb4 COLLATE
        /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */,
    IN p_timeout_ms BIGINT,
    OUT p_trace_id VARCHAR(32) CHARACTER SET utf8mb4 COLLATE
        /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */,
    OUT p_duplicate BOOLEAN
) MODIFIES SQL DATA SQL SECURITY DEFINER
COMMENT 'Submits a task to JobFlow within the current transaction'
BEGIN
    DECLARE c_space VARCHAR(200) CHARACTER SET utf8mb4 DEFAULT
        '\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}';
    DECLARE v_isolation VARCHAR(32) DEFAULT
        /*M! @@SESSION.tx_isolation */ /*!80017 @@SESSION.transaction_isolation */;
    DECLARE v_own BOOLEAN DEFAULT FALSE;
    DECLARE v_callers_id BIGINT UNSIGNED DEFAULT LAST_INSERT_ID();
    DECLARE v_now DATETIME(3) DEFAULT UTC_TIMESTAMP(3);
    DECLARE v_now_ms BIGINT;
    DECLARE v_problem VARCHAR(256) CHARACTER SET utf8mb4;
    DECLARE v_max_ahead_ms BIGINT;
    DECLARE v_max_payload BIGINT;
    DECLARE v_max_timeout_ms BIGINT;
    DECLARE v_known BOOLEAN DEFAULT FALSE;
    DECLARE v_service_policy TEXT CHARACTER SET utf8mb4;
    DECLARE v_shards INT DEFAULT 1;
    DECLARE v_lanes INT DEFAULT 0;
    DECLARE v_retry BIGINT;
    DECLARE v_plain LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_time DATETIME(3);
    DECLARE v_lane INT;
    DECLARE v_shard INT;
    DECLARE v_id BIGINT;
    DECLARE v_round INT DEFAULT 0;
    DECLARE v_taken BOOLEAN;
    DECLARE v_inserted BOOLEAN DEFAULT FALSE;
    DECLARE v_trace_id VARCHAR(32) CHARACTER SET utf8mb4;
    DECLARE v_service_name VARCHAR(128) CHARACTER SET utf8mb4;
    DECLARE v_handler VARCHAR(128) CHARACTER SET utf8mb4;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        IF v_own THEN
            ROLLBACK;
        END IF;
        SET v_id = LAST_INSERT_ID(v_callers_id);
        RESIGNAL;
    END;

    IF v_isolation NOT IN ('READ-COMMITTED', 'REPEATABLE-READ') THEN
        SIGNAL SQLSTATE '0A000' SET MESSAGE_TEXT =
            'jobflow_submit: call it at READ COMMITTED or REPEATABLE READ, other levels lock too much';
    END IF;
    SET v_now_ms = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', v_now) DIV 1000;
    SELECT MAX(CASE name WHEN 'max_ahead_ms' THEN value END),
           MAX(CASE name WHEN 'max_payload' THEN value END),
           MAX(CASE name WHEN 'max_timeout_ms' THEN value END)
        INTO v_max_ahead_ms, v_max_payload, v_max_timeout_ms FROM job_submit_rule;
    SELECT TRUE, policy, shards, lanes INTO v_known, v_service_policy, v_shards, v_lanes
        FROM job_service WHERE name = p_service_name;
    SET v_retry = (SELECT value FROM job_submit_rule
        WHERE name = CONCAT('policy:', COALESCE(p_policy, v_service_policy, 'default')));
    IF v_retry IS NULL AND p_policy IS NULL THEN
        SET v_retry = (SELECT value FROM job_submit_rule WHERE name = 'policy:default');
    END IF;

    IF p_biz_uuid IS NULL OR OCTET_LENGTH(p_biz_uuid) NOT BETWEEN 1 AND 128
        OR p_biz_uuid REGEXP '[\\x00-\\x1f\\x7f-\\x9f\\x{2028}\\x{2029}]'
        OR p_biz_uuid REGEXP CONCAT('^[', c_space, ']|[', c_space, ']$') THEN
        SET v_problem = 'biz_uuid has to be 1 to 128 bytes without control characters and white space at '
            'its ends';
    ELSEIF p_service_name IS NULL OR OCTET_LENGTH(p_service_name) NOT BETWEEN 1 AND 128
        OR p_service_name REGEXP '[^A-Za-z0-9._-]' OR p_service_name IN ('.', '..') THEN
        SET v_problem = 'service_name has to be 1 to 128 characters out of A-Z a-z 0-9 . _ -';
    ELSEIF p_handler IS NULL OR OCTET_LENGTH(p_handler) NOT BETWEEN 1 AND 128
        OR p_handler REGEXP '[^A-Za-z0-9._-]' OR p_handler IN ('.', '..') THEN
        SET v_problem = 'handler has to be 1 to 128 characters out of A-Z a-z 0-9 . _ -';
    ELSEIF OCTET_LENGTH(p_payload) > v_max_payload THEN
        SET v_problem = CONCAT('payload has ', OCTET_LENGTH(p_payload), ' bytes, at most ', v_max_payload,
            ' are taken');
    ELSEIF NOT JSON_VALID(p_payload) THEN
        SET v_problem = 'payload has to be JSON, at most 31 levels deep';
    ELSEIF p_execute_time_ms IS NOT NULL AND p_delay_ms IS NOT NULL THEN
        SET v_problem = 'delay_ms and execute_time_ms exclude each other';
    ELSEIF p_delay_ms NOT BETWEEN 0 AND v_max_ahead_ms THEN
        SET v_problem = CONCAT('delay_ms has to be from 0 to ', v_max_ahead_ms);
    ELSEIF p_execute_time_ms > v_now_ms + v_max_ahead_ms THEN
        SET v_problem = CONCAT('execute_time_ms lies further ahead than the ', v_max_ahead_ms,
            ' ms allowed');
    ELSEIF p_priority NOT BETWEEN 0 AND 9 THEN
        SET v_problem = 'priority has to be from 0 to 9';
    ELSEIF p_max_retry NOT BETWEEN 0 AND 1000 THEN
        SET v_problem = 'max_retry has to be from 0 to 1000';
    ELSEIF p_policy IS NOT NULL AND v_retry IS NULL THEN
        SET v_problem = CONCAT('policy "', LEFT(p_policy, 64), '" is not a retry policy');
    ELSEIF p_timeout_ms NOT BETWEEN 1 AND v_max_timeout_ms THEN
        SET v_problem = CONCAT('timeout_ms has to be from 1 to ', v_max_timeout_ms);
    ELSE
        -- What JSON_VALID lets pass: numbers that break off, escapes that there are not, U+0000. Without
        -- the strings only numbers have such characters; without the other escapes each backslash
        -- begins a \u.
        SET v_plain = REGEXP_REPLACE(p_payload, '"[^"\\\\]*+(?:\\\\.[^"\\\\]*+)*+"', '""');
        IF v_plain REGEXP '-(?![0-9])|[.](?![0-9])|[0-9][eE](?![+-]?[0-9])' THEN
            SET v_problem = 'payload has to be JSON: a number breaks off';
        ELSEIF INSTR(p_payload, '\\') > 0 THEN
            SET v_plain = REGEXP_REPLACE(p_payload, '\\\\["\\\\/bfnrt]', '');
            IF v_plain REGEXP '\\\\(?!u[0-9A-Fa-f]{4})|\\\\u0000' OR REGEXP_REPLACE(v_plain,
                '\\\\u[dD][89abAB]..\\\\u[dD][c-fC-F]..', '') REGEXP '\\\\u[dD][89a-fA-F]' THEN
                SET v_problem = 'payload holds U+0000, half of a surrogate pair or an escape that JSON '
                    'has not';
            END IF;
        END IF;
    END IF;
    IF v_problem IS NOT NULL THEN
        SET v_problem = LEFT(CONCAT('jobflow_submit: ', v_problem), 128);
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = v_problem;
    END IF;

    SET v_time = TIMESTAMPADD(MICROSECOND, 1000 * GREATEST(v_now_ms,
        COALESCE(p_execute_time_ms, v_now_ms + p_delay_ms, v_now_ms)), '1970-01-01 00:00:00.000');
    SET v_lane = 9 - COALESCE(p_priority, 5);
    SET v_shard = CRC32(p_biz_uuid) MOD v_shards;

    -- Without a transaction of the caller's there is one for this call. Only a transaction keeps a
    -- savepoint.
    BEGIN
        DECLARE EXIT HANDLER FOR 1305 SET v_own = TRUE;
        SAVEPOINT jobflow_submit_any;
        RELEASE SAVEPOINT jobflow_submit_any;
    END;
    IF v_own THEN
        START TRANSACTION;
    END IF;

    -- A repeat is seen by plain reads: a failed insert would lock the key against the node that
    -- finishes its task.
    WHILE v_trace_id IS NULL AND NOT v_inserted AND v_round < 5 DO
        SET v_round = v_round + 1;
        SELECT trace_id, service_name, handler INTO v_trace_id, v_service_name, v_handler
            FROM job_delay_task WHERE biz_uuid = p_biz_uuid;
        IF v_trace_id IS NULL THEN
            SELECT trace_id, service_name, handler INTO v_trace_id, v_service_name, v_handler
                FROM job_delay_task_history WHERE biz_uuid = p_biz_uuid;
        END IF;
        IF v_trace_id IS NULL THEN
            SAVEPOINT jobflow_submit_task;
            INSERT INTO job_id_step () VALUES ();
            SET v_id = 1000 * LAST_INSERT_ID();
            ROLLBACK TO SAVEPOINT jobflow_submit_task;
            SET p_trace_id = CONCAT(LPAD(LOWER(HEX(v_id)), 16, '0'),
                LEFT(MD5(CONCAT(UUID(), RAND(), v_id)), 16));
            SET v_taken = FALSE;
            BEGIN
                DECLARE CONTINUE HANDLER FOR 1062 SET v_taken = TRUE;
                INSERT INTO job_delay_task (id, trace_id, biz_uuid, service_name, handler, shard, lane,
                    priority, status, execute_time, next_attempt_time, max_retry, policy, timeout_ms,
                    payload_json, created_at, updated_at)
                VALUES (v_id, p_trace_id, p_biz_uuid, p_service_name, p_handler, v_shard, v_lane,
                    9 - v_lane, 'PENDING', v_time, v_time, COALESCE(p_max_retry, v_retry), p_policy,
                    p_timeout_ms, p_payload, v_now, v_now);
                -- Was the key's task finished before? READ COMMITTED sees that in a second statement. A
                -- snapshot does not: there a row that goes again shows whether the key is free.
                IF NOT v_taken AND v_isolation = 'REPEATABLE-READ' THEN
                    SAVEPOINT jobflow_submit_history;
                    INSERT INTO job_delay_task_history (id, trace_id, biz_uuid, service_name, handler,
                        shard, lane, priority, status, execute_time, attempt, retry_count, max_retry,
                        snooze_count, created_at, updated_at, finished_at)
                    VALUES (v_id, '', p_biz_uuid, '', '', 0, 0, 0, '', v_now, 0, 0, 0, 0, v_now, v_now,
                        v_now);
                    ROLLBACK TO SAVEPOINT jobflow_submit_history;
                ELSEIF NOT v_taken THEN
                    SET v_taken = EXISTS (SELECT 1 FROM job_delay_task_history
                        WHERE biz_uuid = p_biz_uuid);
                END IF;
            END;
            IF v_taken THEN
                ROLLBACK TO SAVEPOINT jobflow_submit_task;
            ELSE
                SET v_inserted = TRUE;
            END IF;
            RELEASE SAVEPOINT jobflow_submit_task;
        END IF;
    END WHILE;

    IF v_inserted THEN
        IF NOT v_known OR v_lanes & (1 << v_lane) = 0 THEN
            INSERT INTO job_service_seen (service_name, lanes, shards)
                VALUES (p_service_name, 1 << v_lane, v_shard + 1);
        END IF;
    ELSEIF v_trace_id IS NULL THEN
        SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'jobflow_submit: this biz_uuid was taken after the '
            'transaction''s snapshot: roll back and repeat it';
    ELSEIF v_service_name <> p_service_name OR v_handler <> p_handler THEN
        SET v_problem = LEFT(CONCAT('jobflow_submit: biz_uuid belongs to a task of service ',
            v_service_name, ', handler ', v_handler), 128);
        SIGNAL SQLSTATE '23000' SET MESSAGE_TEXT = v_problem, MYSQL_ERRNO = 1062;
    ELSE
        SET p_trace_id = v_trace_id;
    END IF;
    SET p_duplicate = NOT v_inserted;
    SET v_id = LAST_INSERT_ID(v_callers_id);
    IF v_own THEN
        COMMIT;
    END IF;
END;
