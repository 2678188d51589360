# SPDX-License-Identifier: Apache-2.0
"""Hostile clients for wire.py: a table of requests, and the attacker, a process of its own.

The attacker runs every kind of client at once on one thread: each client is a generator that yields
what it waits for. Run as a program it takes its orders as JSON in its first argument, says "up" once
its idle connections stand, goes on until its standard input ends, and then says what it has seen.
"""

import collections
import contextlib
import errno
import heapq
import itertools
import json
import os
import resource
import select
import socket
import ssl
import sys
import time

HOST = "127.0.0.1"
GET = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /api/delay-tasks HTTP/1.1\r\nHost: h\r\n"
# It stands in the store before the first row is sent: each repeat is answered with 200.
TASK = b'{"bizUuid":"wire","serviceName":"wire","handler":"h","delay":"1h"}'
LENGTH = b"Content-Length: %d\r\n" % len(TASK)
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(TASK), TASK)


def tls_hello():
    said = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="h")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


# What is sent (parts: each but the last waits for an answer), the statuses of the answers, and
# whether the connection is kept. half: the client then ends its side.
class Row(collections.namedtuple("Row", "name parts statuses kept half")):
    def is_large(self):
        return sum(len(part) for part in self.parts) > 4000


def row(name, sent, statuses, kept=False, half=False):
    parts = sent if isinstance(sent, tuple) else (sent,)
    return Row(name, parts, (statuses,) if isinstance(statuses, int) else statuses, kept, half)


ROWS = [
    row("a request", GET, 200, kept=True),
    row("three in a pipeline", GET * 3, (200,) * 3, kept=True),
    row("a pipeline behind a body", POST + LENGTH + b"\r\n" + TASK + GET, (200, 200), kept=True),
    row("a pipeline behind a bad request", b"BAD\r\n\r\n" + GET * 3, 400),
    row("half-closed behind a request", GET, 200, half=True),
    row("half-closed behind a pipeline", GET * 3, (200,) * 3, half=True),
    row("half-closed at once", b"", (), half=True),
    row("half-closed in the header", GET[:20], 400, half=True),
    row("half-closed in the body", POST + LENGTH + b"\r\n" + TASK[:9], 400, half=True),
    row("half-closed in a chunk", CHUNKED + CHUNK[:9], 400, half=True),
    row("a header that is too large", GET[:-2] + b"X: " + b"x" * 20000 + b"\r\n\r\n", 431),
    row("too many headers", GET[:-2] + b"X: y\r\n" * 4000 + b"\r\n", 431),
    row("a target that is too long", b"GET /" + b"x" * 20000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 431),
    row("a length above the limit", POST + b"Content-Length: 8388609\r\n\r\n", 413),
    row("a length above 64 bits", POST + b"Content-Length: 18446744073709551617\r\n\r\n", 400),
    row("a body above the limit", POST + b"Content-Length: 9000000\r\n\r\n" + b"x" * 9000000, 413),
    row("chunks above the limit", CHUNKED + (b"100000\r\n" + b"x" * 0x100000 + b"\r\n") * 9, 413),
    row("a chunk above the limit", CHUNKED + b"800001\r\n", 413),
    row("a payload above its limit", POST + b"Content-Length: 70012\r\n\r\n" +
        b'{"payload":"' + b"x" * 69998 + b'"}', 413, kept=True),
    row("chunked", CHUNKED + CHUNK + b"0\r\n\r\n", 200, kept=True),
    row("chunked with trailers", CHUNKED + CHUNK + b"0\r\nContent-Length: 9\r\nX: y\r\n\r\n", 200,
        kept=True),
    row("chunked with an extension", CHUNKED + CHUNK.replace(b"\r\n", b";x=y\r\n", 1) + b"0\r\n\r\n",
        200, kept=True),
    row("chunked with a trailer that is too large",
        CHUNKED + CHUNK + b"0\r\nX: " + b"x" * 200000 + b"\r\n\r\n", 431),
    row("length and chunked", POST + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + GET, 400),
    row("chunked and length", CHUNKED[:-2] + LENGTH + b"\r\n0\r\n\r\n" + GET, 400),
    row("two equal lengths", POST + LENGTH * 2 + b"\r\n" + TASK + GET, 400),
    row("two different lengths", POST + b"Content-Length: 0\r\n" + LENGTH + b"\r\n" + TASK, 400),
    row("a list of lengths", POST + b"Content-Length: 2, 2\r\n\r\n{}", 400),
    row("a coding that nobody knows", POST + b"Transfer-Encoding: gzip\r\n\r\n", 400),
    row("bare LF", GET.replace(b"\r\n", b"\n"), 400),
    row("bare LF behind one header", GET.replace(b"h\r\n", b"h\nX: y\r\n"), 400),
    row("bare LF behind a chunk's size", CHUNKED + CHUNK.replace(b"\r\n", b"\n", 1) + b"0\r\n\r\n", 400),
    row("bare CR", GET.replace(b"h\r\n", b"h\rX: y\r\n"), 400),
    row("a folded header", GET[:-2] + b"X: a\r\n b\r\n\r\n", 400),
    row("a folded length", POST + b"Content-Length:\r\n 2\r\n\r\n{}", 400),
    row("space before the colon", POST + b"Content-Length : 2\r\n\r\n{}", 400),
    row("NUL in a header", GET[:-2] + b"X: a\0b\r\n\r\n", 400),
    row("an absolute URI", GET.replace(b"/healthz", b"http://h/healthz"), 200, kept=True),
    row("CONNECT", b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    row("a method that nobody knows", b"BREW" + GET[3:], 400),
    row("no Host", b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    row("two Hosts", GET[:-2] + b"Host: g\r\n\r\n", 400),
    row("HTTP/1.0", b"GET /healthz HTTP/1.0\r\n\r\n", 200),
    row("HTTP/1.0, kept", b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, kept=True),
    row("HTTP/1.0, chunked", CHUNKED.replace(b"1.1", b"1.0") + CHUNK + b"0\r\n\r\n", 400),
    row("HTTP/0.9", b"GET /healthz\r\n\r\n", 505),
    row("HTTP/2.0 in words", GET.replace(b"1.1", b"2.0"), 505),
    row("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    row("an upgrade to h2c", GET[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 200, kept=True),
    row("a TLS hello", tls_hello(), 400),
    row("garbage", bytes(range(256)), 400),
    row("Expect: 100-continue", (POST + LENGTH + b"Expect: 100-continue\r\n\r\n", TASK), (100, 200),
        kept=True),
    row("Expect: 100-continue without a body", GET[:-2] + b"Expect: 100-continue\r\n\r\n", 200,
        kept=True),
    row("Expect: 100-continue for too much",
        POST + b"Content-Length: 9000000\r\nExpect: 100-continue\r\n\r\n", 413),
    row("an Expect that nobody knows", POST + LENGTH + b"Expect: 200-ok\r\n\r\n", 417),
]

# Clients that would keep a time-out per read alive for ever: what they begin with and what they go
# on with, a piece at a time.
DRIPS = {
    "a header": (GET[:-2] + b"X: ", b"x"),
    "headers": (GET[:-2], b"X: y\r\n"),
    "empty lines before a request": (b"", b"\r\n"),
    "a body": (POST + b"Content-Length: 8000000\r\n\r\n", b"x"),
    "a chunk": (CHUNKED + b"7fffff\r\n", b"x"),
    "chunks": (CHUNKED, b"1\r\nx\r\n"),
    "a chunk's extension": (CHUNKED + b"1;", b"x"),
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"X: y\r\n"),
}


class Reader:
    """Splits what comes in into answers."""

    def __init__(self):
        self.text = b""

    def feed(self, data):
        self.text += data

    def take(self):
        """The next whole answer as (status, headers, body), or None."""
        head, end, rest = self.text.partition(b"\r\n\r\n")
        if not end:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        status = int(first.split()[1])
        headers = {name.lower(): value.strip() for name, _, value in
                   (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return None
        self.text = rest[length:]
        return status, headers, rest[:length]


# ---- The attacker -------------------------------------------------------------------------------

class Attacker:
    DRIP_S = 0.1
    PATIENCE_S = 30

    def __init__(self, orders):
        self.address = (HOST, orders["port"])
        self.orders = orders
        self.sources = itertools.cycle([f"127.0.0.{n}" for n in range(2, 12)])
        self.poll = select.epoll()
        self.waiting = {}   # fd → (turn, generator, socket)
        self.wakes = []     # (time, turn, fd or generator)
        self.turn = itertools.count()
        self.seen = collections.Counter()
        self.ages = collections.defaultdict(float)
        self.wrong = []
        self.idle = []

    # A client waits with `yield socket, events, seconds`, or `yield None, 0, seconds`, and learns
    # whether the socket was ready.

    def step(self, client, ready):
        try:
            sock, events, seconds = client.send(ready)
        except StopIteration:
            return
        except OSError as error:
            self.wrong.append(f"{client.__name__}: {error!r}")
            return
        turn = next(self.turn)
        fd = sock.fileno() if sock else -turn
        self.waiting[fd] = (turn, client)
        if sock:
            try:
                self.poll.register(fd, events | select.EPOLLONESHOT)
            except FileExistsError:
                self.poll.modify(fd, events | select.EPOLLONESHOT)
        heapq.heappush(self.wakes, (time.monotonic() + seconds, turn, fd))

    def pass_once(self):
        now = time.monotonic()
        for fd, _ in self.poll.poll(min(0.05, max(0, self.wakes[0][0] - now)), 512):
            if fd in self.waiting:
                self.step(self.waiting.pop(fd)[1], True)
        now = time.monotonic()
        while self.wakes[0][0] <= now:
            _, turn, fd = heapq.heappop(self.wakes)
            if self.waiting.get(fd, (None,))[0] == turn:
                self.step(self.waiting.pop(fd)[1], False)

    def connect(self, receive_buffer=None):
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: ports are taken late
        sock.bind((next(self.sources), 0))
        code = sock.connect_ex(self.address)
        if code == errno.EINPROGRESS:
            yield sock, select.EPOLLOUT, self.PATIENCE_S
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        return sock

    def send(self, sock, data):
        """True when all went out; False when the other side ended it or did not take it."""
        view = memoryview(data)
        while view:
            try:
                view = view[sock.send(view):]
            except BlockingIOError:
                if not (yield sock, select.EPOLLOUT, self.PATIENCE_S):
                    return False
            except OSError:
                return False
        return True

    def receive(self, sock, reader):
        """The next answer; None at the end of the connection, or of the patience."""
        while True:
            answer = reader.take()
            if answer:
                return answer
            if not (yield sock, select.EPOLLIN, self.PATIENCE_S):
                self.wrong.append("no answer and no end")
                return None
            try:
                data = sock.recv(65536)
            except BlockingIOError:
                continue
            except OSError:
                return None
            if not data:
                return None
            reader.feed(data)

    # The kinds of clients. Each goes on for ever.

    def drip(self, name):
        begin, piece = DRIPS[name]
        while True:
            sock = yield from self.connect()
            started = time.monotonic()
            yield from self.send(sock, begin)
            while not (yield sock, select.EPOLLIN, self.DRIP_S):
                with contextlib.suppress(OSError):
                    sock.send(piece)
            answer = yield from self.receive(sock, Reader())
            sock.close()
            self.ages[name] = max(self.ages[name], time.monotonic() - started)
            self.seen["drips cut"] += 1
            if not answer or answer[0] != 408:
                self.wrong.append(f"{name} drips: {answer}")

    def slow_read(self):
        request = b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % self.orders["page"].encode()
        while True:
            sock = yield from self.connect(receive_buffer=4096)
            started = time.monotonic()
            yield from self.send(sock, request)
            while True:
                yield None, 0, self.DRIP_S
                try:
                    if not sock.recv(512):
                        break
                except BlockingIOError:
                    continue
                except OSError:
                    break
            sock.close()
            self.ages["slow reader"] = max(self.ages["slow reader"], time.monotonic() - started)
            self.seen["slow readers cut"] += 1

    def flood(self):
        """Sends as long as the other side takes it, and never reads."""
        while True:
            sock = yield from self.connect(receive_buffer=4096)
            while (yield from self.send(sock, GET * 1000)):
                pass
            sock.close()
            self.seen["floods cut"] += 1

    def table(self, pause=0.05):
        """Row after row of the table, each as it must be."""
        for one in itertools.cycle(ROWS):
            sock = yield from self.connect()
            reader, statuses = Reader(), []
            for i, part in enumerate(one.parts):
                yield from self.send(sock, part)
                if i + 1 < len(one.parts):
                    statuses.append(((yield from self.receive(sock, reader)) or (None,))[0])
            if one.half:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
            while len(statuses) < len(one.statuses):
                statuses.append(((yield from self.receive(sock, reader)) or (None,))[0])
            sock.close()
            self.seen["rows"] += 1
            # A body may also find no memory, since slow readers hold it.
            if tuple(statuses) != one.statuses and not (statuses == [503] and one.is_large()):
                self.wrong.append(f"{one.name}: {statuses} instead of {one.statuses}")
            yield None, 0, pause

    def churn(self, pause=0.02):
        """Connects, sends half a request, and resets."""
        while True:
            sock = yield from self.connect()
            with contextlib.suppress(OSError):
                sock.send(GET[:20])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()
            self.seen["resets"] += 1
            yield None, 0, pause

    def heavy(self, pause=0.5):
        """As many JSON values as fit into a body, and as many keys."""
        values = b'{"tasks":[' + b"1," * 4000000 + b"1]}"
        keys = b"{" + b",".join(b'"%06x":1' % n for n in range(700000)) + b"}"
        for body in itertools.cycle((values, keys)):
            sock = yield from self.connect()
            yield from self.send(sock, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            answer = yield from self.receive(sock, Reader())
            sock.close()
            self.seen["heavy bodies"] += 1
            # With slow readers around there may be no memory for it, or no time.
            if not answer or answer[0] not in (400, 408, 503):
                self.wrong.append(f"a heavy body: {answer}")
            yield None, 0, pause

    def idlers(self, n):
        """Makes n connections that were used once and are kept."""
        for _ in range(n):
            sock = yield from self.connect()
            yield from self.send(sock, GET)
            answer = yield from self.receive(sock, Reader())
            if answer and answer[0] == 200:
                self.idle.append(sock)
            else:
                self.wrong.append(f"an idle connection: {answer}")
                sock.close()

    def run(self):
        n_idle = self.orders["idle"]
        workers = 50
        for i in range(workers):
            self.start(self.idlers(n_idle // workers + (i < n_idle % workers)))
        while len(self.idle) + len(self.wrong) < n_idle:
            self.pass_once()
        kinds = {"slow_readers": self.slow_read, "floods": self.flood, "tables": self.table,
                 "churns": self.churn, "heavies": self.heavy,
                 **{name: lambda n=name: self.drip(n) for name in DRIPS}}
        for kind, n in self.orders["kinds"].items():
            for _ in range(n):
                self.start(kinds[kind]())
        self.start(self.until_told())
        print("up", flush=True)
        while not self.told:
            self.pass_once()
        for sock in self.idle:
            with contextlib.suppress(BlockingIOError):
                if not sock.recv(1):
                    self.wrong.append("an idle connection was closed")
        print(json.dumps({"seen": self.seen, "ages": self.ages, "idle": len(self.idle),
                          "wrong": self.wrong[:20]}), flush=True)

    told = False

    def until_told(self):
        yield sys.stdin, select.EPOLLIN, 1e9
        self.told = True

    def start(self, client):
        self.step(client, None)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Attackers have machines of their own: here they get what the node leaves.
    os.nice(10)
    Attacker(json.loads(sys.argv[1])).run()
