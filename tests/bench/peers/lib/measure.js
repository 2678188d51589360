// SPDX-License-Identifier: Apache-2.0
"use strict";

// Measures a job queue for Node.js, which is a module PEER with
//   batchSize   jobs in one call of many()
//   producers   batches under way at once where nothing else runs
//   create()    makes or empties its tables
//   open()      gives the producer {one(job), many(jobs), left(), settle()}: store one job, store
//               many, tell whether any is unfinished, do what autovacuum has done to rows stored
//               some time ago. A job is {payload, due}; due, a Date, is undefined for "now"
//   work(handle)  starts workers in this process; handle(payload) may return a promise
// This process is the producer, the workers have processes of their own. Prints one line of JSON.
//   node measure.js PEER MEASURE ARGS...

const path = require("path");
const { now, sleep, Workers } = require("./workers");

const TIME_LIMIT_MS = 120_000;
const DELAY_MS = 1_000; // of a job in "lateness"
const BURST_LEAD_MS = 3_000; // from the last enqueue of a burst to its due time, about
const SINGLES_AT_ONCE = 64;
const WARM_UP_JOBS = 500;
const UNDER_WAY_MAX = 32; // calls of many() in "lateness"

// The id carries the due time, so that a handler needs nothing else to know how late it is.
function job(i, due) {
  const ms = String(due ? due.getTime() : 0).padStart(13, "0");
  const orderId = ms + String(i).padStart(7, "0");
  return { payload: { orderId, amount: 12999, currency: "EUR", reason: "payment time-out" }, due };
}

function jobs(from, to, due) {
  const made = [];
  for (let i = from; i <= to; i++) {
    made.push(job(i, due));
  }
  return made;
}

function perSecond(n, ms) {
  return { n, per_second: Math.round((n * 1000) / ms) };
}

function tenths(ms) {
  return Math.round(ms * 10) / 10;
}

class Bench {
  constructor(file, http) {
    this.peer = require(file);
    this.workers = new Workers(file, http);
  }

  async open() {
    await this.peer.create();
    this.queue = await this.peer.open();
  }

  // Jobs 1 to n in batches, `producers` of them under way.
  async enqueueAll(n, producers, due) {
    const size = this.peer.batchSize;
    let from = 1;
    const produce = async () => {
      while (from <= n) {
        const first = from;
        from += size;
        await this.queue.many(jobs(first, Math.min(n, first + size - 1), due));
      }
    };
    await Promise.all(Array.from({ length: producers }, produce));
  }

  // Puts n jobs through and forgets them; gives the milliseconds that storing them took.
  async warmUp(n, due) {
    const started = now();
    await this.queue.many(jobs(1, n, due));
    const took = now() - started;
    await this.finish(n);
    this.workers.forget();
    return took;
  }

  // Until n handlers have run and their completion is stored.
  async finish(n) {
    await this.workers.handled(n);
    while (await this.queue.left()) {
      await sleep(1);
    }
    if (this.workers.begun !== n) {
      throw new Error(`${this.workers.begun} handlers ran for ${n} jobs`);
    }
  }
}

async function enqueueSingle(bench, n) {
  let next = 1;
  const produce = async () => {
    while (next <= n) {
      await bench.queue.one(job(next++));
    }
  };
  const started = now();
  await Promise.all(Array.from({ length: SINGLES_AT_ONCE }, produce));
  return perSecond(n, now() - started);
}

async function enqueueBatch(bench, n) {
  const started = now();
  await bench.enqueueAll(n, bench.peer.producers);
  return perSecond(n, now() - started);
}

async function lifecycle(bench, n) {
  await bench.workers.start();
  await bench.warmUp(WARM_UP_JOBS);
  const started = now();
  await bench.enqueueAll(n, 1);
  await bench.finish(n);
  return perSecond(n, now() - started);
}

async function drain(bench, n) {
  await bench.enqueueAll(n, bench.peer.producers);
  await bench.queue.settle();
  await bench.workers.start();
  await bench.finish(n);
  return perSecond(n, now() - bench.workers.first);
}

// The warm-up sees to it that whatever moves delayed jobs is running.
async function lateness(bench, rate, seconds) {
  const n = rate * seconds;
  await bench.workers.start();
  await bench.warmUp(1, new Date(Date.now() + DELAY_MS));
  const underWay = new Set();
  const started = now();
  for (let sent = 0; sent < n; await sleep(1)) {
    const to = Math.min(n, Math.floor(((now() - started) * rate) / 1000));
    if (to === sent || underWay.size >= UNDER_WAY_MAX) {
      continue;
    }
    const call = bench.queue
      .many(jobs(sent + 1, to, new Date(Date.now() + DELAY_MS)))
      .finally(() => underWay.delete(call));
    underWay.add(call);
    sent = to;
  }
  await Promise.all(underWay);
  const took = now() - started;
  await bench.finish(n);
  const late = bench.workers.late.sort((a, b) => a - b);
  const at = (part) => tenths(late[Math.ceil(part * late.length) - 1]);
  return { ...perSecond(n, took), p50_ms: at(0.5), p99_ms: at(0.99), p999_ms: at(0.999),
    max_ms: at(1) };
}

async function burst(bench, n) {
  await bench.workers.start();
  const stored = await bench.warmUp(WARM_UP_JOBS, new Date(Date.now() + DELAY_MS));
  const due = new Date(Math.ceil(Date.now() + BURST_LEAD_MS + (stored * n) / WARM_UP_JOBS));
  await bench.enqueueAll(n, bench.peer.producers, due);
  await bench.queue.settle();
  if (Date.now() > due.getTime()) {
    throw new Error("the jobs were due before all of them were stored");
  }
  await bench.finish(n);
  return { n, all_ms: tenths(bench.workers.last - due.getTime()) };
}

const MEASURES = {
  enqueue_single: { run: enqueueSingle, args: 1 },
  enqueue_batch: { run: enqueueBatch, args: 1 },
  lifecycle: { run: lifecycle, args: 1 },
  lifecycle_http: { run: lifecycle, args: 1, http: true },
  drain: { run: drain, args: 1 },
  lateness: { run: lateness, args: 2 },
  burst: { run: burst, args: 1 },
  burst_http: { run: burst, args: 1, http: true },
};

async function main(file, name, ...words) {
  const measure = MEASURES[name];
  if (!measure || words.length !== measure.args) {
    throw new Error(`no such measure: ${name} ${words.join(" ")}`);
  }
  const args = words.map(Number);
  if (!args.every((n) => Number.isInteger(n) && n >= 1 && n <= 9_999_999)) {
    throw new Error(`${name}: expected numbers from 1 to 9,999,999, not ${words.join(" ")}`);
  }
  if (measure.http && !process.env.RECEIVER_URL) {
    throw new Error("RECEIVER_URL is not set");
  }
  const bench = new Bench(path.resolve(file), Boolean(measure.http));
  await bench.open();
  const figures = await measure.run(bench, ...args);
  process.stdout.write(JSON.stringify({ measure: name, ...figures }) + "\n");
}

// Ends this process and, since their channel closes, the workers.
function end(error) {
  if (error) {
    const text = (error.message || error.code || String(error)).replace(/\s+/g, " ");
    process.stderr.write(`${path.basename(path.dirname(process.argv[2]))}: ${text}\n`);
  }
  process.exit(error ? 1 : 0);
}

setTimeout(() => end("not within 120 s"), TIME_LIMIT_MS);
process.on("uncaughtException", end);
process.on("unhandledRejection", end);
main(...process.argv.slice(2)).then(() => end(), end);
