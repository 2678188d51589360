// SPDX-License-Identifier: Apache-2.0
"use strict";

// BullMQ (https://docs.bullmq.io) on a Redis that syncs its log before it answers. Marked "docs" is
// what its documentation advises.

const Redis = require("ioredis");
const { Queue, Worker } = require("bullmq");

const QUEUE = "order";

function connection() {
  // docs: null for workers
  const redis = new Redis(process.env.REDIS_URL, { maxRetriesPerRequest: null });
  redis.on("error", (error) => {
    throw error;
  });
  return redis;
}

async function create() {
  const redis = connection();
  await redis.flushdb();
  await redis.quit();
}

async function open() {
  const queue = new Queue(QUEUE, {
    connection: connection(),
    defaultJobOptions: { removeOnComplete: true }, // docs: to keep memory small
  });
  await queue.waitUntilReady();
  // A job is due at `timestamp` plus `delay`.
  const options = (due) => {
    const timestamp = Date.now();
    return due ? { timestamp, delay: Math.max(0, due.getTime() - timestamp) } : {};
  };
  return {
    one: ({ payload, due }) => queue.add("order", payload, options(due)),
    many: (jobs) =>
      queue.addBulk(
        jobs.map(({ payload, due }) => ({ name: "order", data: payload, opts: options(due) })),
      ),
    left: () => queue.getJobCountByTypes("active", "delayed", "prioritized", "wait"),
    settle: async () => {},
  };
}

async function work(handle) {
  const worker = new Worker(QUEUE, async (job) => handle(job.data), {
    connection: connection(),
    concurrency: 200, // docs: 100 to 300
  });
  worker.on("error", (error) => {
    throw error;
  });
  await worker.waitUntilReady();
}

module.exports = { batchSize: 500, producers: 2, create, open, work };
