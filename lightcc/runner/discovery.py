"""Host discovery scripts: a command of the user's that prints the hosts of an elastic job."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading

from lightcc.runner.hosts import HostError, parse_host


class DiscoveryError(RuntimeError):
    """The script failed, or printed what is no list of hosts."""


class DiscoveryScript:
    """A discovery script, which is run again and again in a thread."""

    def __init__(self, script: str, default_slots: int | None, timeout_s: float) -> None:
        """Takes a command of the shell, slots of hosts printed without, and its time limit."""
        self._script = script
        self._default_slots = default_slots
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def discover_hosts(self) -> dict[str, int]:
        """Runs the script; returns slots by host, in its order. Blocks: for its time limit.

        Raises:
            DiscoveryError: It failed, was killed, or printed what is no list of hosts.
        """
        with self._lock:
            if self._is_stopped:
                msg = f"{self._script} is not run any more"
                raise DiscoveryError(msg)
            self._process = subprocess.Popen(  # noqa: S602  the user's own command
                self._script,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        try:
            output, _ = self._process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.communicate()
            msg = f"{self._script} did not end within {self._timeout_s:g} s (--start-timeout)"
            raise DiscoveryError(msg) from None
        if self._process.returncode != 0:
            msg = (
                f"Failed to execute discovery script: {self._script}. "
                f"Exit code: {self._process.returncode}"
            )
            raise DiscoveryError(msg)
        return _parse(self._script, output.decode(errors="replace"), self._default_slots)

    def stop(self) -> None:
        """Kills the script, if it runs, with what it has started. Any thread may call it."""
        with self._lock:
            self._is_stopped = True
            self._kill()

    def _kill(self) -> None:
        # Its pipe may be held open by what it has started, and so outlive it.
        if self._process is not None and self._process.stdout and not self._process.stdout.closed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _parse(script: str, output: str, default_slots: int | None) -> dict[str, int]:
    hosts: dict[str, int] = {}
    for line in output.splitlines():
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
