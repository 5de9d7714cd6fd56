"""What the tables and plots of lightcc's tools have in common."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


class PlotError(RuntimeError):
    """No plot could be made; the text says why."""


def duration(seconds: float) -> str:
    """Returns seconds with a unit: "12.3 ms"."""
    for scale, unit in _UNITS:
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 1000 else f"{seconds:.0f} s"
    return f"{seconds * 1e6:.2g} us"


def size(num_bytes: float) -> str:
    """Returns bytes with a unit: "1.5 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.4g} TB"


def load_pyplot() -> Any:
    """Returns matplotlib.pyplot, drawing into files.

    Raises:
        PlotError: matplotlib is not installed.
    """
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        msg = "a plot needs matplotlib: pip install matplotlib"
        raise PlotError(msg) from error


def save_figure(figure: Any, path: Path) -> None:
    """Writes an image file.

    Raises:
        PlotError: It cannot be written, or has an ending that is no format.
    """
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        msg = f"{path} cannot be drawn: {error}"
        raise PlotError(msg) from error
    finally:
        load_pyplot().close(figure)
