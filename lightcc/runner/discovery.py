"""Host discovery scripts: a command of the user's that prints the hosts of an elastic job."""

from __future__ import annotations

import subprocess

from lightcc.runner.hosts import HostError, parse_host


class DiscoveryError(RuntimeError):
    """The script failed, or printed what is no list of hosts."""


def discover_hosts(script: str, default_slots: int | None) -> dict[str, int]:
    """Runs a discovery script through the shell; returns slots by host, in its order.

    Raises:
        DiscoveryError: It failed, or printed what is no list of hosts.
    """
    run = subprocess.run(  # noqa: S602  the user's own command
        script, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False
    )
    if run.returncode != 0:
        msg = f"Failed to execute discovery script: {script}. Exit code: {run.returncode}"
        raise DiscoveryError(msg)
    hosts: dict[str, int] = {}
    for line in run.stdout.decode(errors="replace").splitlines():
        if not line.strip():
            continue
        try:
            host = parse_host(line, where=f"the output of {script}")
        except HostError as error:
            raise DiscoveryError(str(error)) from error
        has_slots = line.strip().rpartition(":")[2].isdigit() and not line.strip().endswith("]")
        if not has_slots and default_slots is None:
            msg = f"the output of {script}: '{line}' has no slots, and there is no --slots-per-host"
            raise DiscoveryError(msg)
        hosts[host.name] = hosts.get(host.name, 0) + (
            host.slots if has_slots else default_slots or 0
        )
    return hosts
