# SPDX-License-Identifier: Apache-2.0
"""Runs the bench's programs and reads the JSON lines that they print."""

import json
import os
import pathlib
import subprocess
import tempfile

from rigs import HOST, lib

PLAIN = "as it is"  # the disk under a server to which nothing was added


class Failed(Exception):
    """A measurement that came to nothing: the last line of what the program said."""


def run(command, seconds, env=None):
    """The JSON objects of the program's output, one a line."""
    process = subprocess.Popen(
        [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
        start_new_session=True, preexec_fn=lib.die_with_parent())
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as late:
        os.killpg(process.pid, 9)
        process.communicate()
        raise Failed(f"not within {seconds} s") from late
    except BaseException:
        os.killpg(process.pid, 9)
        raise
    if process.returncode:
        raise Failed((errors.strip().splitlines() or [f"exit status {process.returncode}"])[-1])
    try:
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    except ValueError as wrong:
        raise Failed(f"no JSON: {wrong}") from wrong


class Programs:
    """Those of one build folder."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.jobflowd = folder / "node" / "jobflowd"
        self.jfbench = folder / "tests" / "bench" / "jfbench"
        self.jflimit = folder / "tests" / "bench" / "jflimit"
        self.jfreceiver = folder / "tests" / "bench" / "jfreceiver"
        self.slowsync = folder / "tests" / "bench" / "libslowsync.so"
        os.environ["JOBFLOWD"] = str(self.jobflowd)

    def bench(self, nodes, measure, n, **options):
        """One JSON object of jfbench."""
        ports = ",".join(str(node.port) for node in nodes)
        words = [f"{name}={value}" for name, value in options.items()]
        return run([self.jfbench, ports, measure, n, *words], 600)[0]

    def limit(self, database, measure, n, **options):
        """The JSON objects of jflimit."""
        words = [f"{name}={value}" for name, value in options.items()]
        return run([self.jflimit, database.url, measure, n, *words], 1800)

    def migrate(self, database):
        subprocess.run([self.jobflowd, "--store", database.url, "--migrate-only"], check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    def start_receiver(self, *words):
        """The process and its port."""
        process = subprocess.Popen([self.jfreceiver, "0", *words], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, text=True,
                                   preexec_fn=lib.die_with_parent())
        return process, int(process.stdout.readline())

    def receiver(self):
        """Starts a receiver; the process and its URL."""
        process, port = self.start_receiver()
        return process, f"http://{HOST}:{port}/jobflow/run"

    def stub(self, n, **options):
        """Submissions to a server that answers as a node and stores nothing; one JSON object."""
        process, port = self.start_receiver("stub")
        try:
            words = [f"{name}={value}" for name, value in options.items()]
            return run([self.jfbench, port, "submit", n, *words], 600)[0]
        finally:
            process.terminate()
            process.wait(30)


def fsync_figure(server):
    """What pg_test_fsync says of fdatasync where the server's files are, under the same conditions."""
    with tempfile.NamedTemporaryFile(dir=server.folder) as file:
        if server.user:
            os.chown(file.name, server.user.pw_uid, server.user.pw_gid)
        process = subprocess.Popen(
            [f"{server.bin}/pg_test_fsync", "-s", "1", "-f", file.name], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=server.env(),
            preexec_fn=lib.die_with_parent(server.user))
        for line in process.stdout:
            words = line.split()
            if len(words) >= 5 and words[0] == "fdatasync" and words[2].startswith("ops"):
                break
        else:
            words = None
        process.kill()
        process.communicate()
    if not words:
        raise Failed("pg_test_fsync did not speak of fdatasync")
    return {"ops_per_second": float(words[1]), "us": float(words[3])}
