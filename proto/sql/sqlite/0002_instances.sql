-- The running processes of services, as they register themselves: live until expires_at.
CREATE TABLE job_instance (
    service_name TEXT NOT NULL,
    instance TEXT NOT NULL,
    base_url TEXT NOT NULL,
    ttl_ms INTEGER NOT NULL,
    registered_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (service_name, instance)
) WITHOUT ROWID;
