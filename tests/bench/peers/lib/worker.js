// SPDX-License-Identifier: Apache-2.0
"use strict";

// One worker process of a peer. It reports its handlers to the producer, and ends with it.
//   node worker.js PEER http|no-op

const { now } = require("./workers");

const REPORT_MS = 2;
const CONNECTIONS = 64; // to the receiver

const [file, mode] = process.argv.slice(2);
let report; // undefined: nothing to tell

function tally() {
  if (!report) {
    report = { begun: 0, ended: 0, first: 0, last: 0, late: [] };
    setTimeout(() => {
      process.send(report);
      report = undefined;
    }, REPORT_MS);
  }
  return report;
}

function begin(payload) {
  const at = now();
  const told = tally();
  const due = Number(payload.orderId.slice(0, 13));
  told.begun++;
  told.first ||= at;
  told.last = at;
  if (due) {
    told.late.push(at - due);
  }
}

function doNothing(payload) {
  begin(payload);
  tally().ended++;
}

// undici is what fetch() of Node.js is made of; its pool has no overhead but the request's.
function poster() {
  const { Pool } = require("undici");
  const url = new URL(process.env.RECEIVER_URL);
  const pool = new Pool(url.origin, { connections: CONNECTIONS });
  const request = {
    method: "POST",
    path: url.pathname,
    headers: { "content-type": "application/json" },
  };
  const post = async (payload) => {
    begin(payload);
    const answer = await pool.request({ ...request, body: JSON.stringify(payload) });
    await answer.body.dump();
    if (answer.statusCode !== 200) {
      throw new Error(`the receiver answered ${answer.statusCode}`);
    }
    tally().ended++;
  };
  return (payload) => post(payload).catch(fail); // a retry would not be what is measured
}

function fail(error) {
  process.send({ failed: error.message || error.code }, () => process.exit(1));
}

process.on("disconnect", () => process.exit(0));
process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);
require(file)
  .work(mode === "http" ? poster() : doNothing)
  .then(() => process.send({ ready: true }));
