#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Schemathesis against a real node: schema_fuzz.py sqlite.

It makes requests out of proto/openapi.yaml, good and bad ones, and holds each answer to what the
document says: no 500, no other status, type, header or body, and nothing accepted that the document
does not allow. The seed is fixed; one operation is one case.
"""

import json
import os
import pathlib
import subprocess
import xml.etree.ElementTree

import api_contract
import lib
from lib import check, diagnose, equal

SEED = int(os.environ.get("SCHEMA_FUZZ_SEED", "20260131"))
EXAMPLES = 30     # of each operation in the phase that makes them up; other phases make more
SECONDS = 180     # on a busy machine; alone it takes a quarter
# All checks but positive_data_acceptance, since JSON Schema has no words for durations or for times
# within ten years; and unsupported_method and allow_header_conformance, which want answers to methods
# that HTTP does not have, and to take {bizUuid} for no template of /api/delay-tasks/batch
# (api_contract.py checks both). stateful testing needs links, which the document has none of.
# A live attempt, or those that report would only ever get 404. A batch answers with 200 whatever its
# tasks are.
CONFIG = """
[checks]
positive_data_acceptance.enabled = false
unsupported_method.enabled = false
allow_header_conformance.enabled = false

[[operations]]
include-operation-id = ["reportHeartbeat", "getTrace"]
parameters = {{ "path.traceId" = "{0}", "path.attempt" = 1 }}

[[operations]]
include-operation-id = "reportResult"
parameters = {{ "path.traceId" = "{1}", "path.attempt" = 1 }}

[[operations]]
include-operation-id = "leaseTasks"
parameters = {{ "path.name" = "live" }}

[[operations]]
include-operation-id = ["submitTasks", "reportResults", "reportHeartbeats"]
checks.negative_data_rejection.enabled = false
"""


class Run:
    """One run of schemathesis; `cases` has its report by operation, None for one without failure."""

    def __init__(self, kind, folder):
        self.store = lib.STORES[kind](folder)
        self.receiver = lib.Receiver(lambda delivery: 202)
        self.node = lib.Node(folder, self.store.url).start()
        try:
            self.call(folder)
        except BaseException:
            self.close()
            raise

    def close(self):
        self.node.close()
        self.receiver.close()
        self.store.close()

    def call(self, folder):
        self.node.register("live", self.receiver.url)
        for key in ("heartbeat", "result"):
            self.node.submit(key, "live")
        traces = [self.node.wait_status(key, "SENT")["traceId"] for key in ("heartbeat", "result")]
        config, junit, report = (folder / n for n in ("config.toml", "junit.xml", "report.json"))
        config.write_text(CONFIG.format(*traces), encoding="utf-8")
        program = pathlib.Path(lib.python_with_packages()).parent / "schemathesis"
        ended = subprocess.run(
            [program, "--config-file", config, "run", api_contract.DOCUMENT,
             "--url", f"http://{lib.HOST}:{self.node.port}", "--seed", str(SEED),
             "--max-examples", str(EXAMPLES), "--phases", "examples,coverage,fuzzing",
             "--continue-on-failure", "--generation-database", "none", "--request-timeout", "20",
             "--warnings", "off", "--no-color",
             "--report", "junit,json", "--report-junit-path", junit, "--report-json-path", report],
            cwd=folder, check=False, capture_output=True, text=True, timeout=SECONDS,
            stdin=subprocess.DEVNULL, preexec_fn=lib.die_with_parent())
        check(report.exists(), f"no report: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        self.status = ended.returncode
        self.report = json.loads(report.read_text(encoding="utf-8"))
        self.cases = {}
        for case in xml.etree.ElementTree.parse(junit).iter("testcase"):
            told = [node.text for node in case if node.tag in ("failure", "error", "skipped")]
            self.cases[case.get("name")] = "\n".join(told) if told else None


def operation_is_as_documented(run, name):
    check(name in run.cases, "it was not called")
    if run.cases[name] is not None:
        diagnose(run.cases[name])
    check(run.cases[name] is None, "answers are not as the document says")


def run_is_whole(run):
    """Nothing was left out: neither operations nor, by an error of its own, cases."""
    report = run.report
    diagnose(f"schemathesis {report['schemathesis_version']}, seed {report['seed']}: "
             f"{report['test_cases']['generated']} requests in {report['running_time']:.0f} s")
    operations = api_contract.Document(api_contract.DOCUMENT.read_text(encoding="utf-8")).operations
    equal(report["operations"]["tested"], len(operations), "operations tested")
    check(report["complete"], f"the run ended early: {report['stop_reason']}")
    equal(report["errors"], [], "errors")
    check(report["test_cases"]["generated"] > 20 * len(operations), "too few requests")
    equal(run.status != 0, any(told is not None for told in run.cases.values()), "the exit status")


def node_is_well(run):
    run.node.client.close()  # idle for longer, perhaps, than a connection may be
    equal(run.node.client.get("/readyz").status, 200, "readiness")
    bad = [line for line in run.node.log()
           if line["level"] == "error" and line["event"] != "task.failed"]  # services that do not live
    equal(bad, [], "errors in the log")


def cases_of(run):
    operations = api_contract.Document(api_contract.DOCUMENT.read_text(encoding="utf-8")).operations
    names = [f"{method.upper()} {path}" for method, path, _ in operations.values()]
    cases = [(name, lambda n=name: operation_is_as_documented(run, n)) for name in names]
    return [*cases, ("the run is whole", lambda: run_is_whole(run)),
            ("the node is well", lambda: node_is_well(run))]


if __name__ == "__main__":
    lib.main(Run, cases_of)
