// SPDX-License-Identifier: Apache-2.0
"use strict";

// pg-boss (https://pgboss.io). Marked "docs" is what its documentation offers for throughput or
// latency.

const { Pool } = require("pg");
const { PgBoss } = require("pg-boss");

const QUEUE = "order";
const BATCH = 500;
const connectionString = process.env.DATABASE_URL;

function boss(more) {
  const made = new PgBoss({
    connectionString,
    schedule: false, // no cron here
    supervise: false, // its maintenance deletes what is days old
    ...more,
  });
  made.on("error", (error) => {
    throw error;
  });
  return made.start();
}

async function create() {
  const pool = new Pool({ connectionString, max: 1 });
  await pool.query("DROP SCHEMA IF EXISTS pgboss CASCADE");
  await pool.end();
  const created = await boss();
  await created.createQueue(QUEUE, {
    partition: true, // docs: a table of its own for a large queue
    notify: true, // docs: workers are woken by new jobs
  });
  await created.stop({ graceful: false });
}

async function open() {
  const opened = await boss();
  const query = (sql, values) => opened.getDb().executeSql(sql, values);
  return {
    one: (job) => opened.send(QUEUE, job.payload, { startAfter: job.due }),
    many: (jobs) =>
      opened.insert(QUEUE, jobs.map(({ payload, due }) => ({ data: payload, startAfter: due }))),
    left: async () => {
      const found = await query(
        "SELECT EXISTS (SELECT FROM pgboss.job WHERE name = $1 AND state < 'completed') AS any",
        [QUEUE],
      );
      return found.rows[0].any;
    },
    settle: () => query("VACUUM (ANALYZE) pgboss.job"),
  };
}

async function work(handle) {
  const worker = await boss({ useListenNotify: true }); // docs
  const options = {
    batchSize: BATCH, // docs: jobs in one fetch
    localConcurrency: 2, // docs: workers in this process
    pollingIntervalSeconds: 0.5, // docs: the least
    notifyPollingIntervalSeconds: 0.5, // docs: the least; delayed jobs are found by polling alone
    burstWhenBatchFull: true, // docs: the next fetch at once
  };
  await worker.work(QUEUE, options, (jobs) => Promise.all(jobs.map((job) => handle(job.data))));
}

module.exports = { batchSize: BATCH, producers: 2, create, open, work };
