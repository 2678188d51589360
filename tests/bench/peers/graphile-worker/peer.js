// SPDX-License-Identifier: Apache-2.0
"use strict";

// Graphile Worker (https://worker.graphile.org). Marked "docs" is what its page on performance or
// its own performance test sets.

const { Pool } = require("pg");
const { Logger, makeWorkerUtils, run, runMigrations } = require("graphile-worker");

const connectionString = process.env.DATABASE_URL;

function preset(more) {
  return {
    worker: {
      connectionString,
      maxPoolSize: 25, // docs
      logger: new Logger(() => () => {}), // docs: its performance test logs nothing either
      ...more,
    },
  };
}

async function create() {
  const pool = new Pool({ connectionString, max: 1 });
  await pool.query("DROP SCHEMA IF EXISTS graphile_worker CASCADE");
  await pool.end();
  await runMigrations({ preset: preset() });
}

async function open() {
  const utils = await makeWorkerUtils({ preset: preset() });
  const query = (sql) => utils.withPgClient((client) => client.query(sql));
  return {
    one: (job) => utils.addJob("order", job.payload, { runAt: job.due }),
    many: (jobs) =>
      utils.addJobs(
        jobs.map(({ payload, due }) => ({ identifier: "order", payload, runAt: due })),
      ),
    // A job that is done is deleted.
    left: async () => {
      const found = await query(
        "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs) AS any",
      );
      return found.rows[0].any;
    },
    settle: () => query("VACUUM (ANALYZE) graphile_worker._private_jobs"),
  };
}

async function work(handle) {
  await run({
    preset: preset({
      concurrentJobs: 24, // docs
      localQueue: { size: 500, refetchDelay: { durationMs: 10 } }, // docs
      completeJobBatchDelay: 0, // docs
      failJobBatchDelay: 0, // docs
      pollInterval: 100, // polling alone finds delayed jobs; the default is 2,000
    }),
    noHandleSignals: true,
    taskList: { order: handle },
  });
}

module.exports = { batchSize: 500, producers: 2, create, open, work };
