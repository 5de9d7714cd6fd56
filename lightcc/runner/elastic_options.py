"""What makes a job elastic, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from lightcc.runner.driver import Settings


@dataclass(frozen=True)
class ElasticOptions:
    """What makes a job elastic.

    Attributes:
        settings: For the driver.
        hosts: Slots by host, where no script tells.
        script: A command that prints the hosts.
        slots: Of a host for which the script tells none.
        discovery_interval_s: From one run of the script to the next.
        events: A file that gets what happens, as JSON lines.
        agent_timeout_s: How long the agent of a host may leave questions unanswered.
    """

    settings: Settings
    hosts: dict[str, int]
    script: str | None = None
    slots: int | None = None
    discovery_interval_s: float = 1.0
    events: Path | None = None
    agent_timeout_s: float = 30.0
