# SPDX-License-Identifier: Apache-2.0
"""Two plots as SVG: throughput by pending tasks, and how lateness is distributed."""

import math
from xml.sax.saxutils import escape

from plan import OURS

WIDTH, HEIGHT = 820, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 240, 40, 60
COLOURS = ("#1f5fa8", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d", "#475569")


class Plot:
    """Axes with ticks as (position from 0 to 1, label), and lines of points from 0 to 1."""

    def __init__(self, title, x_title, y_title, x_ticks, y_ticks):
        self.parts = []
        self.n_lines = 0
        self.text(LEFT, TOP - 16, title, size=15)
        self.text(LEFT + self.inner()[0] / 2, HEIGHT - 14, x_title, anchor="middle")
        self.text(18, TOP + self.inner()[1] / 2, y_title, anchor="middle",
                  turn=f"rotate(-90 18 {TOP + self.inner()[1] / 2})")
        for at, label in x_ticks:
            x, y = self.place(at, 0)
            self.line([(x, y), (x, TOP)], "#e5e7eb", 1)
            self.text(x, y + 18, label, anchor="middle", size=11)
        for at, label in y_ticks:
            x, y = self.place(0, at)
            self.line([(x, y), (WIDTH - RIGHT, y)], "#e5e7eb", 1)
            self.text(x - 8, y + 4, label, anchor="end", size=11)

    @staticmethod
    def inner():
        return WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(self, x, y):
        width, height = self.inner()
        return LEFT + x * width, HEIGHT - BOTTOM - y * height

    def text(self, x, y, text, anchor="start", size=12, turn=None, colour="#111827"):
        more = f' transform="{turn}"' if turn else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
                          f'fill="{colour}"{more}>{escape(text)}</text>')

    def line(self, points, colour, width):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                          f'stroke-width="{width}"/>')

    def series(self, name, points, dots=True):
        colour = COLOURS[self.n_lines % len(COLOURS)]
        placed = [self.place(x, y) for x, y in points]
        self.line(placed, colour, 2)
        for x, y in placed if dots else []:
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
        self.text(WIDTH - RIGHT + 12, TOP + 12 + 20 * self.n_lines, name, colour=colour)
        self.n_lines += 1

    def bar(self, x, low, high):
        self.line([self.place(x, low), self.place(x, high)], COLOURS[0], 1)

    def svg(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
                f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">\n'
                f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def round_up(value):
    step = 10 ** math.floor(math.log10(max(value, 1)))
    return math.ceil(value / step) * step


def pending(figures):
    """None when that was not measured."""
    found = []
    for subject in figures.subjects("pending"):
        n = int(subject.split(", ", 1)[1].split(" ")[0].replace(",", ""))
        found.append((n, figures.median("pending", subject), figures.get("pending", subject)))
    if len(found) < 2:
        return None
    low, high = math.log10(found[0][0]), math.log10(found[-1][0])
    top = round_up(max(max(values) for _, _, values in found))

    def x_of(n):
        return (math.log10(n) - low) / (high - low)
    plot = Plot("Lifecycles a second, by pending tasks", "tasks that are due in 30 days",
                "lifecycles a second", [(x_of(n), f"{n:,}") for n, _, _ in found],
                [(i / 4, f"{top * i / 4:,.0f}") for i in range(5)])
    for n, _, values in found:
        plot.bar(x_of(n), min(values) / top, max(values) / top)
    plot.series("JobFlow, PostgreSQL", [(x_of(n), median / top) for n, median, _ in found])
    return plot.svg()


def lateness(figures):
    """Share of the tasks (each step up is a tenth of what is left) by lateness."""
    curves = [(name, quantiles(histogram), False)
              for name, histogram in figures.notes.get("histograms", {}).items()]
    for subject in figures.subjects("late_p50"):
        if not subject.startswith(OURS):
            keys = (("late_p50", 0.5), ("late_p99", 0.99), ("late_p999", 0.999),
                    ("late_max", 0.9999))
            curves.append((f"{subject}, 500 a second",
                           [(figures.median(row, subject), q) for row, q in keys], True))
    if not curves:
        return None
    most = max(ms for _, points, _ in curves for ms, _ in points)
    decades = max(2, math.ceil(math.log10(max(most, 10))))

    def x_of(ms):
        return math.log10(max(ms, 1)) / decades

    def y_of(share):
        return min(-math.log10(max(1 - share, 1e-4)), 4) / 4
    plot = Plot("Lateness of delayed tasks", "milliseconds late (1 or less at the left edge)",
                "share of the tasks", [(i / decades, f"{10 ** i:,}") for i in range(decades + 1)],
                [(y_of(q), label) for q, label in ((0, "0"), (0.5, "50 %"), (0.9, "90 %"),
                                                   (0.99, "99 %"), (0.999, "99.9 %"),
                                                   (0.9999, "99.99 %"))])
    for name, points, dots in curves:
        plot.series(name, [(x_of(ms), y_of(q)) for ms, q in points], dots)
    return plot.svg()


def quantiles(histogram):
    total, seen, points = sum(count for _, count in histogram), 0, []
    for ms, count in histogram:
        points.append((ms, seen / total))
        seen += count
        points.append((ms, seen / total))
    return points


def write(figures, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (("pending", pending), ("lateness", lateness)):
        svg = draw(figures)
        if svg:
            (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
