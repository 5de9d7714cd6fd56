"""`horovod.runner.gloo_run`: a name that programs for elastic jobs replace."""

from __future__ import annotations

from typing import Any


def _get_min_start_hosts(settings: Any) -> int:  # noqa: ARG001  Horovod's
    """Returns how many hosts must be there before a job is started: one is enough."""
    return 1
