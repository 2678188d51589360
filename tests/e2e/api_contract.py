#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds proto/openapi.yaml against a running node: api_contract.py (URL | sqlite | postgres).

With a URL it talks to that node (and leaves some tasks and a service behind); with a store's kind it
starts a node of its own. Every operation of the document is called with its examples, then in a
story that reaches every documented success; each answer's status, type and body have to be as
documented. What is not documented has to be refused. Only the standard library and PyYAML.
"""

import http.client
import http.server
import json
import pathlib
import re
import sys
import threading
import time
import urllib.parse

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "proto" / "openapi.yaml"
METHODS = ("get", "put", "post", "delete", "options", "patch", "trace")
RUN = f"{time.time_ns():x}"  # keeps this run's keys apart from those of other runs


class Wrong(Exception):
    """Something is not as documented."""


# ---- The document -------------------------------------------------------------------------------

class Document:
    def __init__(self, text):
        self.root = yaml.safe_load(text)
        self.operations = {}  # operationId → (method, path template, operation)
        for path, item in self.root["paths"].items():
            for method, operation in item.items():
                if method in METHODS:
                    key = operation["operationId"]
                    if key in self.operations:
                        raise Wrong(f"operationId {key} stands twice")
                    operation = dict(operation)
                    operation["parameters"] = [
                        self.resolve(p) for p in
                        item.get("parameters", []) + operation.get("parameters", [])]
                    self.operations[key] = (method, path, operation)

    def resolve(self, node):
        """Follows $ref; keywords beside it go on top."""
        while isinstance(node, dict) and "$ref" in node:
            target = self.root
            for part in node["$ref"].removeprefix("#/").split("/"):
                if part not in target:
                    raise Wrong(f"{node['$ref']} leads nowhere")
                target = target[part]
            node = {**target, **{k: v for k, v in node.items() if k != "$ref"}}
        return node

    def methods_at(self, path):
        """What any template that fits the concrete path documents, in capitals."""
        found = set()
        for method, template, _ in self.operations.values():
            pattern = re.sub(r"\\\{[^/]+\\\}", "[^/]+", re.escape(template))
            if re.fullmatch(pattern, path):
                found.add(method.upper())
        return found


TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
}
KEYWORDS = {"type", "enum", "required", "properties", "additionalProperties", "items", "format",
            "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
            "minProperties", "description", "default", "example"}
DATE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def validate(document, schema, value, where="body"):
    """A small validator; check_keywords sees to it that no schema asks for more."""
    schema = document.resolve(schema)
    check_type(schema, value, where)
    if "enum" in schema and value not in schema["enum"]:
        raise Wrong(f"{where}: {value!r} is none of {schema['enum']}")
    if isinstance(value, str):
        check_string(schema, value, where)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            raise Wrong(f"{where}: {value} is out of range")
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            raise Wrong(f"{where}: {len(value)} items")
        for i, item in enumerate(value):
            validate(document, schema.get("items", {}), item, f"{where}[{i}]")
    elif isinstance(value, dict):
        check_object(document, schema, value, where)


def check_type(schema, value, where):
    types = schema.get("type", list(TYPES))
    types = types if isinstance(types, list) else [types]
    if not any(TYPES[name](value) for name in types):
        raise Wrong(f"{where}: {value!r} is no {'/'.join(types)}")


def check_string(schema, value, where):
    if schema.get("format") == "date-time" and not DATE_TIME.fullmatch(value):
        raise Wrong(f"{where}: {value!r} is no date-time in UTC with milliseconds")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        raise Wrong(f"{where}: {value!r} does not match {schema['pattern']}")
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        raise Wrong(f"{where}: {len(value)} characters")


def check_object(document, schema, value, where):
    properties = schema.get("properties", {})
    missing = set(schema.get("required", [])) - set(value)
    if missing:
        raise Wrong(f"{where}: {missing} are missing")
    if len(value) < schema.get("minProperties", 0):
        raise Wrong(f"{where}: too few members")
    for key, member in value.items():
        if key in properties:
            validate(document, properties[key], member, f"{where}.{key}")
        elif schema.get("additionalProperties", True) is False:
            raise Wrong(f"{where}: {key} is not documented")


def check_keywords(schema, where):
    """Of a schema and all that is in it."""
    unknown = set(schema) - KEYWORDS - {"$ref"}
    if unknown:
        raise Wrong(f"{where}: the schema has keywords that are not checked: {unknown}")
    for name, child in schema.get("properties", {}).items():
        check_keywords(child, f"{where}.{name}")
    if "items" in schema:
        check_keywords(schema["items"], f"{where}[]")


def examples_of(media):
    if "example" in media:
        yield "example", media["example"]
    for name, example in media.get("examples", {}).items():
        yield name, example["value"]


# ---- Calling ------------------------------------------------------------------------------------

class Answer:
    def __init__(self, response, text):
        self.status = response.status
        self.headers = {k.lower(): v for k, v in response.getheaders()}
        self.type = self.headers.get("content-type", "").split(";")[0]
        self.text = text
        self.body = json.loads(text) if text and "json" in self.type else text.decode()


class Contract:
    """The document, a node, and what was seen of both."""

    def __init__(self, url):
        self.document = Document(DOCUMENT.read_text(encoding="utf-8"))
        parts = urllib.parse.urlsplit(url)
        self.address = (parts.hostname, parts.port or 80)
        self.seen = set()  # (operationId, status)

    def send(self, method, path, data=None, content_type=None):
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        try:
            headers = {"Content-Type": content_type} if content_type else {}
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return Answer(response, response.read())
        finally:
            connection.close()

    def call(self, operation_id, params=None, query=None, body=None, raw=None):
        """Calls an operation and checks the answer against the document. `body` is a JSON value, or
        `raw` a pair of bytes and content type; parameters without a value take their example."""
        method, template, operation = self.document.operations[operation_id]
        values = {p["name"]: p["example"] for p in operation["parameters"] if p["in"] == "path"}
        values.update(params or {})
        path = template
        for name, value in values.items():
            path = path.replace("{%s}" % name, urllib.parse.quote(str(value), safe=""))
        if query:
            path += "?" + urllib.parse.urlencode(query)
        if body is not None:
            raw = (json.dumps(body).encode(), "application/json")
        answer = self.send(method.upper(), path, *(raw or (None, None)))
        try:
            self.check_answer(operation_id, operation, answer)
        except Wrong as wrong:
            raise Wrong(f"{method.upper()} {path} → {answer.status}: {wrong}") from wrong
        return answer

    def check_answer(self, operation_id, operation, answer):
        documented = operation["responses"].get(str(answer.status))
        if documented is None:
            raise Wrong(f"the status is not documented: {answer.text[:300]!r}")
        documented = self.document.resolve(documented)
        self.seen.add((operation_id, answer.status))
        for name, header in documented.get("headers", {}).items():
            if header.get("required") and name.lower() not in answer.headers:
                raise Wrong(f"the header {name} is missing")
        content = documented.get("content")
        if content is None:
            if answer.text:
                raise Wrong("a body that is not documented")
            return
        if answer.type not in content:
            raise Wrong(f"the type {answer.type} is not documented")
        validate(self.document, content[answer.type].get("schema", {}), answer.body)
        if answer.status >= 400 and answer.body["status"] != answer.status:
            raise Wrong("the problem names another status")

    def expect(self, status, operation_id, **more):
        answer = self.call(operation_id, **more)
        if answer.status != status:
            raise Wrong(f"{operation_id}: {answer.status} instead of {status}: "
                        f"{answer.text[:300]!r}")
        return answer.body


# ---- Cases --------------------------------------------------------------------------------------

def document_is_sound(contract):
    """References lead somewhere, examples are as their schemas say."""
    document = contract.document
    if not document.root["openapi"].startswith("3.1"):
        raise Wrong("not OpenAPI 3.1")

    def walk(node):
        if isinstance(node, dict):
            document.resolve(node)
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)
    walk(document.root)
    for name, schema in document.root["components"]["schemas"].items():
        check_keywords(schema, name)
    for key, (_, _, operation) in document.operations.items():
        for word in ("summary", "tags", "responses"):
            if word not in operation:
                raise Wrong(f"{key} has no {word}")
        media = list(operation.get("requestBody", {}).get("content", {}).values())
        for response in operation["responses"].values():
            media += document.resolve(response).get("content", {}).values()
        for one in media:
            for name, value in examples_of(one):
                if key == "submitTasks" and name == "two":
                    continue  # has a bad task on purpose
                validate(document, one["schema"], value, f"{key}.{name}")
        for parameter in operation["parameters"]:
            if "example" not in parameter:
                raise Wrong(f"{key}: the parameter {parameter['name']} has no example")
            validate(document, parameter["schema"], parameter["example"], parameter["name"])


def document_and_routes_agree(contract):
    """The server's table of routes and its kinds of problems, from their source."""
    routes = set()
    problems = set()
    for source in sorted((ROOT / "node" / "api").glob("*.c")):
        text = source.read_text(encoding="utf-8")
        routes |= {(verb.lower(), path) for verb, path in
                   re.findall(r'\{\s*VERB_([A-Z]+),\s*"([^"]+)"', text)}
        problems |= set(re.findall(r'TYPE\("([a-z-]+)"\)', text))
    routes = {(verb, path) for verb, path in routes if not path.startswith("/internal/")}
    documented = {(method, path) for method, path, _ in contract.document.operations.values()}
    if routes != documented:
        raise Wrong(f"only in the server: {routes - documented}; only in the document: "
                    f"{documented - routes}")
    kinds = contract.document.root["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    named = {kind.removeprefix("urn:jobflow:problem:") for kind in kinds}
    if problems != named:
        raise Wrong(f"kinds of problems differ: {problems ^ named}")


def node_serves_the_document(contract):
    if contract.call("openapi").text != DOCUMENT.read_bytes():
        raise Wrong("/openapi.yaml is another document")


def examples_work(contract, operation_id):
    """With each example of its body, each query parameter, and all of them together."""
    _, _, operation = contract.document.operations[operation_id]
    query = {p["name"]: p["example"] for p in operation["parameters"] if p["in"] == "query"}
    contract.call(operation_id)
    for name, value in query.items():
        contract.expect(200, operation_id, query={name: value})
    if query:
        contract.expect(200, operation_id, query=query)
    content = operation.get("requestBody", {}).get("content", {})
    for _, body in examples_of(content.get("application/json", {})):
        answer = contract.call(operation_id, body=body)
        if answer.status >= 500 or answer.status == 400:
            raise Wrong(f"an example is answered with {answer.status}: {answer.text[:300]!r}")


def bad_requests_are_as_documented(contract, operation_id):
    method, template, operation = contract.document.operations[operation_id]
    if "requestBody" in operation:
        contract.expect(400, operation_id, raw=(b'{"x":', "application/json"))
        contract.expect(400, operation_id, raw=(b'{"x":1}', None))
        contract.expect(415, operation_id, raw=(b"x=1", "application/x-www-form-urlencoded"))
        big = b'{"x":"' + b"x" * (9 << 20) + b'"}'
        contract.expect(413, operation_id, raw=(big, "application/json"))
    if "{" in template:
        path = re.sub(r"\{[^/]+\}", "%FF", template)
        answer = contract.send(method.upper(), path)
        contract.check_answer(operation_id, operation, answer)
        if answer.status != 400:
            raise Wrong(f"{path}: {answer.status} instead of 400")


def other_methods_are_refused(contract):
    allowed = {"GET": ["GET", "HEAD"]}
    for path in contract.document.root["paths"]:
        concrete = re.sub(r"\{[^/]+\}", "1", path)
        documented = contract.document.methods_at(concrete)
        wanted = sorted(m for d in documented for m in allowed.get(d, [d]))
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            if method in documented:
                continue
            answer = contract.send(method, concrete)
            if answer.status != 405:
                raise Wrong(f"{method} {concrete}: {answer.status} instead of 405")
            validate(contract.document, {"$ref": "#/components/schemas/Problem"}, answer.body)
            told = sorted(answer.headers.get("allow", "").split(", "))
            if told != wanted:
                raise Wrong(f"{method} {concrete}: Allow is {told} instead of {wanted}")


def other_paths_are_refused(contract):
    for path in ("/", "/api", "/api/", "/api/delay-tasks/", "/api/nothing", "/metrics/x",
                 "/api/services/s/x"):
        answer = contract.send("GET", path)
        if answer.status != 404:
            raise Wrong(f"{path}: {answer.status} instead of 404")
        validate(contract.document, {"$ref": "#/components/schemas/Problem"}, answer.body)


def head_is_get_without_body(contract):
    for operation_id in ("listServices", "health", "openapi", "getService"):
        method, path, _ = contract.document.operations[operation_id]
        path = path.replace("{name}", "nobody")
        got, head = contract.send(method.upper(), path), contract.send("HEAD", path)
        if head.status != got.status or head.text:
            raise Wrong(f"HEAD {path} differs from GET")
        if head.headers["content-length"] != str(len(got.text)):
            raise Wrong(f"HEAD {path}: Content-Length {head.headers['content-length']}")


class Receiver:
    """Answers every task with 202, so that its result is owed."""

    def __init__(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # pylint: disable=invalid-name
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):  # pylint: disable=arguments-differ
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/base"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def accepted(contract, service, key):
    """Submits a task and waits until its result is owed."""
    contract.expect(201, "submitTask", body={"bizUuid": key, "serviceName": service,
                                             "handler": "h"})
    end = time.monotonic() + 30
    while time.monotonic() < end:
        task = contract.expect(200, "getTask", params={"bizUuid": key})
        if task["status"] == "SENT":
            return task
        time.sleep(0.02)
    raise Wrong(f"{key} is {task['status']} and not SENT")


def story_of_a_task(contract):
    key = {"bizUuid": f"contract/{RUN}"}
    task = {**key, "serviceName": "contract-a", "handler": "h", "delay": "1h", "payload": {"n": 1.10}}
    new = contract.expect(201, "submitTask", body=task)
    again = contract.expect(200, "submitTask", body={**task, "payload": 2})
    if again["traceId"] != new["traceId"] or again["mismatch"] != ["payload"]:
        raise Wrong(f"the duplicate is {again}")
    contract.expect(409, "submitTask", body={**task, "handler": "other"})
    contract.expect(409, "submitTask", body={**task, "onConflict": "reject"})
    replaced = contract.expect(200, "submitTask", body={**task, "onConflict": "replace"})
    if replaced.get("replaced") is not True:
        raise Wrong(f"the replaced task is {replaced}")
    contract.expect(413, "submitTask", body={**task, "payload": "x" * (1 << 20)})
    contract.expect(200, "getTrace", params={"traceId": new["traceId"]})
    contract.expect(200, "changeTask", params=key, body={"delay": "2h", "payload": None})
    contract.expect(204, "notifyTask", params=key)
    explained = contract.expect(200, "explainTask", params=key)
    if explained["gate"] != "time":
        raise Wrong(f"it is explained by {explained}")
    batch = contract.expect(200, "submitTasks", body={"tasks": [
        task, {**task, "bizUuid": f"contract/{RUN}/2"}, {**task, "priority": 10}, 5]})
    statuses = [result["status"] for result in batch["results"]]
    if statuses != [200, 201, 400, 400]:
        raise Wrong(f"the batch has {statuses}")
    page = contract.expect(200, "listTasks", query={"service": "contract-a", "limit": 1})
    if len(page["tasks"]) != 1 or page["nextCursor"] is None:
        raise Wrong(f"the page is {page}")
    contract.expect(200, "listTasks", query={"cursor": page["nextCursor"]})
    contract.expect(200, "cancelTask", params=key)
    contract.expect(200, "cancelTask", params=key)
    contract.expect(409, "changeTask", params=key, body={"delay": 1})
    contract.expect(409, "runTask", params=key)
    contract.expect(200, "explainTask", params=key)


def story_of_an_asynchronous_handler(contract):
    receiver = Receiver()
    service = f"contract-b-{RUN}"
    try:
        contract.expect(201, "putService", params={"name": service},
                        body={"baseUrl": receiver.url})
        key = f"contract/{RUN}/done"
        task = accepted(contract, service, key)
        live = {"traceId": task["traceId"], "attempt": task["attempt"]}
        contract.expect(200, "reportHeartbeat", params=live)
        contract.expect(200, "reportHeartbeat", params=live, body={"extend": "5m"})
        contract.expect(409, "reportHeartbeat", params={**live, "attempt": 99})
        contract.expect(409, "reportResult", params={**live, "attempt": 99}, body={"success": True})
        contract.expect(409, "cancelTask", params={"bizUuid": key})
        for _ in range(2):
            done = contract.expect(200, "reportResult", params=live, body={"success": True})
            if done["status"] != "SUCCESS":
                raise Wrong(f"the result is {done}")
        contract.expect(409, "reportResult", params=live, body={"success": False})
        key = f"contract/{RUN}/failed"
        task = accepted(contract, service, key)
        live = {"traceId": task["traceId"], "attempt": task["attempt"]}
        failed = contract.expect(200, "reportResult", params=live, body={
            "success": False, "retryable": False, "message": "no such order"})
        if failed["status"] != "FAILED":
            raise Wrong(f"the result is {failed}")
        task = contract.expect(200, "getTask", params={"bizUuid": key})
        if len(task["attempts"]) != 1 or task["lastError"] != "no such order":
            raise Wrong(f"the failed task is {task}")
        contract.expect(409, "deleteService", params={"name": service})
        contract.expect(200, "runTask", params={"bizUuid": key})
    finally:
        receiver.close()


def leased(contract, name, **request):
    return contract.expect(200, "leaseTasks", params=name, body=request)["tasks"]


def story_of_a_worker(contract):
    name = {"name": f"contract-e-{RUN}"}
    task = {"bizUuid": f"contract/{RUN}/leased", "serviceName": name["name"], "handler": "h",
            "payload": {"n": 1.10}}
    contract.expect(404, "leaseTasks", params=name, body={"wait": 0})
    contract.expect(201, "putService", params=name, body={"delivery": {"mode": "pull"}})
    if leased(contract, name, wait=0):
        raise Wrong("there is something to lease before anything was submitted")
    contract.expect(201, "submitTask", body=task)
    one, = leased(contract, name, maxTasks=10, wait="10s", visibility="1m", worker="w-1")
    if one["bizUuid"] != task["bizUuid"] or one["attempt"] != 1 or one["payload"] != {"n": 1.10}:
        raise Wrong(f"the leased task is {one}")
    live = {"traceId": one["traceId"], "attempt": 1}
    stale = {**live, "attempt": 99}
    beats = contract.expect(200, "reportHeartbeats", body={"attempts": [
        {**live, "extend": "5m"}, live, stale, {**live, "traceId": "f" * 32}, 5]})["results"]
    if [beat["status"] for beat in beats] != [200, 200, 409, 400, 400]:
        raise Wrong(f"the signs of life come to {beats}")
    for _ in range(2):
        ends = contract.expect(200, "reportResults", body={"results": [
            {**live, "success": True}, {**stale, "success": True}, live]})["results"]
        if [end["status"] for end in ends] != [200, 409, 400] or ends[0]["taskStatus"] != "SUCCESS":
            raise Wrong(f"the results come to {ends}")
    contract.expect(200, "putService", params=name, body={"baseUrl": "http://127.0.0.1:9/"})
    contract.expect(409, "leaseTasks", params=name, body={"wait": "20s"})


def times_have_bounds(contract):
    """The first and the last millisecond of the years 0000 to 9999, and those beside them."""
    first, last = -62167219200000, 253402300799999
    for time_in in (first, last, "0000-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z"):
        for name in ("from", "to"):
            contract.expect(200, "listTasks", query={name: time_in})
    for time_out in (first - 1, last + 1, -999999999999999, -253402300800000, 9 * 10 ** 18):
        for name in ("from", "to"):
            problem = contract.expect(400, "listTasks", query={name: time_out})
            if problem["field"] != name:
                raise Wrong(f"{name}={time_out} is refused with {problem}")
        contract.expect(400, "submitTask", body={
            "bizUuid": f"contract/{RUN}/time", "serviceName": "contract-a", "handler": "h",
            "executeTime": time_out})


def story_of_a_service(contract):
    name = {"name": f"contract-c-{RUN}"}
    contract.expect(201, "putService", params=name, body={"baseUrl": "http://127.0.0.1:9/"})
    settings = {"baseUrl": "http://127.0.0.1:9/x", "shards": 2, "timeout": "5s", "concurrency": 3}
    changed = contract.expect(200, "putService", params=name, body=settings)
    if any(changed[k] != v for k, v in settings.items()):
        raise Wrong(f"the service is {changed}")
    for delivery in ({"mode": "batch", "maxSize": 7, "maxWait": "20ms"}, {"mode": "push"}):
        changed = contract.expect(200, "putService", params=name,
                                  body={**settings, "delivery": delivery})
        if changed["delivery"] != delivery:
            raise Wrong(f"the service is {changed}")
    contract.expect(200, "putService", params=name, body={"delivery": {"mode": "pull"}})
    contract.expect(200, "getService", params=name)
    for bad in ({"delivery": {"mode": "batch"}}, {"baseUrl": "ftp://127.0.0.1:9/"}, {"baseUrl": "http://127.0.0.1:9/a/../b"},
                {**settings, "secret": "x" * 15}, {**settings, "secret": "x" * 129},
                {**settings, "secret": "whsec_abc"}):
        contract.expect(400, "putService", params=name, body=bad)
    contract.expect(400, "putService", params={"name": ".."}, body=settings)
    contract.expect(200, "putService", params=name, body={**settings, "secret": "x" * 128})
    contract.expect(200, "listServices")
    contract.expect(200, "pauseService", params=name)
    contract.expect(200, "resumeService", params=name)
    contract.expect(204, "deleteService", params=name)
    contract.expect(404, "getService", params=name)
    contract.expect(404, "deleteService", params=name)
    contract.expect(404, "pauseService", params=name)


def story_of_an_instance(contract):
    name = {"name": f"contract-d-{RUN}"}
    pod = {"instance": "10.0.0.7:8080", "baseUrl": "http://127.0.0.1:9/x", "ttl": "1m"}
    new = contract.expect(201, "registerInstance", params=name, body=pod)
    if any(new[k] != v for k, v in pod.items()) or new["serviceName"] != name["name"]:
        raise Wrong(f"the instance is {new}")
    again = contract.expect(200, "registerInstance", params=name, body=pod)
    if again["registeredAt"] != new["registeredAt"]:
        raise Wrong(f"after its heartbeat the instance is {again}")
    for bad in ({**pod, "ttl": "999ms"}, {**pod, "ttl": "601s"}, {**pod, "instance": ".."},
                {**pod, "baseUrl": "http://169.254.169.254/"}, {**pod, "secret": "x" * 32}):
        contract.expect(400, "registerInstance", params=name, body=bad)
    listed = contract.expect(200, "listInstances", params=name)["instances"]
    if listed != [again]:
        raise Wrong(f"the instances are {listed}")
    service = contract.expect(200, "getService", params=name)
    if service["baseUrl"] is not None:
        raise Wrong(f"the service is {service}")
    one = {**name, "instance": pod["instance"]}
    contract.expect(204, "removeInstance", params=one)
    contract.expect(404, "removeInstance", params=one)
    if contract.expect(200, "listInstances", params=name)["instances"]:
        raise Wrong("it has left and is listed")


def every_success_was_seen(contract):
    unseen = [f"{key} {status}" for key, (_, _, operation) in contract.document.operations.items()
              for status in operation["responses"]
              if status.startswith("2") and (key, int(status)) not in contract.seen]
    if unseen:
        raise Wrong(f"never answered: {', '.join(unseen)}")


def cases_of(contract):
    yield "the document is sound", lambda: document_is_sound(contract)
    yield "the document and the routes agree", lambda: document_and_routes_agree(contract)
    yield "the node serves the document", lambda: node_serves_the_document(contract)
    for key in contract.document.operations:
        yield f"examples of {key}", lambda k=key: examples_work(contract, k)
    for key in contract.document.operations:
        yield f"bad requests of {key}", lambda k=key: bad_requests_are_as_documented(contract, k)
    yield "other methods are refused", lambda: other_methods_are_refused(contract)
    yield "other paths are refused", lambda: other_paths_are_refused(contract)
    yield "HEAD is GET without body", lambda: head_is_get_without_body(contract)
    yield "the story of a task", lambda: story_of_a_task(contract)
    yield "the story of an asynchronous handler", \
        lambda: story_of_an_asynchronous_handler(contract)
    yield "the story of a worker", lambda: story_of_a_worker(contract)
    yield "times have bounds", lambda: times_have_bounds(contract)
    yield "the story of a service", lambda: story_of_a_service(contract)
    yield "the story of an instance", lambda: story_of_an_instance(contract)
    yield "every success was seen", lambda: every_success_was_seen(contract)


def run(url):
    contract = Contract(url)
    failed = number = 0
    for number, (name, case) in enumerate(cases_of(contract), 1):
        try:
            case()
            print(f"ok {number} - {name}", flush=True)
        except (Wrong, OSError, http.client.HTTPException, KeyError, ValueError) as error:
            failed += 1
            print(f"not ok {number} - {name}\n# {error!r}", flush=True)
    print(f"1..{number}", flush=True)
    return 1 if failed else 0


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if "://" in sys.argv[1]:
        sys.exit(run(sys.argv[1]))
    import lib  # pylint: disable=import-outside-toplevel
    with lib.Workspace() as folder, lib.open_store(sys.argv[1], folder) as store:
        node = lib.Node(folder, store.url).start()
        try:
            status = run(f"http://{lib.HOST}:{node.port}")
        finally:
            node.close()
    sys.exit(status)


if __name__ == "__main__":
    main()
