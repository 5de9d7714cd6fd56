"""Draws the README's chart from a table of docs/benchmarks.md: bars of step times, as an SVG."""

from __future__ import annotations

import re

_TABLE = "| BERT-large, 1 Gb/s"
_TITLE = "BERT-large's gradients under DDP: seconds of a step, less is better"
_ROW = 30
_LEFT = 190  # Where bars begin.
_WIDTH = 760
_PEER, _OWN = "#9aa4b2", "#3f51b5"


def chart(benchmarks: str) -> str:
    """Returns the chart as text of an SVG file.

    Args:
        benchmarks: The text of docs/benchmarks.md.
    """
    _, _, rest = benchmarks.partition(_TABLE)
    table, _, _ = rest.partition("\n\n")
    bars = [
        (name, int(milliseconds) / 1000)
        for name, milliseconds in re.findall(r"^\| ([^|]+?) \| (\d+) \(", table, re.MULTILINE)
    ]
    scale = (_WIDTH - _LEFT - 60) / max(seconds for _, seconds in bars)
    height = 52 + _ROW * len(bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="15" fill="#24292f">',
        f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
        f'<text x="16" y="28" font-weight="bold">{_TITLE}</text>',
    ]
    for number, (name, seconds) in enumerate(bars):
        top = 44 + _ROW * number
        right = _LEFT + scale * seconds
        colour = _OWN if name.startswith("lightcc") else _PEER
        lines += [
            f'<text x="{_LEFT - 10}" y="{top + 16}" text-anchor="end">{name}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{right - _LEFT:.0f}" height="22" '
            f'fill="{colour}"/>',
            f'<text x="{right + 8:.0f}" y="{top + 16}">{seconds:.1f} s</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
