"""Ranks that are forked from a warm process differ from fresh ones in what they cost, not else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from processes import is_running

from lightcc.testing import RankProcesses, mark, spawn_ranks
from lightcc.testing.warm import WarmProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 60.0


@pytest.fixture
def warm() -> Iterator[WarmProcess]:
    process = WarmProcess(["decimal"])
    yield process
    process.stop()


class Probe:
    """Runs the text of a module in a child of `process`."""

    def __init__(self, process: WarmProcess, directory: Path) -> None:
        self.process = process
        self.directory = directory

    def run(self, text: str, *arguments: str, **variables: str) -> tuple[int, str]:
        """Returns the exit code and the output."""
        (self.directory / "probe.py").write_text(text)
        with (self.directory / "output").open("wb") as output:
            child = self.process.start(
                "probe", arguments, environment={**os.environ, **variables}, output=output.fileno()
            )
        return child.wait(), (self.directory / "output").read_text()


@pytest.fixture
def probe(warm: WarmProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return Probe(warm, tmp_path)


def test_a_child_is_a_program_of_its_own(probe: Probe, tmp_path: Path) -> None:
    text = """
import os, sys
print(__name__, sys.modules["__main__"].__file__ == __file__, sys.argv[1:])
print(os.environ["X_TEST"], "X_OTHER" in os.environ, os.getcwd())
print(os.getsid(0) == os.getpgid(0) == os.getpid(), repr(sys.stdin.read()))
print(sorted(int(name) for name in os.listdir("/proc/self/fd"))[:3])
print("to standard error", file=sys.stderr)
"""
    code, output = probe.run(text, "-a", "b", X_TEST="1")
    lines = ["__main__ True ['-a', 'b']", f"1 False {tmp_path}", "True ''", "[0, 1, 2]"]
    assert (code, output.splitlines()) == (0, [*lines, "to standard error"])


def test_a_child_has_no_descriptor_of_the_warm_process(probe: Probe) -> None:
    text = """
import os
for name in os.listdir("/proc/self/fd"):
    target = os.readlink(f"/proc/self/fd/{name}") if os.path.exists(f"/proc/self/fd/{name}") else ""
    if target.startswith(("socket:", "pipe:", "anon_inode:")) and int(name) > 2:
        print(name, target)
"""
    assert probe.run(text) == (0, "")


@pytest.mark.parametrize(
    ("text", "code", "output"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("import os; os._exit(4)", 4, ""),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("import atexit; atexit.register(print, 'last')", 0, "last\n"),
        (
            "import threading, time\n"
            "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
            0,
            "thread\n",
        ),
    ],
)
def test_a_child_ends_as_a_program_does(probe: Probe, text: str, code: int, output: str) -> None:
    assert probe.run(text) == (code, output)


def test_what_a_program_reads_at_its_start_needs_a_process_of_its_own(warm: WarmProcess) -> None:
    assert warm.can_start({**os.environ, "X_TEST": "1", "LIGHT_RANK": "0"})
    for name in ("LD_LIBRARY_PATH", "PYTHONHASHSEED", "OMP_NUM_THREADS"):
        assert not warm.can_start({**os.environ, name: "17"})


def draw() -> tuple[int, float, float]:
    return os.getppid(), random.random(), np.random.random()


def test_ranks_have_one_warm_parent_and_draw_different_numbers() -> None:
    ranks = spawn_ranks(draw, 3)
    assert len({parent for parent, _, _ in ranks}) == 1
    assert ranks[0][0] != os.getpid()
    assert len({number for _, *numbers in ranks for number in numbers}) == 6


def test_ranks_start_from_nothing_where_that_is_asked_for() -> None:
    assert [parent for parent, _, _ in spawn_ranks(draw, 2, fresh=True)] == [os.getpid()] * 2
    ranks = spawn_ranks(draw, 2, env=[{"OMP_NUM_THREADS": "17"}, {}])
    assert [parent == os.getpid() for parent, _, _ in ranks] == [True, False]


def hang() -> None:
    mark("hanging")
    time.sleep(600)


def test_a_warm_process_that_dies_takes_its_ranks_along_and_the_next_test_gets_a_new_one() -> None:
    with RankProcesses(hang, 2) as ranks:
        ranks.wait_mark("hanging")
        first = spawn_ranks(draw, 1)[0][0]
        os.kill(first, signal.SIGKILL)
        results = ranks.wait(PATIENCE_S)
    assert [result.exit_code for result in results] == [-signal.SIGKILL] * 2
    assert spawn_ranks(draw, 1)[0][0] != first


OWNER = """
import os, sys, time
from lightcc.testing import RankProcesses, warm_up

def hang():
    print(os.getpid(), os.getppid(), file=open(sys.argv[0] + ".new", "w"))
    os.rename(sys.argv[0] + ".new", os.environ["PIDS"])
    time.sleep(600)

if __name__ == "__main__":
    warm_up("json")
    with RankProcesses(hang, 1) as ranks:
        ranks.wait(600)
"""


def test_nothing_outlives_the_process_that_asked(tmp_path: Path) -> None:
    script, pids = tmp_path / "owner.py", tmp_path / "pids"
    script.write_text(OWNER.replace("sys.argv[0]", repr(str(pids))))
    owner = subprocess.Popen([sys.executable, script], env={**os.environ, "PIDS": str(pids)})
    deadline = time.monotonic() + PATIENCE_S
    while not pids.exists():
        assert owner.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    owner.kill()
    owner.wait()
    for pid in pids.read_text().split():
        while is_running(int(pid)):
            assert time.monotonic() < deadline, f"process {pid} is still there"
            time.sleep(0.01)
