# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that breaks connections the way networks and servers do.

    proxy = Proxy(server_port, PostgresWire)      # RawWire for anything else
    proxy.cut()                                   # RST on every connection
    proxy.refuse() / hole() / stall()             # until proxy.heal()
    proxy.delay_ms = 200                          # each way
    rule = proxy.add(Cut(b"INSERT INTO t", every=4, limit=30))

A `Cut` watches for a client's message that contains given bytes. By default it lets the message
through, waits for the server's answer that ends the transaction, and resets the client's connection
instead of forwarding it: the client never learns that it was committed. With `before` it acts
instead of forwarding the first message from then on that contains those bytes. With `silent` it
resets nothing: the connection is dead, and neither side is told.

A proxy runs on a thread of its own; its methods may be called from any thread and return when the
change is in force.
"""

import asyncio
import contextlib
import re
import socket
import struct
import threading
import time

HOST = "127.0.0.1"
CHUNK = 65536
QUEUED_CHUNKS = 64


# ---- What is said -------------------------------------------------------------------------------

class RawWire:
    """Any protocol: a message is what arrives together, and so is an answer."""

    def client(self, data):
        """Takes bytes from the client: the messages that are whole now, as (bytes, what a rule
        searches)."""
        return [(data, data)]

    def server(self, _data):
        """Takes bytes from the server: whether they end an answer, outside of a transaction."""
        return True


class PostgresWire(RawWire):
    """Messages with their lengths; a message that binds a named statement counts with its text."""

    PLAIN = 3 << 16  # version 3.0; other codes are questions about encryption, or cancel something

    def __init__(self):
        self.started = False
        self.pending = b""
        self.tail = b""
        self.statements = {}

    def client(self, data):
        self.pending += data
        messages = []
        while True:
            head = 1 if self.started else 0
            if len(self.pending) < head + 4:
                return messages
            size = head + struct.unpack_from(">I", self.pending, head)[0]
            if len(self.pending) < size:
                return messages
            message, self.pending = self.pending[:size], self.pending[size:]
            messages.append((message, self.text_of(message)))
            if not self.started:
                self.started = struct.unpack_from(">I", message, 4)[0] == self.PLAIN

    def text_of(self, message):
        if not self.started:
            return message
        if message[:1] == b"P":
            name, text, _ = message[5:].split(b"\0", 2)
            self.statements[name] = text
        elif message[:1] == b"B":
            _, name, _ = message[5:].split(b"\0", 2)
            return message + b"\0" + self.statements.get(name, b"")
        return message

    def server(self, data):
        self.tail = (self.tail + data)[-6:]
        return self.tail == b"Z\0\0\0\5I"  # ready for a query, idle


class MysqlWire(RawWire):
    """Packets with their lengths. What the server's last packet says of the state counts."""

    IN_TRANSACTION = 1
    MORE_RESULTS = 8

    def __init__(self):
        self.from_client = b""
        self.from_server = b""

    @staticmethod
    def packets(stream):
        """The whole packets with their heads, and the rest."""
        found = []
        while len(stream) >= 4:
            size = 4 + int.from_bytes(stream[:3], "little")
            if len(stream) < size:
                break
            found.append(stream[:size])
            stream = stream[size:]
        return found, stream

    def client(self, data):
        found, self.from_client = self.packets(self.from_client + data)
        return [(packet, packet) for packet in found]

    def server(self, data):
        found, self.from_server = self.packets(self.from_server + data)
        if not found or self.from_server:
            return False
        status = self.status_of(found[-1][4:])
        return status is not None and not status & (self.IN_TRANSACTION | self.MORE_RESULTS)

    @staticmethod
    def status_of(body):
        """Of an OK or EOF packet; None of others."""
        if len(body) == 5 and body[0] == 0xFE:
            return int.from_bytes(body[3:5], "little")
        # OK: two numbers of 1, 3, 4 or 9 bytes (the first byte says which), then the state.
        number = rb"(?:[\x00-\xfa]|\xfc..|\xfd...|\xfe.{8})"
        found = re.match(rb"[\x00\xfe]" + number + number + rb"(..)..", body, re.DOTALL)
        return int.from_bytes(found[1], "little") if found else None


# ---- Rules --------------------------------------------------------------------------------------

class Cut:
    """Every n-th time, `limit` times at most. `fired` counts."""

    def __init__(self, match, before=None, silent=False, every=1, limit=1):
        self.match = match
        self.before = before
        self.silent = silent
        self.every = every
        self.limit = limit
        self.seen = 0
        self.fired = 0

    def take(self):
        self.seen += 1
        if self.seen % self.every or self.fired >= self.limit:
            return False
        self.fired += 1
        return True


# ---- One connection -----------------------------------------------------------------------------

class Link:
    def __init__(self, proxy, reader, writer):
        self.proxy = proxy
        self.wire = proxy.wire()
        self.client = (reader, writer)
        self.server = None
        self.armed = set()   # rules whose match was seen in this transaction
        self.silent = False  # for life: a hole swallowed something
        self.tasks = []

    async def run(self):
        """Until both sides have ended."""
        try:
            if self.silent:
                await self.swallow(self.client[0])
                return
            self.server = await asyncio.open_connection(self.proxy.host, self.proxy.target)
            up, down = (asyncio.Queue(QUEUED_CHUNKS) for _ in range(2))
            self.tasks = [asyncio.ensure_future(work) for work in (
                self.read(self.client[0], up, self.from_client),
                self.write(self.server[1], up),
                self.read(self.server[0], down, self.from_server),
                self.write(self.client[1], down))]
            await asyncio.gather(*self.tasks)
        except OSError:
            self.reset()

    @staticmethod
    async def swallow(reader):
        with contextlib.suppress(OSError):
            while await reader.read(CHUNK):
                pass

    async def read(self, reader, queue, examine):
        """Passes on what `examine` leaves of the stream; its end too, but for a silent one."""
        data = True
        while data:
            try:
                data = await reader.read(CHUNK)
            except OSError:
                data = b""
            passed = examine(data) if data and not self.silent else b""
            if self.silent:
                return await self.swallow(reader)
            if passed or not data:
                await queue.put((time.monotonic() + self.proxy.delay_ms / 1000, passed))
        return None

    async def write(self, writer, queue):
        data = True
        while data:
            due, data = await queue.get()
            await asyncio.sleep(max(0, due - time.monotonic()))
            await self.proxy.gate.wait()
            if self.silent:
                return
            writer.write(data)
            await writer.drain()
        # The stream's end: everything here speaks to nobody who is half gone.
        for _, other in (self.client, self.server):
            other.close()

    def from_client(self, data):
        passed = b""
        for message, text in self.wire.client(data):
            if self.proxy.tap:
                self.proxy.tap(text)
            for rule in self.proxy.rules:
                if rule.match in text:
                    self.armed.add(rule)
                if rule in self.armed and rule.before and rule.before in text and rule.take():
                    self.strike(rule)
                    return b""
            passed += message
        return passed

    def from_server(self, data):
        if not self.wire.server(data):
            return data
        armed, self.armed = self.armed, set()
        for rule in armed:
            if not rule.before and rule.take():
                self.strike(rule)
                return b""
        return data

    def strike(self, rule):
        if rule.silent:
            self.silent = True
        else:
            self.reset()

    def reset(self):
        """The client gets RST. The server gets it as well: its session has nothing left to do."""
        for side in (self.client, self.server):
            if side:
                # Linger 0: close sends RST.
                with contextlib.suppress(OSError):
                    side[1].get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                side[1].transport.abort()


# ---- The proxy ----------------------------------------------------------------------------------

class Proxy:
    def __init__(self, target, wire=RawWire, host=HOST):
        self.host = host
        self.target = target
        self.wire = wire
        self.delay_ms = 0
        self.rules = []
        self.tap = None  # called with each message of a client, on the proxy's thread
        self.links = set()
        self.tasks = set()
        self.in_hole = False
        self.listener = None
        self.place = None    # while nobody listens: keeps the port from others
        self.port = 0
        self.n_links = 0
        self.gate = None
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.call(self.open())

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    async def open(self):
        self.gate = self.gate or asyncio.Event()
        self.gate.set()
        if not self.listener:
            place, self.place = self.place or self.bound(), None
            self.port = place.getsockname()[1]
            self.listener = await asyncio.start_server(self.serve, sock=place)

    def bound(self):
        # With its protocol named: without it asyncio leaves Nagle's algorithm on.
        place = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((HOST, self.port))
        return place

    async def serve(self, reader, writer):
        link = Link(self, reader, writer)
        link.silent = self.in_hole
        self.n_links += 1
        self.links.add(link)
        task = asyncio.current_task()
        self.tasks.add(task)
        try:
            await link.run()
        except asyncio.CancelledError:
            pass  # the proxy closes
        finally:
            writer.close()
            self.tasks.discard(task)
            self.links.discard(link)

    # ---- What a test does

    def add(self, rule):
        async def change():
            self.rules.append(rule)
        self.call(change())
        return rule

    def remove(self, rule):
        async def change():
            self.rules.remove(rule)
        self.call(change())

    def cut(self):
        """RST on every connection; new ones are served."""
        async def change():
            for link in self.links:
                if not link.silent:
                    link.reset()
        self.call(change())

    def refuse(self):
        """Nobody listens any more; connections that stand go on."""
        async def change():
            if self.listener:
                self.listener.close()
                self.listener = None
                self.place = self.bound()
        self.call(change())

    def hole(self):
        """Everything is swallowed without a word. Connections of this time stay silent for good,
        and the server does not learn that their clients have gone."""
        async def change():
            self.in_hole = True
            for link in self.links:
                link.silent = True
        self.call(change())

    def stall(self):
        """Nothing passes, and nothing is lost: it comes late."""
        async def change():
            self.gate.clear()
        self.call(change())

    def heal(self):
        """After refuse, hole and stall."""
        async def change():
            self.in_hole = False
            await self.open()
        self.call(change())

    def also(self, coroutine):
        """Runs it on the proxy's thread until the proxy closes."""
        async def change():
            self.tasks.add(asyncio.ensure_future(coroutine))
        self.call(change())

    def close(self):
        async def change():
            for listening in (self.listener, self.place):
                if listening:
                    listening.close()
            for link in list(self.links):
                link.reset()
                for task in link.tasks:
                    task.cancel()
            for task in list(self.tasks):
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
        self.call(change())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()
