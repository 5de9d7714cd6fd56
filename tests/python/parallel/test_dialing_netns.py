"""Workers that dial in from other hosts, which are network namespaces; links are cut."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING

import pytest
from dialing import BIN, PATIENCE_S, Program
from elastic_training import TRAINING, UNDISTURBED, results
from namespaces import two_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from namespaces import Cables

pytestmark = [pytest.mark.multiproc, pytest.mark.netns]


class Hosts:
    """A launcher on the first host, and workers on both."""

    def __init__(self, stack: contextlib.ExitStack, cables: Cables) -> None:
        self.cables = cables
        self._stack = stack
        self.launcher: Program

    def program(self, host: int, *argv: str, **variables: str) -> Program:
        where = ("ip", "netns", "exec", self.cables.names[host])
        return Program(self._stack, *where, *argv, **variables)

    def launch(self, *argv: str, **variables: str) -> None:
        command = (str(BIN / "lightccrun"), "--listen", ":29600", *argv)
        self.launcher = self.program(0, *command, **variables)
        self.launcher.wait_until_said("workers join by")

    def worker(self, host: int, name: str, *flags: str) -> Program:
        argv = (str(BIN / "lightcc-worker"), "--join", "10.77.0.1", "--name", name, *flags)
        return self.program(host, *argv)


@pytest.fixture(name="hosts")
def joined_hosts() -> Iterator[Hosts]:
    with two_hosts() as cables, contextlib.ExitStack() as stack:
        yield Hosts(stack, cables)


def wait_for(path: Path, program: Program) -> None:
    until = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert program.process.poll() is None, program.said
        assert time.monotonic() < until, program.said


def test_ranks_of_two_hosts_meet_at_the_address_that_the_worker_dialled(hosts: Hosts) -> None:
    script = "import os, lightcc as hvd; hvd.init(); hvd.barrier(); print(hvd.rank(), hvd.size())"
    hosts.launch("-np", "2", "--no-prefix", sys.executable, "-c", script)
    first = hosts.worker(0, "a")
    first.wait_until_said("joined")
    second = hosts.worker(1, "b")
    assert hosts.launcher.end() == 0, hosts.launcher.said
    assert (first.end(), second.end()) == (0, 0)
    assert sorted(hosts.launcher.output.splitlines()) == ["0 2", "1 2"]


# Slow: the kernel takes ten seconds to give up on the connection between launcher and worker.
@pytest.mark.slow
def test_a_job_goes_on_without_a_host_whose_link_is_cut_and_takes_it_back(
    hosts: Hosts, tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()  # Until worker 2 takes part.
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    command = (sys.executable, str(script), json.dumps({"2": [-1, "is awaited"]}), str(tmp_path))
    flags = ("--verbose", "-np", "2", "--min-np", "1")
    # Below the kernel's ten seconds, and long enough for a busy machine.
    hosts.launch(*flags, *command, LIGHT_PEER_TIMEOUT="8")
    hosts.worker(0, "a").wait_until_said("joined")
    lost = hosts.worker(1, "b")
    hosts.launcher.wait_until_said(r"epoch 1: workers \[0, 1\]")
    wait_for(tmp_path / "step.4", hosts.launcher)
    hosts.cables.cut(1)
    hosts.launcher.wait_until_said(r"epoch 2: workers \[0\]")
    assert lost.end() == 75
    hosts.cables.mend(1)
    back = hosts.worker(1, "b")
    assert hosts.launcher.end() == 0, hosts.launcher.said
    assert back.end() == 0
    assert "host b was lost: " in hosts.launcher.said
    found = results(tmp_path)
    assert set(found) == {"0", "2"}
    for about in found.values():
        assert about["weights"] == UNDISTURBED
        assert about["sizes"] == [2, 1, 2]
