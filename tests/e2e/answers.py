#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a careless, broken or hostile service may do to the node that calls it: answers.py sqlite.

One node serves all cases. The tasks of ONE_SHOT all go out at the beginning, each to a handler of its
own, and each case then looks at what became of its task; the other cases follow one by one.
"""

import contextlib
import gzip
import random
import socket
import threading
import time

import lib
import rawservice
from lib import check, diagnose, equal, parse_time, wait_until
from rawservice import ok

INITIAL_MS = 200  # the first back-off; it doubles
CLOCK_MS = 20  # as far as the node's idea of the store's clock may be off
REFRESH_S = 2
MIB = 1024 * 1024
METADATA = "169.254.169.254"

HEAD_200 = b"HTTP/1.1 200 OK\r\n"
HEAD_500 = b"HTTP/1.1 500 Oops\r\n"
OK_2 = HEAD_200 + b"Content-Length: 2\r\n\r\nok"


# ---- Scripts ------------------------------------------------------------------------------------

def says(*parts, pause=0.0):
    """Reads the body, sends the parts with a pause between them, and closes."""
    def script(call):
        call.read_body()
        for n, part in enumerate(parts):
            time.sleep(pause if n else 0)
            call.send(part)
        return False
    return script


def says_and_holds(*parts):
    """The same, and leaves the connection open until the other side closes it."""
    def script(call):
        says(*parts)(call)
        return call.wait_for_close()
    return script


def hang(call):
    call.read_body()
    return call.wait_for_close()


def drip(call):
    call.read_body()
    call.send(HEAD_200 + b"Content-Length: 1000\r\n\r\n")
    for _ in range(30):
        call.send(b"x")
        time.sleep(1)


def reset_before_the_body(call):
    return call.reset()


def reset_in_the_body(call):
    while len(call.got) < 1000:
        call.got += call.socket.recv(1000)
    return call.reset()


def reset_after_the_body(call):
    call.read_body()
    return call.reset()


def reset_in_the_answer(call):
    call.read_body()
    call.send(HEAD_200 + b"Content-Length: 1000\r\n\r\nhalf")
    time.sleep(0.1)  # or the reset would overtake what was said
    return call.reset()


def endless_interim(call):
    call.read_body()
    while True:
        call.send(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)


def hundred_mib(head):
    def script(call):
        call.read_body()
        call.send(head + b"Content-Length: %d\r\n\r\n" % (100 * MIB))
        for _ in range(100):
            call.send(bytes(MIB))
    return script


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


BOMB = gzip.compress(bytes(50 * MIB))  # 50 KiB


# ---- Cases that are one task --------------------------------------------------------------------

class Shot:
    """A task of one retry, and what becomes of it. `bodies` None: as many as attempts."""

    def __init__(self, name, script, error, status="FAILED", attempts=2, bodies=None, timeout="10s",
                 service=None, requests=None, **more):
        self.name = name
        self.script = script
        self.error = error  # stands in the text of each failed attempt
        self.status = status
        self.attempts = attempts
        self.requests = attempts if requests is None else requests
        self.bodies = self.requests if bodies is None else bodies
        self.timeout = timeout
        self.service = service or name  # of its own, so that no other task gets its connections
        self.more = more


def success(name, script, **more):
    return Shot(name, script, None, "SUCCESS", 1, **more)


ONE_SHOT = [
    # Silence, slowness, breaks.
    Shot("refused", None, "connect to", service="refused", requests=0),
    Shot("hangs", hang, "timed out", timeout="1s"),
    Shot("drips_a_byte_a_second", drip, "timed out", timeout="3500ms"),
    Shot("stands_still_in_the_body",
         says_and_holds(HEAD_200 + b"Content-Length: 9\r\n\r\nhalf"), "stood still"),
    Shot("stands_still_in_the_headers", says_and_holds(HEAD_200 + b"Content-Le"), "stood still"),
    Shot("closes_without_a_word", says(), "before an answer"),
    Shot("resets_before_the_body", reset_before_the_body, "reset", bodies=0),
    Shot("resets_in_the_body", reset_in_the_body, "", bodies=0, payload="x" * 60000),
    Shot("resets_after_the_body", reset_after_the_body, "reset"),
    Shot("resets_in_the_answer", reset_in_the_answer, "reset"),
    # 1xx.
    success("interim_answers_before_the_final_one",
            says(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\n",
                 b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", OK_2, pause=0.05)),
    success("thinks_behind_an_interim_answer",
            says(b"HTTP/1.1 102 Processing\r\n\r\n", OK_2, pause=3)),
    Shot("interim_answers_and_then_nothing",
         says_and_holds(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"),
         "timed out", timeout="3s"),
    success("hundreds_of_interim_answers", says(b"HTTP/1.1 102 Processing\r\n\r\n" * 500 + OK_2)),
    Shot("interim_answers_without_an_end", endless_interim, "headers are above"),
    Shot("switches_protocols",
         says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"),
         "in the middle"),
    # 3xx.
    *(Shot(f"redirect_{n}_is_not_followed",
           says(b"HTTP/1.1 %d Moved\r\nLocation: http://%s/latest/meta-data\r\n"
                b"Content-Length: 0\r\n\r\n" % (n, METADATA.encode())), f"HTTP {n}")
      for n in (301, 302, 303, 307, 308)),
    Shot("not_modified", says(b"HTTP/1.1 304 Not Modified\r\n\r\n"), "HTTP 304"),
    # Lengths.
    Shot("length_too_long", says(HEAD_200 + b"Content-Length: 9\r\n\r\nok"), "7 bytes remaining"),
    success("length_too_short", says_and_holds(HEAD_200 + b"Content-Length: 2\r\n\r\nok, and more")),
    Shot("length_negative", says(HEAD_200 + b"Content-Length: -2\r\n\r\nok"), "Content-Length"),
    Shot("length_no_number", says(HEAD_200 + b"Content-Length: two\r\n\r\nok"), "Content-Length"),
    Shot("two_lengths", says(HEAD_200 + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok!"),
         "Content-Length"),
    success("one_length_twice", says(HEAD_200 + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok")),
    success("no_length", says(HEAD_200 + b"\r\nok")),
    success("no_content", says(b"HTTP/1.1 204 No Content\r\n\r\n")),
    # Too much.
    success("hundred_mib", hundred_mib(HEAD_200)),
    Shot("hundred_mib_of_error", hundred_mib(HEAD_500), "HTTP 500"),
    success("gzip_unasked",
            says(HEAD_200 + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n"
                 + gzip.compress(b'{"success":false}'))),
    success("gzip_bomb",
            says(HEAD_200 + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n" + BOMB)),
    success("gzip_bomb_as_transfer_encoding",
            says(HEAD_200 + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunk(BOMB) + b"0\r\n\r\n")),
    Shot("header_of_a_mib", says(HEAD_200 + b"X: " + b"x" * MIB + b"\r\n" + OK_2), "header"),
    Shot("ten_thousand_headers",
         says(HEAD_200 + b"".join(b"X-%d: y\r\n" % n for n in range(10000)) + b"\r\nok"),
         "headers are above"),
    Shot("status_line_without_an_end", says(b"HTTP/1.1 200 " + b"x" * MIB), "header"),
    # Bad forms.
    Shot("chunk_size_no_number",
         says(HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n"), "hunk"),
    Shot("chunk_size_too_large",
         says(HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\nok\r\n"), "hunk"),
    Shot("chunk_cut", says(HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n5\r\nok"), "3 bytes remaining"),
    Shot("trailers_without_an_end",
         says(HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"
              + b"X-Trailer: y\r\n" * 100000), "header"),
    Shot("garbage", says(b"SSH-2.0-OpenSSH_9.2\r\n"), "begin with HTTP/"),
    Shot("zero_bytes", says(bytes(1000)), "begin with HTTP/"),
    Shot("status_no_number", says(b"HTTP/1.1 abc Fine\r\n\r\n"), ""),
    Shot("http_60_expectation_failed",
         says(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n"), "HTTP 417"),
    Shot("status_999", says(b"HTTP/1.1 999 Fine\r\nContent-Length: 2\r\n\r\nok"), "HTTP 999"),
    Shot("http_3_in_plain", says(b"HTTP/3.0 200 OK\r\n\r\n"), "version"),
    Shot("zero_in_a_header", says(HEAD_200 + b"X: a\0b\r\nContent-Length: 2\r\n\r\nok"), "header"),
    # Error texts, as they are stored.
    Shot("text_with_zero_and_invalid_bytes",
         says(HEAD_500 + b"Connection: close\r\n\r\na\0b \xff\xfe \xed\xa0\x80 \xc3"),
         "HTTP 500: a\ufffdb \ufffd\ufffd"),
    Shot("message_with_zero_and_surrogates",
         says(HEAD_500 + b'Connection: close\r\n\r\n{"message":"a\\u0000b\\ud800\xff\xe4"}'),
         "HTTP 500: a\ufffdb\ufffd\ufffd"),
    Shot("reason_with_invalid_bytes",
         says(b"HTTP/1.1 500 \xff\xfe\x1b[31m\r\nContent-Length: 0\r\n\r\n"), "HTTP 500"),
    # TLS.
    success("tls_right", ok, service="tls-right"),
    success("tls_right_address", ok, service="tls-address"),
    Shot("tls_expired", ok, "expired", service="tls-expired", requests=0),
    Shot("tls_other_name", ok, "name", service="tls-other-name", requests=0),
    Shot("tls_self_signed", ok, "self", service="tls-self-signed", requests=0),
    Shot("tls_unknown_authority", ok, "certificate", service="tls-unknown", requests=0),
    Shot("tls_to_a_plain_port", ok, "wrong version", service="tls-to-plain", requests=0),
    Shot("plain_to_a_tls_port", ok, "", service="plain-to-tls", requests=0),
    Shot("tls_handshake_that_never_ends", ok, "timeout", service="tls-silent", requests=0),
    Shot("connection_that_is_never_taken", ok, "timeout", service="full", requests=0),
    success("tls_with_another_protocol_on_offer", ok, service="tls-alpn"),
    Shot("http_2_only", says(), "begin with HTTP/", service="http-2"),
    Shot("tls_http_2_only", says(), "HTTP/0.9", service="tls-http-2"),
]


def check_back_off(s, task):
    """The next attempt's time is the back-off behind the moment of the decision, which lies between the
    attempt's start and the storing of its end."""
    attempts = {a["attempt"]: a for a in task["attempts"]}
    lines = s.node.events("task.retrying", bizUuid=task["bizUuid"])
    equal(len(lines), task["attempt"] - 1, "retries in the log")
    for line in lines:
        number = line["attempt"]
        planned = INITIAL_MS * 2 ** (number - 1)
        at = parse_time(line["nextAttemptTime"])
        decided = at - planned
        check(parse_time(attempts[number]["startedAt"]) - CLOCK_MS <= decided <=
              parse_time(attempts[number]["endedAt"]) + CLOCK_MS, f"{line} of {attempts[number]}")
        if number + 1 in attempts:
            check(parse_time(attempts[number + 1]["startedAt"]) >= at, "too early an attempt")


def check_failures(s, task, error):
    """Every failed attempt is on record with a text that says why, and was followed in due time."""
    failures = task["attempts"]
    wanted = list(range(1, task["attempt"] + (task["status"] != "SUCCESS")))
    equal([a["attempt"] for a in failures], wanted, "failed attempts on record")
    for failure in failures:
        text = failure.get("error", "")
        check(text and error.lower() in text.lower(), f"{error!r} does not stand in {text!r}")
        check(text == text.replace("\0", ""), f"a zero character: {text!r}")
    check_back_off(s, task)


def shot_case(s, shot):
    task = s.node.wait_status(shot.name, shot.status, 40)
    equal((task["attempt"], task["retryCount"]), (shot.attempts, shot.attempts - 1))
    check_failures(s, task, shot.error or "")
    if shot.status == "FAILED":
        equal(task["lastError"], task["attempts"][-1]["error"])
        equal(task.get("nextAttemptTime"), None, "next attempt")
    service = s.services[shot.service]
    equal([c.attempt for c in service.asked(task["traceId"])], list(range(1, shot.requests + 1)),
          "requests, by attempt")
    equal([c.attempt for c in service.of(task["traceId"])], list(range(1, shot.bodies + 1)),
          "bodies, by attempt")


# ---- The stage ----------------------------------------------------------------------------------

class Stage:
    def __init__(self, kind, folder):
        self.folder = folder
        self.services = {}
        self.n_tasks = 0
        self.closing = contextlib.ExitStack()
        self.store = self.keep(lib.STORES[kind](folder))
        self.names = rawservice.Names(folder)
        self.names.set("shop.test", lib.HOST)
        self.certificates = rawservice.Certificates(folder)
        self.node = self.keep(lib.Node(folder, self.store.url, {
            "JOBFLOW_DELIVERY_LOW_SPEED": "2s",
            "JOBFLOW_DELIVERY_CONNECT_TIMEOUT": "2s",
            "JOBFLOW_DISPATCH_CA_FILE": str(self.certificates.ca),
            "JOBFLOW_DISPATCH_REFRESH": f"{REFRESH_S}s",
            "JOBFLOW_POLICIES_DEFAULT_INITIAL": f"{INITIAL_MS}ms",
            "JOBFLOW_TASKS_MAX_PAYLOAD": "4MiB",
            **self.names.env,
        })).start()
        self.make_services()
        # What all of it may be compared with: a node that has been used.
        self.node.submit("first", "raw", "first")
        self.node.wait_status("first", "SUCCESS")
        pid = self.node.process.pid
        self.rss_before = rawservice.memory_kib(pid)[0]
        self.descriptors_before = rawservice.descriptors(pid)
        self.descriptors_most = 0
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        with contextlib.suppress(OSError, AttributeError):  # the node has ended
            while True:
                self.descriptors_most = max(self.descriptors_most,
                                            rawservice.descriptors(self.node.process.pid))
                time.sleep(0.02)

    def keep(self, thing):
        self.closing.callback(thing.close)
        return thing

    def close(self):
        self.closing.close()

    def serve(self, name, scheme="http", host=lib.HOST, concurrency=100, listen=lib.HOST, **more):
        """A service; one that listens elsewhere gives its name that address and is used once."""
        service = self.keep(rawservice.Service(host=listen, **more))
        self.services[name] = service
        self.node.register(name, f"{scheme}://{host}:{service.port}/", concurrency=concurrency)
        if listen != lib.HOST:
            self.names.set(host, listen)
            ends(self, self.submit(name))
        return service

    def register_at(self, name, host, port):
        self.node.register(name, f"http://{host}:{port}/")
        return name

    def submit(self, service, handler="h", **more):
        """A task with a bizUuid of its own."""
        self.n_tasks += 1
        return self.node.submit(f"{service}-{handler}-{self.n_tasks}", service, handler, **more)

    def make_services(self):
        c = self.certificates
        other = rawservice.Certificates(self.folder, "other-ca")
        local = f"DNS:shop.test,IP:{lib.HOST}"
        right = c.issue("right", local)
        h2 = c.issue("h2", local)
        h2.set_alpn_protocols(["h2"])
        both = c.issue("both", local)
        both.set_alpn_protocols(["spdy/3", "h2", "http/1.1"])
        http_2 = b"\0\0\0\4\0\0\0\0\0"  # an empty SETTINGS frame
        tls = {"scheme": "https", "host": "shop.test"}
        self.serve("raw")
        self.serve("tls-right", **tls, tls=right)
        self.serve("tls-address", "https", tls=right)
        self.serve("tls-expired", **tls, tls=c.issue("old", local, expired=True))
        self.serve("tls-other-name", **tls, tls=c.issue("elsewhere", "DNS:elsewhere.test"))
        self.serve("tls-self-signed", **tls, tls=c.self_signed("shop.test", local))
        self.serve("tls-unknown", **tls, tls=other.issue("stranger", local))
        self.serve("tls-to-plain", **tls, greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n")
        self.serve("tls-silent", **tls)
        self.serve("plain-to-tls", host="shop.test", tls=right)
        self.serve("tls-alpn", **tls, tls=both)
        self.serve("http-2", greeting=http_2)
        self.serve("tls-http-2", **tls, tls=h2, greeting=http_2)
        full = self.keep(rawservice.FullBacklog(lib.HOST, 0))
        self.services["full"] = self.services["refused"] = self.services["raw"]
        self.node.register("full", f"http://{lib.HOST}:{full.port}/")
        refusing = self.keep(socket.socket())
        refusing.bind((lib.HOST, 0))
        self.node.register("refused", f"http://{lib.HOST}:{refusing.getsockname()[1]}/")

    def fire(self):
        for shot in ONE_SHOT:
            if shot.service not in self.services:
                self.serve(shot.service)
        for shot in ONE_SHOT:
            self.services[shot.service].scripts[shot.name] = shot.script
            self.node.submit(shot.name, shot.service, shot.name, maxRetry=1, timeout=shot.timeout,
                             **shot.more)


# ---- Cases of several tasks -----------------------------------------------------------------------

def ends(s, task, status="SUCCESS", attempt=1):
    """Waits for the end of a task that was submitted; returns its record."""
    record = s.node.wait_status(task["bizUuid"], status, 30)
    equal(record["attempt"], attempt, f"attempts of {task['bizUuid']}: {record['attempts']}")
    return record


def probes(s, service, is_there, seconds, **more):
    """Submits a task after the other until one ends as wanted; returns the records of all."""
    records = []

    def probe():
        task = s.submit(service, **more)
        records.append(wait_until(
            lambda: (lambda t: t if t["status"] in ("SUCCESS", "FAILED") else None)(
                s.node.task(task["bizUuid"])), 30, "a probe's end"))
        return is_there(records[-1])

    wait_until(probe, seconds, f"{service} is as wanted")
    return records


def a_changed_address_is_followed(s):
    """The old place still answers: kept connections have to end as well as cached addresses."""
    old = s.serve("moving", host="moving.test", listen="127.0.0.2")
    new = s.keep(rawservice.Service(host="127.0.0.3", port=old.port))
    started = time.monotonic()
    s.names.set("moving.test", "127.0.0.3")
    records = probes(s, "moving", lambda record: new.of(record["traceId"]), 30)
    equal({(r["status"], r["attempt"]) for r in records}, {("SUCCESS", 1)})
    check(len(old.requests) > 0, "the name was never used before it changed")
    equal(len(old.deliveries) + len(new.deliveries), len(records) + 1, "bodies")
    n_lookups = s.names.lookups()["moving.test"]
    diagnose(f"followed after {time.monotonic() - started:.1f} s, refresh {REFRESH_S} s, "
             f"{len(records) + 1} tasks, {n_lookups} look-ups")
    check(n_lookups < len(records), "a look-up for each task")


def an_address_changes_between_attempts(s):
    port = lib.free_port()  # on the old address nobody listens
    s.names.set("jumping.test", "127.0.0.2")
    s.node.register("jumping", f"http://jumping.test:{port}/")
    task = s.submit("jumping", maxRetry=8)
    wait_until(lambda: s.node.task(task["bizUuid"])["attempts"], 10, "the first attempt has failed")
    service = s.keep(rawservice.Service(host="127.0.0.3", port=port))
    s.names.set("jumping.test", "127.0.0.3")
    record = s.node.wait_status(task["bizUuid"], "SUCCESS", 30)
    check(record["attempt"] > 1, "the first attempt")
    check_failures(s, record, "connect to")
    equal([c.attempt for c in service.of(task["traceId"])], [record["attempt"]], "bodies")


def a_dead_address_beside_a_live_one(s):
    """Refusing, or silent as a host that is off: the live one is reached within the same attempt."""
    service = s.keep(rawservice.Service(host="127.0.0.3"))
    s.names.set("half-dead.test", "127.0.0.2", "127.0.0.3")
    s.node.register("half-dead", f"http://half-dead.test:{service.port}/")
    first = ends(s, s.submit("half-dead"))
    silent = s.keep(rawservice.Service(host="127.0.0.3"))
    s.keep(rawservice.FullBacklog("127.0.0.2", silent.port))
    s.names.set("half-silent.test", "127.0.0.2", "127.0.0.3")
    s.node.register("half-silent", f"http://half-silent.test:{silent.port}/")
    second = ends(s, s.submit("half-silent", timeout="20s"))
    equal([len(service.of(first["traceId"])), len(silent.of(second["traceId"]))], [1, 1], "bodies")
    tried = s.names.connects()
    for port in (service.port, silent.port):
        check(("127.0.0.2", port) in tried, "the dead address was never tried")


def a_slow_name_holds_nobody_up(s):
    s.names.set("slow.test", "wait=1500", lib.HOST)
    s.node.register("slow", f"http://slow.test:{s.services['raw'].port}/")
    slow = [s.submit("slow", timeout="20s") for _ in range(20)]
    wait_until(lambda: s.names.lookups()["slow.test"], 10, "the name is looked up")
    for _ in range(20):
        ends(s, s.submit("raw"))
    equal(s.services["raw"].of(slow[0]["traceId"]), [], "deliveries under the slow name so far")
    for task in slow:
        ends(s, task)
    s.names.set("too-slow.test", "wait=4000", lib.HOST)  # for the connect time-out
    for name, error in (("too-slow", "Resolving timed out"), ("nowhere", "resolve")):
        task = s.submit(s.register_at(name, f"{name}.test", 80), maxRetry=1)
        check_failures(s, ends(s, task, "FAILED", 2), error)


def many_tasks_share_a_look_up(s):
    def slow(call):
        time.sleep(0.05)
        return ok(call)

    service = s.serve("crowd", host="crowd.test", listen="127.0.0.2")
    service.scripts["h"] = slow
    at = lib.now_ms() + 1000
    tasks = [s.submit("crowd", executeTime=at) for _ in range(200)]
    for task in tasks:
        ends(s, task)
    n_lookups = s.names.lookups()["crowd.test"]
    diagnose(f"{len(tasks)} tasks, {service.n_connections} connections, {n_lookups} look-ups")
    check(n_lookups <= service.n_connections < len(tasks), "look-ups per connection")


def http_60_a_large_body_does_not_wait(s):
    """libcurl asks `Expect: 100-continue` for a body above 1 MB, and stalls before a service that does
    not answer it."""
    payload = "x" * (3 * MIB // 2)
    task = s.submit("raw", payload=payload)
    ends(s, task)
    call, = s.services["raw"].of(task["traceId"])
    check("expect" not in call.headers, f"Expect: {call.headers.get('expect')}")
    check(len(call.body) > len(payload), "the body came whole")


def http_64_a_name_that_moves_inside(s):
    """A name that was harmless when it was registered, and at its first call, leads to where no task
    may go; beside a harmless address too."""
    blocked = {METADATA: METADATA, "mapped": "::ffff:169.254.169.254", "link": "fe80::1",
               "nat64": "64:ff9b::a9fe:a9fe", "any": "0.0.0.0", "group": "224.0.0.1",
               "own": lib.HOST}
    outside = s.keep(rawservice.Service(host="127.0.0.2", port=s.node.port))
    for name, address in blocked.items():
        host = f"inside-{name}.test"
        s.names.set(host, "127.0.0.2")
        ends(s, s.submit(s.register_at(f"inside-{name}", host, s.node.port)))
        s.names.set(host, address)
    for name, address in blocked.items():
        records = probes(s, f"inside-{name}", lambda r: r["status"] == "FAILED", 30, maxRetry=0)
        equal({r["status"] for r in records[:-1]} - {"SUCCESS"}, set())
        check_failures(s, records[-1], "address is refused")
        s.names.set(f"inside-{name}.test", address, "127.0.0.2")
    for name in blocked:
        probes(s, f"inside-{name}", lambda r: r["status"] == "SUCCESS", 30, maxRetry=0)
    tried = [(a, p) for a, p in s.names.connects() if p == s.node.port]
    equal({a for a, _ in tried}, {"127.0.0.2"}, "addresses that were connected to")
    check(METADATA not in {a for a, _ in s.names.connects()}, "the metadata service was tried")
    check(len(outside.deliveries) >= 2 * len(blocked), "deliveries outside")


def http_65_large_integers_stay_what_they_are(s):
    """Through a double, 9007199254740993 arrives as …992."""
    payload = b'{"ns":1491926160718000000,"id":9007199254740993}'
    answer = s.node.client.post("/api/delay-tasks", b'{"bizUuid":"http-65","serviceName":"raw",'
                                b'"handler":"http-65","payload":' + payload + b"}")
    equal(answer.status, 201)
    ends(s, answer.body)
    call, = s.services["raw"].of(answer.body["traceId"])
    check(b'"payload":' + payload in call.body, f"the body: {call.body}")


def a_connection_that_the_service_closes(s):
    """After any number of answers, at once or a little later: no task is lost, no attempt doubled."""
    rng = random.Random(1)

    def close_sometimes(call):
        ok(call)
        if rng.random() < 0.5:
            return True
        time.sleep(rng.choice((0, 0, 0.001, 0.005)))
        return False

    service = s.serve("closing", concurrency=8)
    service.scripts["h"] = close_sometimes
    tasks = [s.submit("closing", maxRetry=20) for _ in range(400)]
    records = [s.node.wait_status(t["bizUuid"], "SUCCESS", 30) for t in tasks]
    n_attempts = n_bodies = 0
    for record in records:
        bodies = [c.attempt for c in service.of(record["traceId"])]
        failed = [a["attempt"] for a in record["attempts"]]
        equal(failed, list(range(1, record["attempt"])), "failed attempts on record")
        equal(len(bodies), len(set(bodies)), "bodies of one attempt")
        equal(bodies[-1:], [record["attempt"]], "the last attempt was the one that succeeded")
        check(set(bodies) <= {*failed, record["attempt"]}, f"bodies {bodies}, failed {failed}")
        n_attempts += record["attempt"]
        n_bodies += len(bodies)
    reused = sum(call.nth > 1 for call in service.deliveries)
    diagnose(f"{len(tasks)} tasks, {n_attempts} attempts, {n_bodies} bodies, "
             f"{service.n_connections} connections, {reused} requests on used ones")
    check(reused > 0 and service.n_connections > 8, "nothing was proven")


def words_that_nobody_asked_for(s):
    """More behind an answer than it said: the next task on that connection must not take it for its
    own answer."""
    def stray(call):
        ok(call)
        if call.handler == "late":
            time.sleep(0.05)
        call.send(OK_2)
        return True

    service = s.serve("stray", concurrency=1)
    service.scripts.update(at_once=stray, late=stray, judge=says(
        HEAD_500 + b"Content-Length: 4\r\n\r\nmine"))
    for n in range(5):
        for handler in ("at_once", "late"):
            ends(s, s.submit("stray", handler))
            if handler == "late":
                time.sleep(0.1)  # until it was said
            failed = ends(s, s.submit("stray", "judge", maxRetry=0), "FAILED")
            equal(failed["lastError"], "HTTP 500: mine", f"{handler}, {n}")
            equal(len(service.of(failed["traceId"])), 1, "bodies")


def a_new_authority_is_taken_up(s):
    """dispatch.ca_file is read anew: no restart for a certificate authority that is replaced."""
    new = rawservice.Certificates(s.folder, "new-ca")
    s.serve("renewed", "https", host="shop.test", tls=new.issue("renewed", "DNS:shop.test"))
    record = ends(s, s.submit("renewed", maxRetry=0), "FAILED")
    check_failures(s, record, "certificate")
    with open(s.certificates.ca, "ab") as bundle:
        bundle.write(new.ca.read_bytes())
    probes(s, "renewed", lambda r: r["status"] == "SUCCESS", 30, maxRetry=0)
    ends(s, s.submit("tls-right"))


def connections_per_host_are_bounded(s):
    """dispatch.max_per_host; what waits for a connection is not lost."""
    (s.folder / "small").mkdir()
    with contextlib.closing(lib.Sqlite(s.folder / "small")) as store, \
            contextlib.closing(rawservice.Service()) as service:
        def slow(call):
            time.sleep(0.02)
            return ok(call)

        service.scripts["h"] = slow
        with contextlib.closing(lib.Node(s.folder, store.url, {
                "JOBFLOW_DISPATCH_MAX_PER_HOST": "2"}, "small")) as node:
            node.start()
            node.register("small", service.url)
            tasks = [node.submit(f"small-{n}", "small") for n in range(40)]
            for task in tasks:
                equal(node.wait_status(task["bizUuid"], "SUCCESS")["attempt"], 1, "attempts")
        equal(service.n_connections, 2, "connections")


def memory_and_descriptors_are_back(s):
    pid = s.node.process.pid
    for service in s.services.values():
        service.close()
    time.sleep(REFRESH_S)  # so that what was kept has grown old
    last = s.serve("last")

    def is_back():
        ends(s, s.submit("last"))  # libcurl looks after its connections when it makes one
        return rawservice.descriptors(pid) <= s.descriptors_before + 4

    wait_until(is_back, 30, f"descriptors are as before ({s.descriptors_before})")
    rss, most = rawservice.memory_kib(pid)
    diagnose(f"descriptors {s.descriptors_before} before, {s.descriptors_most} at most, "
             f"{rawservice.descriptors(pid)} now")
    diagnose(f"resident {s.rss_before} KiB before, {most} KiB at most, {rss} KiB now")
    check(most - s.rss_before < 64 * 1024, f"memory: {most} KiB at most")
    check(rss - s.rss_before < 32 * 1024, f"memory: {rss} KiB in the end")
    check(last.deliveries, "the node still delivers")


SEVERAL = [
    a_changed_address_is_followed,
    an_address_changes_between_attempts,
    a_dead_address_beside_a_live_one,
    a_slow_name_holds_nobody_up,
    many_tasks_share_a_look_up,
    http_60_a_large_body_does_not_wait,
    http_64_a_name_that_moves_inside,
    http_65_large_integers_stay_what_they_are,
    a_connection_that_the_service_closes,
    words_that_nobody_asked_for,
    a_new_authority_is_taken_up,
    connections_per_host_are_bounded,
    memory_and_descriptors_are_back,
]


def cases_of(stage):
    stage.fire()
    return [(shot.name.replace("_", " "), lambda shot=shot: shot_case(stage, shot))
            for shot in ONE_SHOT] + lib.cases_of(SEVERAL, stage)


if __name__ == "__main__":
    lib.main(Stage, cases_of)
