"""What happens to an elastic job, as a file of JSON lines.

Each line is an object with `time` (ISO 8601), `event`, and what belongs to that event:

    host_joined     host, slots           a worker has dialled in
    host_leaving    host                  its worker got SIGTERM
    host_lost       host, reason
    worker_started  worker, host
    worker_silent   worker, host          the others go on without it; it may come back
    worker_awaited  worker, host          the others wait for it; it is replaced if it does not come
    worker_slow     worker, host, factor  the others wait for it in every step
    worker_ended    worker, host, code, lost
    epoch_planned   epoch, workers        the workers by rank
    epoch_broken    epoch, reason         as the first of its members has told it
    finishing                             a worker has finished with training
    job_ended       error                 empty: it has finished

Events are added by later versions, and so are members of their objects.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from lightcc.runner.output import Sink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class EventFile:
    """The file; without a path, nothing is written."""

    def __init__(self, path: Path | None, on_loss: Callable[[str], None]) -> None:
        """Opens the file, to which lines are added.

        Args:
            path: Where it is.
            on_loss: Called once, with a sentence, when it cannot be written any more.

        Raises:
            OSError: It cannot be opened.
        """
        self._sink = None
        if path is not None:
            self._sink = Sink(path.open("ab", buffering=0), str(path), on_loss)
        self._broken = 0

    def write(self, event: str, **about: object) -> None:
        """Adds one line."""
        if self._sink is not None:
            now = datetime.now().astimezone().isoformat(timespec="milliseconds")
            self._sink.write(json.dumps({"time": now, "event": event, **about}).encode() + b"\n")

    def write_broken(self, epoch: int, reason: str) -> None:
        """Adds that an epoch has broken, once for each."""
        if epoch > self._broken:
            self._broken = epoch
            self.write("epoch_broken", epoch=epoch, reason=reason)

    def close(self) -> None:
        """Closes the file."""
        if self._sink is not None:
            self._sink.close()
