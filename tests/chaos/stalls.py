# SPDX-License-Identifier: Apache-2.0
"""When the machine kept the harness waiting: what passed through it then came late, and no node can
be blamed for it."""

import asyncio
import bisect
import itertools
import time

TICK = 0.02
STALL = 0.1  # seconds: shorter waits are the usual


def now_ms():
    return time.time_ns() // 1_000_000


async def watch(note):
    """Calls note(time, milliseconds) at the end of each wait of the running event loop."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(TICK)
        lag = time.monotonic() - before - TICK
        if lag > STALL:
            note(now_ms(), round(lag * 1000))


class Stalls:
    """Of several event loops. Those that waited at the same time have lost that time once."""

    def __init__(self, found):
        spans = []
        for begin, end in sorted((at - ms, at) for at, ms in found):
            if spans and begin <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], end)
            else:
                spans.append([begin, end])
        self.spans = spans
        self.ends = [end for _, end in spans]
        self.longest = max((end - begin for begin, end in spans), default=0)
        self.total = sum(end - begin for begin, end in spans)

    def within(self, begin, end):
        """Milliseconds that were lost between two times."""
        lost = 0
        for a, b in itertools.islice(self.spans, bisect.bisect_left(self.ends, begin), None):
            if a >= end:
                break
            lost += min(b, end) - max(a, begin)
        return lost
