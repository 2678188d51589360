#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every field of every call, with every kind of wrong value: fields.py sqlite.

The tables below have each property of each request body, each query parameter and each part of a path
that proto/openapi.yaml knows; a case of its own compares. A wrong value is answered with 400, or what
the table says, as a problem document that names the field, on a connection that goes on; nothing of a
refused request is stored. Values are written as the bytes that are sent.
"""

import itertools
import json
import re

import api_contract
import lib
from lib import check, diagnose, equal

PROBLEM = "application/problem+json"
DEEP = 10_000

# ---- Wrong values -------------------------------------------------------------------------------

# One of each type; wrong for the fields that take another.
TYPES = {"null": b"null", "boolean": b"true", "number": b"7", "string": b'"a b\\n"', "array": b"[]",
         "object": b"{}"}

# JSON that is well-formed, and rarely a legal value.
ODD = {
    "empty": b'""',
    "a space": b'" "',
    "too long": b'"' + b"x" * 100_000 + b'"',
    "a control character": b'"x\\u0001y"',
    "a character beyond the BMP": b'"\\ud83d\\ude00"',
    "a path": b'"../x"',
    "a word for a number": b'"NaN"',
    "below 0": b"-1",
    "minus 0.5": b"-0.5",
    "2^31": b"2147483648",
    "2^53+1": b"9007199254740993",
    "-2^53-1": b"-9007199254740993",
    "2^63": b"9223372036854775808",
    "2^64": b"18446744073709551616",
    "1e400": b"1e400",
    "-1e400": b"-1e400",
    "1e-400": b"1e-400",
    "1.0e0": b"1.0e0",
    "false": b"false",
    "an array of it": b'["x"]',
    "an object of it": b'{"x":"x"}',
    "64 levels": b"[" * 63 + b"]" * 63,  # with the body around it
}
ODD_NUMBERS = {"below 0", "minus 0.5", "2^31", "2^53+1", "-2^53-1", "2^63", "2^64", "1e400", "-1e400",
               "1e-400", "1.0e0"}

# No acceptable JSON: refused wherever it stands, in a payload too.
BROKEN = {
    "nothing": b"",
    "65 levels": b"[" * 64 + b"]" * 64,
    "10,000 arrays": b"[" * DEEP + b"]" * DEEP,
    "10,000 arrays that do not end": b"[" * DEEP,
    "10,000 objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a duplicate key inside": b'{"a":1,"a":2}',
    "the same duplicate, escaped": b'{"a":1,"\\u0061":2}',
    "a byte that is no UTF-8": b'"\xff"',
    "half a character": b'"\xc3"',
    "an overlong form": b'"\xc0\xaf"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "beyond U+10FFFF": b'"\xf4\x90\x80\x80"',
    "U+0000": b'"a\0b"',
    "U+0000, escaped": b'"a\\u0000b"',
    "a lone surrogate": b'"\\ud800"',
    "a lone low surrogate": b'"\\udc00"',
    "surrogates in the wrong order": b'"\\udc00\\ud800"',
    "a line feed": b'"a\nb"',
    "an escape that does not exist": b'"\\x41"',
    "a leading 0": b"01",
    "a plus": b"+1",
    "half a number": b"1e",
    "hexadecimal": b"0x10",
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "a single quote": b"'x'",
    "a comment": b"/* x */ 1",
    "two values": b"1 2",
    "no end": b'"x',
}

# Of a query parameter or a part of a path, as it stands in the URL.
ODD_IN_URL = {
    "too long": "x" * 2000,
    "a space": "%20x",
    "a line feed": "x%0A",
    "a control character": "x%01y",
    "null": "null%20",
    "an array": "%5B1%5D%0A",
    "an object": "%7B%22a%22%3A1%7D%0A",
    "10,000 deep": "[" * DEEP,
    "below 0": "-1%20",
    "a fraction": "1.5%20",
    "2^53+1": "9007199254740993",
    "2^64": "18446744073709551616",
    "1e400": "1e400",
}
BROKEN_IN_URL = {
    "half an escape": "%",
    "half an escape, with a digit": "x%4",
    "an escape of no digits": "%zz",
    "U+0000": "a%00b",
    "a byte that is no UTF-8": "%FF",
    "half a character": "%C3",
    "an overlong form": "%C0%AF",
    "a surrogate in UTF-8": "%ED%A0%80",
    "beyond U+10FFFF": "%F4%90%80%80",
}
TOO_LONG_FOR_ANY = "x" * 20_000  # 431


class Field:
    """types: what JSON types it takes; good: values that are taken; bad: more that are not; legal:
    names from ODD that are taken all the same; statuses: those refused with another status."""

    def __init__(self, types, good, bad=(), legal=(), statuses=None, required=False):
        self.types = types.split()
        self.good = list(good)
        self.bad = list(bad)
        self.legal = set(legal)
        self.statuses = statuses or {}
        self.required = required
        check(not self.legal - set(ODD), f"{self.legal} are not in the list")

    def wrong(self):
        """Name, value and status of each that has to be refused."""
        for kind, value in TYPES.items():
            if kind not in self.types:
                yield f"the type {kind}", value, 400
        for value in self.bad:
            yield value.decode("latin-1")[:40], value, 400
        for name, value in {**ODD, **BROKEN}.items():
            if name not in self.legal:
                yield name, value, self.statuses.get(name, 400)

    def right(self):
        yield from ((value.decode("latin-1")[:40], value) for value in self.good)
        yield from ((name, ODD[name]) for name in sorted(self.legal))


def texts(*values):
    return [json.dumps(value).encode() for value in values]


def name_field(**more):
    return Field("string", texts("x", "A-Z.a_z", "x" * 128),
                 texts("x" * 129, "a b", "a/b", "..", ".", "é", "x?", "x%"), **more)


def time_field():
    return Field("string number",
                 texts("2030-01-31T12:00:00Z", "2030-01-31T12:00:00.123+08:00") + [b"0", b"-1000"],
                 texts("", "tomorrow", "2030-01-31", "2030-01-31T12:00:00", "2030-02-30T12:00:00Z",
                       "2030-01-31T24:00:01Z", "9999-12-31T23:59:59Z") +
                 [b"1.5", b"1e12", b"-62167219200001", b"253402300800000"],
                 legal=("below 0", "2^31"))


def duration_field(least, most, legal=()):
    """least, most: the good ones at the ends."""
    return Field("string number", [b'"1m"', b'"PT1M"', b'"60"', b"60", b"60.5", least, most],
                 texts("", "x", "-1s", "1m1m", "1x", "PT", "P1Y") + [b"1e3"], legal)


def int_field(least, most):
    return Field("number", [b"%d" % least, b"%d" % most],
                 [b"%d" % (least - 1), b"%d" % (most + 1), b"1.5", b"1.0", b"1e1", b'"1"'])


def url_field(**more):
    return Field("string", texts("http://127.0.0.1:9", "https://h.example/a/b", "http://[::1]:9/"),
                 texts("x", "http://", "ftp://h/", "//h/", "http://u@h/", "http://h/?q", "http://h/#f",
                       "http://h:0/", "http://h:65536/", "http://h/a/../b", "http://h/%2e/b",
                       "http://169.254.169.254/", "http://h/ b", "http://h/\n",
                       "http://h/" + "x" * 2048), **more)


POLICY = Field("string", [b'"default"'], texts("x", "Default", "default "))
ANYTHING = Field("null boolean number string array object",
                 [b"18446744073709551615", b"1.10", b'{"a":[1,null]}', b'"\\ud83d\\ude00"'],
                 legal=set(ODD) - {"too long"}, statuses={"too long": 413})
SUBMISSION = {
    "bizUuid": Field("string", texts("x", "é" * 64, "a/b?c%d", "x" * 128),
                     texts("x" * 129, "é" * 65, " x", "x ", "x\u3000", "x\n", "x\x7fy", "x\u0085y"),
                     legal=("a character beyond the BMP", "a path", "a word for a number"),
                     required=True),
    "serviceName": name_field(required=True, legal=("a word for a number",)),
    "handler": name_field(required=True, legal=("a word for a number",)),
    "executeTime": time_field(),
    "delay": duration_field(b"0", b'"3650d"'),
    "payload": ANYTHING,
    "maxRetry": int_field(0, 1000),
    "policy": POLICY,
    "priority": int_field(0, 9),
    "timeout": duration_field(b"0.001", b'"24h"'),
    "onConflict": Field("string", texts("return", "reject", "replace"), texts("RETURN", "return ")),
}
TRUE_OR_FALSE = Field("boolean", [b"true"], legal=("false",))
TEXT = Field("string", texts("no stock"), legal=("empty", "a space", "too long", "a control character",
                                                 "a character beyond the BMP", "a path",
                                                 "a word for a number"))

RESULT = {
    "success": TRUE_OR_FALSE,
    "retryable": TRUE_OR_FALSE,
    "message": TEXT,
    "retryAfter": duration_field(b"0", b'"36500d"', legal=("2^31",)),
    "snooze": duration_field(b"0", b'"36500d"', legal=("2^31",)),
}
ATTEMPT = {
    "traceId": Field("string", texts("7ffffffffffffff0a3c1d2e4f5061728"),
                     texts("x", "7FFFFFFFFFFFFFF0A3C1D2E4F5061728", "0" * 32, "8" + "0" * 31),
                     required=True),
    "attempt": Field("number", [b"1", b"2147483647"], [b"0", b"-1", b"1.5", b"1e1", b'"1"'],
                     required=True),
}
ONE_ATTEMPT = [b'[{"traceId":"7ffffffffffffff0a3c1d2e4f5061728","attempt":1,"success":true}]']
TOO_MANY = [b"[]", b"[" + b"{}," * 1000 + b"{}]"]
# The array that holds the objects of a call in bulk.
ARRAYS = {"submitTasks": "tasks", "reportResults": "results", "reportHeartbeats": "attempts"}
# By operation: the properties of its body. "tasks[].x": of each object in the array.
BODIES = {
    "submitTask": SUBMISSION,
    "submitTasks": {
        "tasks": Field("array", [b'[{"bizUuid":"t","serviceName":"fields","handler":"h"}]'],
                       [b"[]", b"[" + b"{}," * 1000 + b"{}]"], legal=("an array of it", "64 levels"),
                       required=True),
        **{f"tasks[].{name}": field for name, field in SUBMISSION.items()}},
    "changeTask": {name: SUBMISSION[name] for name in ("executeTime", "delay", "payload")},
    "runTask": {},
    "notifyTask": {},
    "reportResult": RESULT,
    "reportResults": {
        "results": Field("array", ONE_ATTEMPT, TOO_MANY, legal=("an array of it", "64 levels"),
                         required=True),
        **{f"results[].{name}": field for name, field in {**ATTEMPT, **RESULT}.items()}},
    "reportHeartbeats": {
        "attempts": Field("array", [ONE_ATTEMPT[0].replace(b',"success":true', b"")], TOO_MANY,
                          legal=("an array of it", "64 levels"), required=True),
        **{f"attempts[].{name}": field for name, field in ATTEMPT.items()},
        "attempts[].extend": duration_field(b"0.001", b'"24h"')},
    "leaseTasks": {
        "maxTasks": int_field(1, 1000),
        "wait": Field("string number", [b'"0s"', b"0", b'"10ms"', b'"PT0.01S"', b"0.01"],
                      texts("", "x", "-1s", "61s", "1m1s", "PT", "P1Y") + [b"60.001", b"1e1"]),
        "visibility": duration_field(b"0.001", b'"24h"'),
        "worker": name_field(legal=("a word for a number",)),
    },
    "reportHeartbeat": {"extend": duration_field(b"0.001", b'"24h"')},
    "putService": {
        "baseUrl": url_field(),
        "secret": Field("string", texts("x" * 16, "x" * 128,
                                        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
                        texts("x" * 15, "x" * 129, "whsec_abc", "whsec_", " " + "x" * 16,
                              "x" * 16 + "\n")),
        "shards": int_field(1, 256),
        "concurrency": int_field(1, 10000),
        "timeout": duration_field(b"0.001", b'"24h"'),
        "policy": POLICY,
        "delivery": Field("object", [b'{"mode":"push"}', b'{"mode":"batch"}', b'{"mode":"pull"}',
                                     b'{"mode":"batch","maxSize":1,"maxWait":0}',
                                     b'{"maxWait":"1s","maxSize":1000,"mode":"batch"}'],
                          [b'{"mode":"Push"}', b'{"mode":1}', b'{"mode":null}', b'{"maxSize":5}',
                           b'{"mode":"batch","maxSize":0}', b'{"mode":"batch","maxSize":1001}',
                           b'{"mode":"batch","maxSize":"1"}', b'{"mode":"batch","maxWait":1.001}',
                           b'{"mode":"batch","maxWait":"-1s"}', b'{"mode":"push","maxSize":5}',
                           b'{"mode":"pull","maxWait":"5ms"}', b'{"mode":"push","size":5}']),
    },
    "drainNode": {},
    "resumeNode": {},
    "pauseService": {},
    "resumeService": {},
    "registerInstance": {
        "instance": Field("string", texts("x", "10.0.0.7:8080", "x" * 128),
                          texts("x" * 129, "[::1]:80", "a b", "a/b", "..", ".", "é", "x?"),
                          legal=("a word for a number",), required=True),
        "baseUrl": url_field(required=True),
        "ttl": duration_field(b'"1s"', b'"10m"'),
    },
}


class UrlField:
    """The same for what stands in a URL. `legal`: names from ODD_IN_URL."""

    def __init__(self, good, bad, legal=()):
        self.good, self.bad, self.legal = good, bad, set(legal)
        check(not self.legal - set(ODD_IN_URL), f"{self.legal} are not in the list")

    def wrong(self):
        for value in self.bad:
            yield value[:40], value
        for name, value in ODD_IN_URL.items():
            if name not in self.legal:
                yield name, value

    def right(self):
        yield from ((value[:40], value) for value in self.good)
        yield from ((name, ODD_IN_URL[name]) for name in sorted(self.legal))


NUMBERS = ("2^53+1", "2^64", "1e400")  # are names, too
URL_NAME = UrlField(["x", "A-Z.a_z", "x" * 128, "%61"],
                    ["x" * 129, "a%20b", "a%2Fb", "..", ".", "%2E", "%C3%A9", "x%3F", "%25"], NUMBERS)
URL_TIME = UrlField(["0", "-1", "1900000000000", "2030-01-31T12:00:00Z", "2030-01-31T12:00:00+08:00"],
                    ["x", "1.5", "1e12", "2030-01-31", "2030-02-30T12:00:00Z", "-62167219200001",
                     "253402300800000"])
# By operation and name.
QUERY = {
    "cluster": {"service": URL_NAME},
    "listTasks": {
        "status": UrlField(["PENDING", "FAILED,SENT", "FAILED,FAILED"],
                           ["failed", "FAILED,", ",", "FAILED%20", "NONE"]),
        "service": URL_NAME,
        "handler": URL_NAME,
        "from": URL_TIME,
        "to": URL_TIME,
        "limit": UrlField(["1", "200"], ["0", "201", "-1", "1.0", "%2B1", "1e1", "x"]),
        "cursor": UrlField(["7fffffffffffffff", "0000000000000001"],
                           ["x", "7FFFFFFFFFFFFFFF", "0000000000000000", "8000000000000000",
                            "7fffffffffffffff0"]),
    },
}
# By name: the same in all calls.
PATHS = {
    "bizUuid": UrlField(["x", "%C3%A9" * 64, "a%2Fb%3Fc%25d", "x" * 128, "%F0%9F%98%80"],
                        ["x" * 129, "%C3%A9" * 65, "%20x", "x%20", "x%7F"], NUMBERS),
    "traceId": UrlField(["7ffffffffffffff0a3c1d2e4f5061728"],
                        ["x", "0", "7FFFFFFFFFFFFFF0A3C1D2E4F5061728", "7ffffffffffffff0a3c1d2e4f506172",
                         "7ffffffffffffff0a3c1d2e4f50617280", "0" * 32, "8" + "0" * 31]),
    "attempt": UrlField(["1", "2147483647"], ["0", "-1", "2147483648", "1.0", "1x", "%201", "%2B1", "x"]),
    "name": URL_NAME,
    "instance": UrlField([*URL_NAME.good, "10.0.0.7:8080"],
                         URL_NAME.bad, NUMBERS),
}
# As a body whole.
NO_BODIES = {
    "null": b"null", "true": b"true", "a number": b"7", "a string": b'"x"', "an array": b"[]",
    "half an object": b"{", "two objects": b"{}{}", "a byte-order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"x":1}'.encode("utf-16"), "a key that is no string": b"{1:1}", "spaces": b"  ",
    "a comma too many": b'{"x":1,}', "10,000 arrays": b"[" * DEEP, "no JSON": b"x=1&y=2",
    "a key that is no UTF-8": b'{"\xff":1}', "a key with U+0000": b'{"\\u0000":1}',
    "an empty key": b'{"":1}', "a long key": b'{"' + b"k" * 100_000 + b'":1}',
}


# ---- The stage ----------------------------------------------------------------------------------

class Stage:
    """A node, and for each call something that it can be made on. Nothing of it changes by itself:
    what is due waits in services that are paused."""

    N_LIVE = 60

    def __init__(self, kind, folder):
        self.document = api_contract.Document(api_contract.DOCUMENT.read_text(encoding="utf-8"))
        self.store = lib.STORES[kind](folder)
        self.receiver = lib.Receiver(lambda delivery: 202)
        self.node = lib.Node(folder, self.store.url).start()
        self.serial = itertools.count()
        for service in ("fields", "live", "other"):
            self.node.register(service, self.receiver.url)
        self.node.client.put("/api/services/pulled", {"delivery": {"mode": "pull"}, "timeout": "10m"})
        self.node.client.post("/api/services/fields/pause")
        self.node.submit("target", "fields", delay="1h")
        for i in range(self.N_LIVE):
            self.node.submit(f"live-{i}", "live")
        self.live = [self.node.wait_status(f"live-{i}", "SENT") for i in range(self.N_LIVE)]
        self.node.client.post("/api/services/live/pause")

    def close(self):
        self.node.close()
        self.receiver.close()
        self.store.close()

    def stored(self):
        """All that calls store; what instances of other cases there are comes and goes."""
        tables = [name for name, in self.store.query(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            if name not in ("job_node", "job_id_block", "job_instance")]
        check("job_delay_task" in tables and "job_service" in tables, f"tables: {tables}")
        dump = {name: self.store.query(f"SELECT * FROM {name}") for name in tables}
        dump["job_instance"] = self.store.query(
            "SELECT * FROM job_instance WHERE service_name = 'refused'")
        return dump

    def base(self, operation_id, field):
        """The members that a body with the field needs."""
        submission = {"bizUuid": b'"f-%d"' % next(self.serial), "serviceName": b'"fields"',
                      "handler": b'"h"', "delay": b'"1h"'}
        in_batch = "[]." in field
        field = field.rsplit("[].", 1)[-1]
        attempt = {"traceId": b'"7ffffffffffffff0a3c1d2e4f5061728"', "attempt": b"1"}
        result = {} if field == "snooze" else {"success": b"false"}
        if field == "executeTime":
            del submission["delay"]
        base = {
            "submitTask": submission,
            "submitTasks": submission if in_batch else {},
            "reportResults": {**attempt, **result} if in_batch else {},
            "reportHeartbeats": attempt if in_batch else {},
            "leaseTasks": {"wait": b"0"},
            "changeTask": {} if field else {"payload": b"1"},
            "reportResult": result,
            "putService": {"baseUrl": b'"http://127.0.0.1:9/"'},
            "registerInstance": {"instance": b'"i"', "baseUrl": b'"http://127.0.0.1:9/"'},
        }.get(operation_id, {})
        base.pop(field, None)
        return base

    def path(self, operation_id, refused=True, **values):
        """With good parts, but for those given."""
        _, template, _ = self.document.operations[operation_id]
        task = self.live[0]
        if operation_id == "reportResult" and not refused:
            task = self.live.pop()
        name = "other"
        if operation_id in ("putService", "registerInstance"):
            name = "refused" if refused else "taken"
        elif operation_id == "leaseTasks":
            name = "pulled"
        parts = {"bizUuid": "target", "traceId": task["traceId"], "attempt": str(task["attempt"]),
                 "name": name, "instance": "i", **values}
        return re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], template)

    def send(self, operation_id, path, body=None):
        method, _, operation = self.document.operations[operation_id]
        if body is None and operation.get("requestBody", {}).get("required"):
            body = members(self.base(operation_id, ""))
        return self.node.client.request(method.upper(), path, body)


def members(pairs):
    pairs = pairs.items() if isinstance(pairs, dict) else pairs
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), value) for name, value in pairs) + b"}"


def about(problem, status, field):
    """What is wrong with a problem document, or None."""
    if problem.get("status") != status:
        return f"status {problem.get('status')} instead of {status}: {problem}"
    named = problem.get("field")
    if field is not None and named != field and not str(named).startswith(f"{field}."):
        return f"the field {named} instead of {field}: {problem}"
    kinds = {400: ("invalid-json", "invalid-field", "missing-field", "unknown-field"),
             413: ("too-large",)}
    if problem["type"].rsplit(":", 1)[1] not in kinds.get(status, (problem["type"].rsplit(":", 1)[1],)):
        return f"the type {problem['type']}"
    return None


def refusal(answer, status, field):
    """What is wrong with an answer that has to be a refusal, or None."""
    if answer.status != status:
        return f"{answer.status} instead of {status}: {str(answer.body)[:300]}"
    if answer.headers.get("content-type") != PROBLEM:
        return f"the type {answer.headers.get('content-type')}"
    if status != 431 and answer.headers.get("connection") == "close":
        return "the connection ends"
    return about(answer.body, status, field)


def none_wrong(wrong):
    wrong = [f"{name}: {what}" for name, what in wrong if what]
    for line in wrong[:20]:
        diagnose(line)
    check(not wrong, f"{len(wrong)} values are not answered as they have to be")


# ---- Cases: bodies ------------------------------------------------------------------------------

class Body:
    """One property of one call's body."""

    def __init__(self, stage, operation_id, path):
        self.stage, self.operation_id, self.path = stage, operation_id, path
        self.array = ARRAYS.get(operation_id)
        self.name = path.rsplit("[].", 1)[-1]
        self.in_batch = path != self.name
        self.field = BODIES[operation_id][path]

    def text(self, pairs):
        """The whole body with the property's own pairs at its end."""
        inside = members([*self.stage.base(self.operation_id, self.path).items(), *pairs])
        return b'{"%b":[%b]}' % (self.array.encode(), inside) if self.in_batch else inside

    def refused(self, pairs, status=400, field=None, broken=False):
        """What is wrong with the answer. A task of a batch is refused in its place; what is no JSON
        fails the batch."""
        answer = self.stage.send(self.operation_id, self.stage.path(self.operation_id),
                                 self.text(pairs))
        field = self.name if field is None else field
        if not self.in_batch:
            return refusal(answer, status, field)
        if broken:
            return refusal(answer, 400, self.array)
        if answer.status != 200:
            return f"the batch: {answer.status}"
        result = answer.body["results"][0]
        if result["status"] != status:
            return f"{result['status']} instead of {status}: {str(result)[:300]}"
        return about(result["problem"], status, field)

    def wrong_values(self):
        for name, value, status in self.field.wrong():
            too_deep = self.in_batch and name == "64 levels"
            yield name, self.refused([(self.name, value)], status,
                                     broken=name in BROKEN or too_deep)
        good = self.field.good[0]
        if self.field.required:
            yield "missing", self.refused([])
        yield "twice", self.refused([(self.name, good), (self.name, good)], broken=True)
        yield "beside an unknown one", self.refused([(self.name, good), (f"{self.name}X", b"1")],
                                                    field=f"{self.name}X")
        if not self.array or self.in_batch:
            yield "in capitals", self.refused([(self.name.upper(), good)], field=self.name.upper())

    def right_values(self):
        for name, value in self.field.right():
            if self.in_batch and name == "64 levels":
                continue
            answer = self.stage.send(self.operation_id,
                                     self.stage.path(self.operation_id, refused=False),
                                     self.text([(self.name, value)]))
            status = answer.status
            if self.in_batch and status == 200:
                status = answer.body["results"][0]["status"]
            taken = (200, 201, 404) if self.in_batch else (200, 201)
            yield name, None if status in taken else f"{status}: {str(answer.body)[:300]}"

    def run(self):
        before = self.stage.stored()
        wrong = list(self.wrong_values())
        after = self.stage.stored()
        changed = [name for name in before if before[name] != after[name]]
        none_wrong(wrong)
        equal(changed, [], "tables that refused requests changed")
        none_wrong(self.right_values())


def body_is_an_object(s, operation_id):
    before = s.stored()
    path = s.path(operation_id)
    none_wrong((name, refusal(s.send(operation_id, path, body), 400, None))
               for name, body in NO_BODIES.items())
    _, _, operation = s.document.operations[operation_id]
    if operation_id == "leaseTasks":
        s.node.submit(f"leased-{next(s.serial)}", "pulled")  # or the empty body waits
    empty = s.send(operation_id, path, b"")
    if operation["requestBody"]["required"]:
        equal(refusal(empty, 400, None), None, "an empty body")
        equal(s.stored(), before, "what is stored")
    else:
        check(empty.status in (200, 202, 204), f"an empty body: {empty.status}")


# ---- Cases: URLs --------------------------------------------------------------------------------

def query_is_checked(s, operation_id, name):
    field = QUERY[operation_id][name]
    path = s.path(operation_id)

    def refused(query, wanted, status=400):
        return refusal(s.send(operation_id, f"{path}?{query}"), status, wanted)
    good = field.good[0]
    wrong = [(what, refused(f"{name}={value}", name)) for what, value in field.wrong()]
    wrong += [(what, refused(f"{name}={value}", name)) for what, value in BROKEN_IN_URL.items()]
    wrong += [
        ("too long for any", refused(f"{name}={TOO_LONG_FOR_ANY}", None, 431)),
        ("empty", refused(f"{name}=", name)),
        ("without a value", refused(name, name)),
        ("twice", refused(f"{name}={good}&{name}={good}", name)),
        ("beside an unknown one", refused(f"{name}={good}&{name}X=1", f"{name}X")),
        ("in capitals", refused(f"{name.upper()}={good}", name.upper())),
        ("a name that is no UTF-8", refused(f"{name}={good}&%FF=1", "query")),
    ]
    none_wrong(wrong)
    for what, value in field.right():
        answer = s.send(operation_id, f"{path}?{name}={value}")
        check(answer.status in (200, 404), f"{what}: {answer.status} {str(answer.body)[:300]}")


def path_is_checked(s, operation_id, name):
    field = PATHS[name]
    before = s.stored()

    def refused(value, wanted, status=400):
        return refusal(s.send(operation_id, s.path(operation_id, **{name: value})), status, wanted)
    wrong = [(what, refused(value, name)) for what, value in field.wrong()]
    wrong += [(what, refused(value, "path")) for what, value in BROKEN_IN_URL.items()]
    wrong.append(("too long for any", refused(TOO_LONG_FOR_ANY, None, 431)))
    wrong.append(("empty", refused("", None, 404)))
    none_wrong(wrong)
    equal(s.stored(), before, "what is stored")
    for what, value in field.right():
        answer = s.send(operation_id, s.path(operation_id, refused=False, **{name: value}))
        check(answer.status in (200, 201, 204, 404, 409),
              f"{what}: {answer.status} {str(answer.body)[:300]}")


# ---- Cases: the tables --------------------------------------------------------------------------

def properties_of(document, schema, prefix=""):
    """(path, schema, whether it is required) of all properties, those of arrays' objects too."""
    schema = document.resolve(schema)
    for name, child in schema.get("properties", {}).items():
        child = document.resolve(child)
        yield prefix + name, child, name in schema.get("required", [])
        if "items" in child:
            yield from properties_of(document, child["items"], f"{prefix}{name}[].")


def types_of(schema):
    types = schema.get("type", list(TYPES))
    return {"number" if t == "integer" else t for t in (types if isinstance(types, list) else [types])}


def tables_are_complete(document):
    """Each property of the document is in the tables with its types, and nothing else is."""
    documented, in_tables = {}, {}
    for key, (_, _, operation) in document.operations.items():
        for parameter in operation["parameters"]:
            documented[key, parameter["in"], parameter["name"]] = None
        content = operation.get("requestBody", {}).get("content", {})
        for media in content.values():
            for path, schema, required in properties_of(document, media["schema"]):
                documented[key, "body", path] = (types_of(schema), required)
        if content:
            check(key in BODIES, f"the body of {key} is not in the table")
    for key, fields in BODIES.items():
        for path, field in fields.items():
            in_tables[key, "body", path] = (set(field.types), field.required)
    for key, fields in QUERY.items():
        in_tables.update({(key, "query", name): None for name in fields})
    for key, where, name in documented:
        if where == "path" and name in PATHS:
            in_tables[key, where, name] = None
    equal(sorted(set(documented) - set(in_tables)), [], "in the document and not in the tables")
    equal(sorted(set(in_tables) - set(documented)), [], "in the tables and not in the document")
    differ = [(k, v, in_tables[k]) for k, v in documented.items() if v != in_tables[k]]
    equal(differ, [], "types and whether they are required")
    diagnose(f"{len(documented)} fields")


def the_node_is_well(s):
    equal(s.node.client.get("/readyz").status, 200, "readiness")
    bad = [line for line in s.node.log() if line["level"] == "error"]
    equal(bad, [], "errors in the log")


def cases_of(s):
    yield "every property in openapi.yaml is in the table", lambda: tables_are_complete(s.document)
    for key, (_, _, operation) in s.document.operations.items():
        for path in BODIES.get(key, {}):
            yield f"{key}, body: {path}", Body(s, key, path).run
        if "requestBody" in operation:
            yield f"{key}, body", lambda k=key: body_is_an_object(s, k)
        for parameter in operation["parameters"]:
            name, case = parameter["name"], None
            if parameter["in"] == "query" and name in QUERY.get(key, {}):
                case = query_is_checked
            elif parameter["in"] == "path" and name in PATHS:
                case = path_is_checked
            if case:
                yield f"{key}, {parameter['in']}: {name}", lambda c=case, k=key, n=name: c(s, k, n)
    yield "the node is well", lambda: the_node_is_well(s)


if __name__ == "__main__":
    lib.main(Stage, cases_of)
