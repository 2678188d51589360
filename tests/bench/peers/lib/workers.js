// SPDX-License-Identifier: Apache-2.0
"use strict";

// The worker processes of a peer, seen from the producer.

const path = require("path");
const { fork } = require("child_process");

// Wall-clock milliseconds with their fraction, comparable between processes.
function now() {
  return performance.timeOrigin + performance.now();
}

function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

class Workers {
  // With handlers that do nothing the database fills its core before one process fills another; a
  // call in each costs the process more than its job costs the database.
  constructor(file, http) {
    this.command = [file, http ? "http" : "no-op"];
    this.processes = http ? 2 : 1;
    this.forget();
  }

  forget() {
    this.begun = 0; // handlers
    this.ended = 0;
    this.first = Infinity; // when the first began
    this.last = 0; // when the last began
    this.late = []; // milliseconds of each
  }

  // Until all are at work.
  start() {
    return Promise.all(Array.from({ length: this.processes }, () => this.startOne()));
  }

  startOne() {
    const child = fork(path.join(__dirname, "worker.js"), this.command, {
      stdio: ["ignore", "ignore", "ignore", "ipc"],
    });
    // Thrown to the top: nothing can be measured any more.
    child.on("exit", (code) => {
      throw new Error(`a worker has ended with ${code}`);
    });
    return new Promise((resolve) => {
      child.on("message", (report) => {
        if (report.failed) {
          throw new Error(report.failed);
        }
        if (report.ready) {
          resolve();
        } else {
          this.add(report);
        }
      });
    });
  }

  add(report) {
    this.begun += report.begun;
    this.ended += report.ended;
    this.first = Math.min(this.first, report.first || Infinity);
    this.last = Math.max(this.last, report.last);
    for (const late of report.late) {
      this.late.push(late);
    }
    this.wake?.();
  }

  async handled(n) {
    while (this.ended < n) {
      await new Promise((resolve) => (this.wake = resolve));
    }
  }
}

module.exports = { now, sleep, Workers };
