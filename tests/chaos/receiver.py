#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The business services of a chaos run, as a process of their own:
receiver.py PORT LOG TIMEOUT NODE_PORT…

The path is /<node>/<service>/<handler>: each node calls under its own name. A line on standard
input sets how it behaves from then on and is answered with "done":

    ok       as the handlers say
    refuse   nobody listens, connections are reset
    hang     requests are taken and never answered
    late     answers come half a second after the attempt's time-out
    end      the log is complete; the process ends

The log has one JSON array a line: ["r", time, node, service, handler, trace, attempt, payload's
hash, number] for a request that is there whole, ["a", time, number, status] for its answer, and
["s", time, milliseconds] when this process itself was kept waiting by the machine. Times are
wall-clock milliseconds.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import json
import random
import signal
import socket
import sys

import stalls
from stalls import now_ms

HOST = "127.0.0.1"
LATE = 0.5
FLUSH = 0.05


def hash_of(payload):
    return hashlib.sha1(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:16]


class Services:
    def __init__(self, port, log, late, node_ports):
        self.port = port
        self.log = log
        self.late = late
        self.node_ports = node_ports
        self.mode = "ok"
        self.listener = None
        self.writers = set()
        self.results = set()
        self.n = 0

    def note(self, *fields):
        self.log.write(json.dumps(fields) + "\n")

    async def listen(self):
        if not self.listener:
            self.listener = await asyncio.start_server(self.serve, HOST, self.port, backlog=4096)

    async def set_mode(self, mode):
        before, self.mode = self.mode, mode
        if mode == "refuse":
            self.listener.close()
            self.listener = None
        else:
            await self.listen()
        if mode == "refuse" or before == "hang":
            for writer in list(self.writers):
                writer.transport.abort()

    async def serve(self, reader, writer):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.writers.add(writer)
        try:
            while await self.one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def one(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        _, node, service, handler = lines[0].split()[1].split("/")
        self.n += 1
        number = self.n
        attempt = int(headers["x-jobflow-attempt"])
        trace = headers["x-trace-id"]
        self.note("r", now_ms(), node, service, handler, trace, attempt, hash_of(body["payload"]),
                  number)
        mode = self.mode
        status = await self.handle(mode, handler, trace, attempt)
        if mode == "hang":
            await asyncio.sleep(60)
            return False
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\n"
                     "Content-Type: application/json\r\n\r\n{}".encode())
        await writer.drain()
        self.note("a", now_ms(), number, status)
        return True

    async def handle(self, mode, handler, trace, attempt):
        if mode == "late":
            await asyncio.sleep(self.late)
        elif handler == "slow":
            await asyncio.sleep(0.2 + 0.6 * random.random())
        if handler == "doomed" or (handler == "first" and attempt == 1):
            return 500
        if handler == "later":
            task = asyncio.ensure_future(self.result(trace, attempt))
            self.results.add(task)
            task.add_done_callback(self.results.discard)
            return 202
        return 200

    async def result(self, trace, attempt):
        """Some time after 202; asks node after node until one has an answer."""
        await asyncio.sleep(0.5 * random.random())
        request = (f"POST /api/attempts/{trace}/{attempt}/result HTTP/1.1\r\nHost: {HOST}\r\n"
                   "Content-Type: application/json\r\nConnection: close\r\n"
                   'Content-Length: 16\r\n\r\n{"success":true}').encode()
        for n in range(20):
            port = self.node_ports[(n + attempt) % len(self.node_ports)]
            with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                status = await asyncio.wait_for(self.post(port, request), 3)
                if status in (200, 404, 409):
                    return
            await asyncio.sleep(0.1)

    @staticmethod
    async def post(port, request):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(request)
            return int((await reader.readuntil(b"\r\n")).split()[1])
        finally:
            writer.close()

    async def flush(self):
        while True:
            await asyncio.sleep(FLUSH)
            self.log.flush()


async def run(port, log, late, node_ports):
    services = Services(port, log, late, node_ports)
    await services.listen()
    besides = [asyncio.ensure_future(work) for work in (
        services.flush(), stalls.watch(lambda *stall: services.note("s", *stall)))]
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print("done", flush=True)
    while (mode := (await commands.readline()).decode().strip()) not in ("end", ""):
        await services.set_mode(mode)
        print("done", flush=True)
    for work in besides:
        work.cancel()
    log.close()
    print("done", flush=True)


def main():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends when its parent does
    port, log_file, timeout = sys.argv[1:4]
    with open(log_file, "w", encoding="ascii") as log:
        asyncio.run(run(int(port), log, float(timeout) + LATE, list(map(int, sys.argv[4:]))))


if __name__ == "__main__":
    main()
