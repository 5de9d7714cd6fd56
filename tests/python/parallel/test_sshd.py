"""Launching on another host over real ssh: hosts are network namespaces, each with its own sshd."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from dialing import Program
from elastic_training import TRAINING, UNDISTURBED, results
from iproute import ip
from namespaces import two_hosts
from processes import run_to_end

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.multiproc, pytest.mark.netns]
PATIENCE_S = 60.0
ADDRESSES = ("10.77.0.1", "10.77.0.2")

SCRIPT = """
import os, sys
from pathlib import Path
import numpy as np
import lightcc as hvd

hvd.init()
total = hvd.allreduce(np.arange(3.0) + hvd.rank(), op=hvd.Sum).tolist()
secret = os.environ.get("LIGHT_SECRET") or "never empty"
shown = [p for p in Path("/proc").glob("[0-9]*/cmdline") if secret.encode() in p.read_bytes()]
place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_rank()
where = "ssh" if "SSH_CONNECTION" in os.environ else "here"
print("rank", *place, total, len(shown), where, flush=True)
hvd.barrier()
if sys.argv[1:] == ["die"] and hvd.rank() == 1:
    os._exit(7)
hvd.barrier()
"""


class Site(NamedTuple):
    """A launcher's surroundings."""

    namespace: str
    other: str
    key: Path
    variables: dict[str, str]

    def command(self, *command: str) -> list[str]:
        """Returns lightccrun in the first namespace, with one rank there and one in the other."""
        hosts = ",".join(f"{address}:1" for address in ADDRESSES)
        return [
            *("ip", "netns", "exec", self.namespace, sys.executable, "-m", "lightcc.runner"),
            *("-H", hosts, "--ssh-identity-file", str(self.key), *command),
        ]

    def launch(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs lightccrun to its end."""
        return run_to_end(
            self.command(*command), timeout=PATIENCE_S, env=os.environ | self.variables
        )


@pytest.fixture(name="site")
def two_sshds(tmp_path: Path) -> Iterator[Site]:
    sshd = shutil.which("sshd")
    if sshd is None:
        pytest.skip("sshd is not installed (tools/install_system_packages.sh)")
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True
        )
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized")
    host_key = " ".join((tmp_path / "host.pub").read_text().split()[:2])
    (tmp_path / "known").write_text("".join(f"{a} {host_key}\n" for a in ADDRESSES))
    (tmp_path / "ssh_config").write_text(
        f"Host *\n UserKnownHostsFile {tmp_path}/known\n StrictHostKeyChecking yes\n"
    )
    # Only the configuration is the test's; program, protocol and keys are real.
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/ssh_config "$@"\n')
    program.chmod(0o755)
    os.makedirs("/run/sshd", exist_ok=True)  # Where sshd wants to be jailed.
    with two_hosts() as cables, contextlib.ExitStack() as stack:
        for address, namespace in zip(ADDRESSES, cables.names, strict=True):
            options = {
                "ListenAddress": address,
                "HostKey": tmp_path / "host",
                "AuthorizedKeysFile": tmp_path / "authorized",
                "PidFile": "none",
                "StrictModes": "no",
                "UsePAM": "no",
                "PermitRootLogin": "prohibit-password",
                "PasswordAuthentication": "no",
            }
            words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
            process = stack.enter_context(
                subprocess.Popen(
                    ["ip", "netns", "exec", namespace, sshd, "-D", "-e", "-f", "/dev/null", *words],
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.terminate)
            assert process.stderr is not None
            assert "Server listening" in process.stderr.readline()
        path = f"{program.parent}:{os.environ['PATH']}"
        yield Site(cables.names[0], cables.names[1], tmp_path / "user", {"PATH": path})


def test_ranks_meet_over_ssh_and_the_secret_is_in_no_argument_list(
    site: Site, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    result = site.launch("--no-prefix", sys.executable, str(script))
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(line for line in result.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 2 0 0 [1.0, 3.0, 5.0] 0 here",
        "rank 1 2 0 1 [1.0, 3.0, 5.0] 0 ssh",
    ]


def test_a_rank_that_dies_behind_ssh_ends_the_job_with_its_exit_code(
    site: Site, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    begin = time.monotonic()
    result = site.launch(sys.executable, str(script), "die")
    assert result.returncode == 7, result.stdout + result.stderr
    assert "rank 1 on 10.77.0.2: exit code 7" in result.stderr
    assert time.monotonic() - begin < PATIENCE_S / 2


def test_a_key_that_the_host_refuses_is_an_error_that_names_the_host(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "authorized").write_text("")
    result = site.launch(sys.executable, "-c", "pass")
    assert result.returncode != 0
    assert "10.77.0.2" in result.stderr
    assert "Permission denied" in result.stderr


def agents(namespace: str) -> list[int]:
    """Returns the agents that ssh has started there."""
    found = []
    for pid in ip("netns", "pids", namespace).split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It has ended since.
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"lightcc.runner.agent.remote" in arguments:
                found.append(int(pid))
    return found


def test_sigterm_at_an_agent_drains_its_host(site: Site, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    program = (sys.executable, str(script), "{}", str(tmp_path))
    with contextlib.ExitStack() as stack:
        launcher = Program(stack, *site.command("--min-np", "1", *program), **site.variables)
        until = time.monotonic() + PATIENCE_S
        while not (tmp_path / "step.4").exists():
            assert launcher.process.poll() is None, launcher.said
            assert time.monotonic() < until, launcher.said
            time.sleep(0.1)
        (agent,) = agents(site.other)
        os.kill(agent, signal.SIGTERM)
        launcher.wait_until_said(f"host {ADDRESSES[1]} leaves: its worker got SIGTERM")
        while agents(site.other):
            assert time.monotonic() < until, launcher.said
            time.sleep(0.1)
        (tmp_path / "wait").unlink()
        assert launcher.end() == 0, launcher.said
    (about,) = results(tmp_path).values()
    assert about["weights"] == UNDISTURBED
    assert about["sizes"] == [2, 1]
