-- Members of a cluster must agree on the function that tells who owns what.
ALTER TABLE job_node ADD COLUMN hash_version int NOT NULL DEFAULT 1;
