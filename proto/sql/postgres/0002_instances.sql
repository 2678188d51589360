-- The running processes of services, as they register themselves: live until expires_at. No index
-- names a column that a heartbeat changes, and half of each page is left free, so that heartbeats are
-- HOT updates.
CREATE TABLE job_instance (
    service_name text COLLATE "C" NOT NULL,
    instance text COLLATE "C" NOT NULL,
    base_url text COLLATE "C" NOT NULL,
    ttl_ms int NOT NULL,
    registered_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (service_name, instance)
) WITH (fillfactor = 50);
