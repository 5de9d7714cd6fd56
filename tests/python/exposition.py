"""Checks what Prometheus would read."""

from __future__ import annotations

import re


def check_exposition(text: str) -> dict[str, float]:
    """Checks the form of Prometheus' text format 0.0.4; returns its samples."""
    name = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
    label = rf'{name}="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
    number = r"-?[0-9.]+(?:e[+-]?[0-9]+)?|[+-]Inf|NaN"
    sample = re.compile(rf"({name})(\{{(?:{label}(?:,{label})*)?\}})? ({number})")
    assert text.endswith("\n")
    samples: dict[str, float] = {}
    kinds: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
            assert current not in kinds, "all samples of a name stand together"
        elif line.startswith("# TYPE "):
            _, _, typed, kind = line.split(" ")
            assert typed == current
            assert kind in ("counter", "gauge")
            assert kind != "counter" or current.endswith("_total")
            kinds[current] = kind
        else:
            match = sample.fullmatch(line)
            assert match, line
            assert match[1] == current
            key = match[1] + (match[2] or "")
            assert key not in samples
            samples[key] = float(match[3])
    return samples
