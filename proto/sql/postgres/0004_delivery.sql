-- How due tasks reach a service: push, batch or pull. The two figures are 0 where it is not batch.
ALTER TABLE job_service ADD COLUMN delivery text COLLATE "C" NOT NULL DEFAULT 'push';
ALTER TABLE job_service ADD COLUMN batch_size int NOT NULL DEFAULT 0;
ALTER TABLE job_service ADD COLUMN batch_wait_ms int NOT NULL DEFAULT 0;
