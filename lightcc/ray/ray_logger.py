"""How a rank sends values to the callbacks of the executor's caller."""

from __future__ import annotations

import warnings
from typing import Any

_queue: Any = None
_has_warned = False


def configure(queue: Any) -> None:
    """Takes the queue to which `log` sends; `None`: nobody listens."""
    global _queue
    _queue = queue


def log(info_dict: dict[str, Any]) -> None:
    """Sends a value that can be pickled to the callbacks; warns once where there are none."""
    global _has_warned
    if _queue is not None:
        _queue.put(info_dict)
    elif not _has_warned:
        _has_warned = True
        text = "ray_logger.log: nobody listens, as the executor was called without callbacks"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
