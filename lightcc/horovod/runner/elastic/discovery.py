"""`horovod.runner.elastic.discovery`: where an elastic job's hosts come from."""

from __future__ import annotations

import subprocess
from typing import Any


class HostDiscovery:
    """Knows the hosts of a job."""

    def find_available_hosts_and_slots(self) -> dict[str, Any]:
        """Returns slots by host."""
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """Asks a command of the user's, which prints lines of "host" or "host:slots"."""

    def __init__(self, discovery_script: str, slots: int | None) -> None:
        """Takes the command, and the slots of a host that it prints without."""
        self._discovery_script = discovery_script
        self._default_slots = slots

    def find_available_hosts_and_slots(self) -> dict[str, Any]:
        """Runs the command; returns slots by host, in its order.

        Raises:
            RuntimeError: The command failed.
            ValueError: What is behind a colon is no number.
        """
        hosts: dict[str, Any] = {}
        for line in self._execute_discovery_script().splitlines():
            host, colon, slots = line.strip().rpartition(":")
            if colon:
                hosts[host] = int(slots)
            elif slots:
                hosts[slots] = self._default_slots
        return hosts

    def _execute_discovery_script(self) -> str:
        run = subprocess.run(  # noqa: S602  the user's own command
            self._discovery_script, shell=True, stdout=subprocess.PIPE, check=False
        )
        if run.returncode != 0:
            msg = (
                f"Failed to execute discovery script: {self._discovery_script}. "
                f"Exit code: {run.returncode}"
            )
            raise RuntimeError(msg)
        return run.stdout.decode()


class FixedHosts(HostDiscovery):
    """Hosts that do not change, unless somebody sets others."""

    def __init__(self, host_slots: dict[str, int]) -> None:
        """Takes slots by host."""
        self._host_slots = host_slots

    def find_available_hosts_and_slots(self) -> dict[str, Any]:
        """Returns slots by host."""
        return self._host_slots

    def set(self, host_slots: dict[str, int]) -> None:
        """Takes others."""
        self._host_slots = host_slots
