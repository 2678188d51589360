-- The running processes of services, as they register themselves: live until expires_at. There is no
-- index on that: rows are deleted by the primary key alone, so that a purge and heartbeats never lock
-- the same rows in two orders.
CREATE TABLE job_instance (
    service_name varchar(128) NOT NULL,
    instance varchar(128) NOT NULL,
    base_url text NOT NULL,
    ttl_ms int NOT NULL,
    registered_at datetime(3) NOT NULL,
    expires_at datetime(3) NOT NULL,
    PRIMARY KEY (service_name, instance)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
