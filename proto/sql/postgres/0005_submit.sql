-- Submission inside the business transaction: jobflow_submit(). docs/sql-submission.md is its manual.
--
-- The nodes write their limits and defaults here when they start: the function goes by the same ones as
-- the HTTP interface.
CREATE TABLE job_submit_rule (
    name text COLLATE "C" PRIMARY KEY,
    value bigint NOT NULL
);
INSERT INTO job_submit_rule (name, value) VALUES
    ('max_ahead_ms', 315360000000), ('max_payload', 65536), ('max_timeout_ms', 86400000),
    ('policy:default', 10);

-- Services, lanes and shards that the function used and job_service did not name. Writing them there
-- would lock the service's row until the business transaction ends; here each has a row of its own. The
-- nodes carry them over. A row with watch_until stands for a service that was deleted: a transaction
-- that was open then may still bring a task of it.
CREATE TABLE job_service_seen (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service_name text COLLATE "C" NOT NULL,
    lanes int NOT NULL,
    shards int NOT NULL,
    watch_until timestamptz
);

CREATE FUNCTION jobflow_submit(
    biz_uuid text,
    service_name text,
    handler text,
    payload text DEFAULT NULL,
    execute_time timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    priority int DEFAULT NULL,
    max_retry int DEFAULT NULL,
    policy text DEFAULT NULL,
    timeout interval DEFAULT NULL,
    OUT trace_id text,
    OUT duplicate boolean
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $body$
#variable_conflict use_column
DECLARE
    c_space CONSTANT text := ' \t-\r\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000';
    v_snapshot CONSTANT boolean :=
        current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
    v_now CONSTANT timestamptz := date_trunc('milliseconds', clock_timestamp());
    v_field text;
    v_problem text;
    v_hint text;
    v_max_ahead interval;
    v_max_payload bigint;
    v_max_timeout interval;
    v_service record;
    v_retry bigint;
    v_plain text;
    v_time timestamptz;
    v_lane int;
    v_shard int;
    v_id bigint;
    v_free boolean;
    v_found text; -- the trace id of the task that has the key
    v_found_service text;
    v_found_handler text;
BEGIN
    -- The locks on the tables read here end with the exception, not with the business transaction: a
    -- node that deletes a service waits for them, and holds up all submissions while it does.
    BEGIN
        SELECT justify_hours(max(r.value) FILTER (WHERE r.name = 'max_ahead_ms')
                   * interval '1 millisecond'),
               max(r.value) FILTER (WHERE r.name = 'max_payload'),
               justify_hours(max(r.value) FILTER (WHERE r.name = 'max_timeout_ms')
                   * interval '1 millisecond')
            INTO v_max_ahead, v_max_payload, v_max_timeout
            FROM job_submit_rule r WHERE r.name IN ('max_ahead_ms', 'max_payload', 'max_timeout_ms');
        SELECT s.name, s.policy, s.shards, s.lanes INTO v_service
            FROM job_service s WHERE s.name = jobflow_submit.service_name;
        SELECT r.value INTO v_retry FROM job_submit_rule r
            WHERE r.name = 'policy:' || coalesce(jobflow_submit.policy, v_service.policy, 'default');
        IF v_retry IS NULL AND jobflow_submit.policy IS NULL THEN
            SELECT r.value INTO v_retry FROM job_submit_rule r WHERE r.name = 'policy:default';
        END IF;
        PERFORM jobflow_submit.payload::json;
        RAISE EXCEPTION USING ERRCODE = 'JF000';
    EXCEPTION
        WHEN SQLSTATE 'JF000' THEN
            NULL;
        WHEN data_exception OR program_limit_exceeded THEN
            v_field := 'payload';
            v_problem := 'has to be JSON: ' || SQLERRM;
            v_hint := 'Give the text of one JSON value, such as {"orderId":"1001"}; NULL for none.';
    END;

    IF biz_uuid IS NULL OR octet_length(biz_uuid) NOT BETWEEN 1 AND 128
        OR biz_uuid ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]'
        OR biz_uuid ~ ('^[' || c_space || ']|[' || c_space || ']$') THEN
        v_field := 'biz_uuid';
        v_problem := 'has to be 1 to 128 bytes without control characters and without white space at '
            'its ends';
        v_hint := 'Give a prefix and the id of what the task is about, such as order-timeout/1001.';
    ELSIF service_name IS NULL OR service_name !~ '^[A-Za-z0-9._-]{1,128}$'
        OR service_name IN ('.', '..') THEN
        v_field := 'service_name';
        v_problem := 'has to be 1 to 128 characters out of A-Z a-z 0-9 . _ - and neither "." nor ".."';
        v_hint := 'Give the name under which the service is registered, such as orders.';
    ELSIF handler IS NULL OR handler !~ '^[A-Za-z0-9._-]{1,128}$' OR handler IN ('.', '..') THEN
        v_field := 'handler';
        v_problem := 'has to be 1 to 128 characters out of A-Z a-z 0-9 . _ - and neither "." nor ".."';
        v_hint := 'Give the last part of the handler''s URL, such as cancel-unpaid.';
    ELSIF octet_length(payload) > v_max_payload THEN
        v_field := 'payload';
        v_problem := format('has %s bytes, at most %s are taken', octet_length(payload), v_max_payload);
        v_hint := 'Put large things into an object store and pass a reference.';
    ELSIF v_field IS NULL AND strpos(payload, '\u') > 0 THEN
        -- Left to right, each escape but \u goes, so that no backslash is taken for another's.
        v_plain := lower(regexp_replace(payload, '\\[^u]', '', 'g'));
        IF v_plain ~ '\\u0000' OR regexp_replace(v_plain, '\\ud[89ab]..\\ud[c-f]..', '', 'g')
            ~ '\\ud[89a-f]' THEN
            v_field := 'payload';
            v_problem := 'holds U+0000 or half of a surrogate pair';
            v_hint := 'Leave U+0000 out, and write characters above U+FFFF as themselves or as a '
                'whole pair of escapes.';
        END IF;
    END IF;
    IF v_field IS NOT NULL THEN
        NULL;
    ELSIF execute_time IS NOT NULL AND delay IS NOT NULL THEN
        v_field := 'delay';
        v_problem := 'and execute_time exclude each other';
        v_hint := 'Give one of them, or none for now.';
    ELSIF delay < interval '0' OR delay > v_max_ahead THEN
        v_field := 'delay';
        v_problem := format('has to be from 0 to %s', v_max_ahead);
        v_hint := 'The limit is tasks.max_ahead of the nodes. For now leave it out.';
    ELSIF execute_time > v_now + v_max_ahead THEN
        v_field := 'execute_time';
        v_problem := format('lies further ahead than the %s allowed', v_max_ahead);
        v_hint := format('The latest is %s; the limit is tasks.max_ahead of the nodes.',
            v_now + v_max_ahead);
    ELSIF priority NOT BETWEEN 0 AND 9 THEN
        v_field := 'priority';
        v_problem := 'has to be from 0 to 9';
        v_hint := '9 is the most urgent, 5 what is taken when it is left out.';
    ELSIF max_retry NOT BETWEEN 0 AND 1000 THEN
        v_field := 'max_retry';
        v_problem := 'has to be from 0 to 1000';
        v_hint := '0 is one attempt and no more; left out, it is the policy''s.';
    ELSIF policy IS NOT NULL AND v_retry IS NULL THEN
        v_field := 'policy';
        v_problem := format('"%s" is not a retry policy', left(policy, 64));
        SELECT format('There are: %s (of the node that started last).',
            left(string_agg(substr(r.name, 8), ', ' ORDER BY r.name), 500))
            INTO v_hint FROM job_submit_rule r WHERE r.name LIKE 'policy:%';
    ELSIF timeout < interval '1 millisecond' OR timeout > v_max_timeout THEN
        v_field := 'timeout';
        v_problem := format('has to be from 1 ms to %s', v_max_timeout);
        v_hint := 'The limit is tasks.max_timeout of the nodes; left out, it is the service''s.';
    END IF;
    IF v_field IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', COLUMN = v_field,
            MESSAGE = format('jobflow_submit: %s %s', v_field, v_problem), HINT = v_hint;
    END IF;

    v_time := date_trunc('milliseconds', interval '999 microseconds' +
        greatest(v_now, coalesce(execute_time, v_now + delay, v_now)));
    v_lane := 9 - coalesce(priority, 5);
    v_shard := (hashtext(biz_uuid) & 2147483647) % coalesce(v_service.shards, 1);
    -- The first id of a block, of which the rest is left out: no node can have it.
    v_id := nextval('job_id_block');
    trace_id := lpad(to_hex(v_id), 16, '0') || left(md5(gen_random_uuid()::text), 16);
    duplicate := false;

    FOR v_round IN 1..5 LOOP
        INSERT INTO job_delay_task (id, trace_id, biz_uuid, service_name, handler, shard, lane,
            priority, status, execute_time, next_attempt_time, max_retry, policy, timeout_ms,
            payload_json, created_at, updated_at)
        VALUES (v_id, jobflow_submit.trace_id, jobflow_submit.biz_uuid, jobflow_submit.service_name,
            jobflow_submit.handler, v_shard, v_lane, 9 - v_lane, 'PENDING', v_time, v_time,
            coalesce(jobflow_submit.max_retry, v_retry), jobflow_submit.policy,
            floor(extract(epoch FROM jobflow_submit.timeout) * 1000), jobflow_submit.payload, v_now,
            v_now)
        ON CONFLICT (biz_uuid) DO NOTHING;
        IF FOUND THEN
            -- Was the key's task finished before? READ COMMITTED sees that in a second statement.
            -- A snapshot does not: there a row that goes again shows whether the key is free. Nothing
            -- is read for it, which SERIALIZABLE would take for a conflict with others' such rows.
            v_free := false;
            IF v_snapshot THEN BEGIN
                INSERT INTO job_delay_task_history (id, trace_id, biz_uuid, service_name, handler,
                    shard, lane, priority, status, execute_time, attempt, retry_count, max_retry,
                    snooze_count, created_at, updated_at, finished_at)
                VALUES (v_id, '', jobflow_submit.biz_uuid, '', '', 0, 0, 0, '', v_now, 0, 0, 0, 0,
                    v_now, v_now, v_now)
                ON CONFLICT (biz_uuid) DO NOTHING;
                v_free := FOUND;
                RAISE EXCEPTION USING ERRCODE = 'JF000';
            EXCEPTION WHEN SQLSTATE 'JF000' THEN
                NULL;
            END; END IF;
            IF NOT v_free THEN
                SELECT t.trace_id, t.service_name, t.handler
                    INTO v_found, v_found_service, v_found_handler
                    FROM job_delay_task_history t WHERE t.biz_uuid = jobflow_submit.biz_uuid;
            END IF;
            IF v_found IS NULL THEN
                IF v_service.name IS NULL OR v_service.lanes & (1 << v_lane) = 0 THEN
                    INSERT INTO job_service_seen (service_name, lanes, shards)
                        VALUES (jobflow_submit.service_name, 1 << v_lane, v_shard + 1);
                END IF;
                RETURN;
            END IF;
            DELETE FROM job_delay_task t WHERE t.id = v_id;
        ELSE
            SELECT t.trace_id, t.service_name, t.handler
                INTO v_found, v_found_service, v_found_handler
                FROM job_delay_task t WHERE t.biz_uuid = jobflow_submit.biz_uuid;
            IF NOT FOUND THEN
                SELECT t.trace_id, t.service_name, t.handler
                    INTO v_found, v_found_service, v_found_handler
                    FROM job_delay_task_history t WHERE t.biz_uuid = jobflow_submit.biz_uuid;
            END IF;
            CONTINUE WHEN NOT FOUND; -- it moved from one table to the other in between
        END IF;
        IF v_found_service <> service_name OR v_found_handler <> handler THEN
            RAISE EXCEPTION USING ERRCODE = 'unique_violation', COLUMN = 'biz_uuid',
                MESSAGE = format('jobflow_submit: biz_uuid "%s" belongs to a task of service %s, '
                    'handler %s', biz_uuid, v_found_service, v_found_handler),
                HINT = 'One key is one task, across all services: give keys a prefix.';
        END IF;
        trace_id := v_found;
        duplicate := true;
        RETURN;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure', COLUMN = 'biz_uuid',
        MESSAGE = 'jobflow_submit: the task of this biz_uuid was changing all the time',
        HINT = 'Roll back and repeat the transaction.';
END
$body$;

-- It runs with its owner's rights, so that business programs need none on the tables: on these names
-- only, whatever the caller's search path says.
DO $body$
BEGIN
    EXECUTE format('ALTER FUNCTION jobflow_submit SET search_path = pg_catalog, %I, pg_temp',
        current_schema());
END
$body$;
ALTER FUNCTION jobflow_submit SET standard_conforming_strings = on;
REVOKE ALL ON FUNCTION jobflow_submit FROM PUBLIC;
COMMENT ON FUNCTION jobflow_submit IS 'Submits a task to JobFlow within the current transaction';
