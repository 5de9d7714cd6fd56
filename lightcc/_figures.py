"""Figures as the tables of lightcc's tools have them: with three digits, so that they compare."""

from __future__ import annotations

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_LIMIT = 999.5  # From there on, three digits make it 1000.


def duration(seconds: float) -> str:
    """Returns seconds with a unit: "12.0 ms"."""
    if seconds >= _LIMIT:
        return f"{seconds:.0f} s"
    for scale, unit in _UNITS:
        if seconds >= _LIMIT * 1e-3 * scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{seconds * 1e6:.2g} us"


def size(num_bytes: float) -> str:
    """Returns bytes with a unit: "1.50 MB"."""
    if num_bytes < _LIMIT:
        return f"{num_bytes:.3g} B"
    for unit in ("kB", "MB", "GB"):
        num_bytes /= 1000
        if num_bytes < _LIMIT:
            return f"{_three_digits(num_bytes)} {unit}"
    return f"{num_bytes / 1000:.4g} TB"


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")
