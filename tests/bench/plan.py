# SPDX-License-Identifier: Apache-2.0
"""What the sections of a run share: how much is measured, and measuring by turns."""

import dataclasses
import pathlib
import shutil
import subprocess
import sys

from programs import Failed

OURS = ("JobFlow", "limit")  # how the names of subjects begin that have to be measurable


@dataclasses.dataclass
class Sizes:
    name: str
    limit: int  # rows
    limit_batches: tuple  # of which the best is taken
    batch: int  # submissions in batches
    single: int
    lifecycle: int
    sqlite: int
    lateness_s: int
    burst: int
    ahead_ms: int  # until a burst is due
    peer: int  # jobs of a peer
    pending: tuple  # how many pending tasks, ascending
    finished: int  # before the snapshot
    snapshot_s: int


QUICK = Sizes("quick", 30_000, (500, 1000, 2000), 30_000, 20_000, 30_000, 15_000, 2, 10_000, 2_000,
              10_000, (1_000, 10_000, 100_000), 100_000, 10)
FULL = Sizes("full", 200_000, (500, 1000, 2000), 200_000, 100_000, 200_000, 60_000, 20, 10_000,
             3_000, 30_000, (10_000, 100_000, 1_000_000, 10_000_000), 10_000_000, 600)
TINY = Sizes("tiny", 1_000, (500,), 1_000, 200, 1_000, 500, 1, 500, 500, 200, (500, 1_000), 1_000, 1)


@dataclasses.dataclass
class Measurement:
    """`run` adds the values to the figures by itself."""
    row: str
    subject: str
    run: object


class Plan:
    def __init__(self, programs, figures, folder, sizes, repeat, peers):
        self.programs = programs
        self.figures = figures
        self.folder = pathlib.Path(folder)
        self.sizes = sizes
        self.repeat = repeat
        self.peers = peers
        self.failed = False  # something of ours could not be measured

    def subfolder(self, name):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def say(self, text):
        end = "\n" if not sys.stderr.isatty() else ""
        start = "\r\x1b[K" if sys.stderr.isatty() else ""
        print(f"{start}bench: {text}", end=end, file=sys.stderr, flush=True)

    def take(self, measurement):
        """Whether it could be measured."""
        try:
            measurement.run()
            return True
        except (Failed, AssertionError, OSError, subprocess.CalledProcessError) as why:
            text = str(why).strip().splitlines() or [type(why).__name__]
            self.miss(measurement.row, measurement.subject, text[-1])
            return False

    def miss(self, row, subject, why):
        self.figures.miss(row, subject, why)
        self.failed |= subject.startswith(OURS)

    def by_turns(self, title, measurements, repeat=None):
        """Each once, then each again, so that what else the machine does meets all alike. What fails
        is left out from then on."""
        left = list(measurements)
        for turn in range(1, (repeat or self.repeat) + 1):
            for measurement in list(left):
                self.say(f"{title}, {turn} of {repeat or self.repeat}: {measurement.subject}, "
                         f"{measurement.row}")
                if not self.take(measurement):
                    left.remove(measurement)

    def rate(self, row, subject, call):
        """A measurement whose one figure is `per_second`."""
        return Measurement(row, subject,
                           lambda: self.figures.add(row, subject, call()["per_second"]))


def need(program):
    """For a section that cannot be without it."""
    if not shutil.which(program):
        raise Failed(f"{program} is not installed")
