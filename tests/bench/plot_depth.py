#!/usr/bin/env python3
"""Draws how long a decoded token takes after many positions, beside what it would have to take.

    dsrun bench MODEL -p 0 -n 8 -d 64,512,2048,8192,32768 --repeat-depth -o json > report.json
    plot_depth.py report.json [MORE.json ...] > depth.svg

Of each report one line is measured (with its spread), and one computed: the weights and the cache that a token reads
over the memory's rate, plus its operations over the rates of arithmetic, as the report has them of its own run. Both
axes are logarithmic.
"""

import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 64, 32, 28, 48
COLOURS = ("#0b6e99", "#b5460f", "#4d7c0f", "#7c3aed")


def points(report):
    limits = report["limits"]
    for test in report["tests"]:
        if test["kind"] == "answer" and test["depth"] > 0:
            token = test["a_token"]
            computed = (token["memory_bytes"] / limits["memory_bytes_per_second"]
                        + token["operations"] / limits["operations_per_second"]
                        + token["attention_operations"] / limits["exact_operations_per_second"])
            speeds = test["tokens_per_second"]
            yield test["depth"], [1e3 / speeds[name] for name in ("median", "most", "least")], 1e3 * computed


class Axis:
    """Logarithmic, from pixel `first` to `last`."""

    def __init__(self, least, most, first, last):
        self.low, self.high, self.first, self.last = math.log(least), math.log(most), first, last

    def at(self, value):
        return self.first + (math.log(value) - self.low) / (self.high - self.low) * (self.last - self.first)


def label(report, reports):
    """What tells it from the others."""
    if len({other["precision"] for other in reports}) > 1 or len(reports) == 1:
        return "precision " + report["precision"]
    return report["model"].rstrip("/").rpartition("/")[2]


def ticks(least, most):
    steps = [factor * 10 ** power for power in range(0, 6) for factor in (1, 2, 5)]
    return [step for step in steps if least <= step <= most]


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    reports = [json.load(open(path, encoding="utf-8")) for path in sys.argv[1:]]
    lines = [(report, list(points(report))) for report in reports]
    if not all(line for _, line in lines):
        sys.exit("no answers after other positions in there: run dsrun bench with -n and -d")
    depths = sorted({depth for _, line in lines for depth, _, _ in line})
    values = [value for _, line in lines for _, measured, computed in line for value in (*measured, computed)]
    x = Axis(depths[0], depths[-1] if len(depths) > 1 else 2 * depths[0], LEFT, WIDTH - RIGHT)
    least, most = min(values) / 1.2, max(values) * 1.2
    y = Axis(least, most, HEIGHT - BOTTOM, TOP)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">'
           % (WIDTH, HEIGHT), '<rect width="100%" height="100%" fill="#fff"/>']

    def text(at_x, at_y, words, anchor="middle", colour="#222"):
        out.append('<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>' % (at_x, at_y, anchor, colour, words))

    def path(pairs, colour, dashes=""):
        out.append('<polyline fill="none" stroke="%s" stroke-width="2"%s points="%s"/>' % (
            colour, ' stroke-dasharray="%s"' % dashes if dashes else "",
            " ".join("%.1f,%.1f" % (x.at(depth), y.at(value)) for depth, value in pairs)))

    for tick in ticks(least, most):
        out.append('<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>' % (LEFT, WIDTH - RIGHT, y.at(tick), y.at(tick)))
        text(LEFT - 6, y.at(tick) + 4, "%g" % tick, "end")
    for depth in depths:
        text(x.at(depth), HEIGHT - BOTTOM + 18, "{:,}".format(depth))
    text((LEFT + WIDTH) / 2, HEIGHT - 8, "positions before the token")
    text(LEFT, 16, "ms a token (dashed: computed)", "start")
    for place, (report, line) in enumerate(lines):
        colour = COLOURS[place % len(COLOURS)]
        path([(depth, measured[0]) for depth, measured, _ in line], colour)
        path([(depth, computed) for depth, _, computed in line], colour, "5 4")
        for depth, measured, _ in line:
            out.append('<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="%s"/>'
                       % (x.at(depth), x.at(depth), y.at(measured[1]), y.at(measured[2]), colour))
            out.append('<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>' % (x.at(depth), y.at(measured[0]), colour))
        text(LEFT + 12, TOP + 16 + 18 * place, label(report, reports), "start", colour)
    out.append("</svg>")
    print("\n".join(out))


if __name__ == "__main__":
    main()
