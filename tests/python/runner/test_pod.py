"""lightcc-pod: who gets SIGTERM, how long the server lives, and what it ends with."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dialing import code_of

from lightcc.runner.agent import pod

if TYPE_CHECKING:
    from collections.abc import Iterator

POD = str(Path(sys.executable).parent / "lightcc-pod")
PATIENCE_S = 60.0

#: Writes when it is there, and when it gets SIGTERM; the words say what it does then.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path

name, what = sys.argv[1:3]
TEXT = Path("program.py").read_text()
def on_term(*_):
    Path(name + ".told").write_text(" ".join(sorted(p.name for p in Path(".").glob("*.told"))))
    if what == "ends":
        os._exit(0)
signal.signal(signal.SIGTERM, on_term)
children = [os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", TEXT,
            *words.split()], dict(os.environ, OMPI_COMM_WORLD_RANK="0")) for words in sys.argv[3:]]
while not all(Path(words.split()[0] + ".here").exists() for words in sys.argv[3:]):
    time.sleep(0.01)
Path(name + ".here").touch()
while not Path("over").exists():
    time.sleep(0.05)
"""


@pytest.fixture(name="folder")
def folder_of_programs(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


class Server:
    """lightcc-pod over a server, which has ranks below it."""

    def __init__(self, folder: Path, *flags: str, ranks: tuple[str, ...]) -> None:
        command = (sys.executable, "-S", "program.py", "server", "ends", *ranks)
        self.folder = folder
        self.process = subprocess.Popen([POD, *flags, *command], cwd=folder, text=True)
        until = time.monotonic() + PATIENCE_S
        while not (folder / "server.here").exists():
            assert self.process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)


@pytest.fixture(name="servers")
def servers_that_end() -> Iterator[list[Server]]:
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.process.kill()
        server.process.wait()
        (server.folder / "over").touch()  # Outside a pod, ranks that stay outlive it.


def test_the_server_lives_until_ranks_have_ended(folder: Path, servers: list[Server]) -> None:
    server = Server(folder, ranks=("rank ends",))
    servers.append(server)
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert (folder / "rank.told").read_text() == ""
    assert (folder / "server.told").read_text() == "rank.told"


def test_ranks_that_stay_are_not_awaited_longer_than_the_grace_period(
    folder: Path, servers: list[Server]
) -> None:
    server = Server(folder, "--grace", "0.2", ranks=("rank stays",))
    servers.append(server)
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert (folder / "rank.told").exists()


def test_a_second_signal_ends_the_server_at_once(folder: Path, servers: list[Server]) -> None:
    server = Server(folder, "--grace", "1000000", ranks=("rank stays",))
    servers.append(server)
    server.process.send_signal(signal.SIGTERM)
    until = time.monotonic() + PATIENCE_S
    while not (folder / "rank.told").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0


@pytest.mark.parametrize(
    ("command", "code"), [(("sh", "-c", "kill -KILL $$"), 128 + 9), (("no-such-program",), 127)]
)
def test_the_exit_code_is_that_of_the_command(command: tuple[str, ...], code: int) -> None:
    done = subprocess.run([POD, *command], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    if code == 127:
        assert "cannot run 'no-such-program': No such file" in done.stderr


def test_orphans_are_taken_in_and_reaped(tmp_path: Path) -> None:
    script = f"""
    sh -c 'sleep 0.5 & echo $! > {tmp_path}/orphan'
    orphan=$(cat {tmp_path}/orphan)
    [ $(ps -o ppid= -p $orphan) = $PPID ]
    while [ -e /proc/$orphan ]; do sleep 0.01; done
    """
    done = subprocess.run([POD, "sh", "-ec", script], timeout=PATIENCE_S, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("flags", "text"),
    [([], "a command is needed"), (["--grace", "soon", "sh"], "'soon' is not a number of seconds")],
)
def test_flags_that_are_not_allowed(
    flags: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(pod.main, flags) == 2
    assert text in capsys.readouterr().err


def add(proc: Path, pid: int, parent: int, words: str, variables: str = "") -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a name) with) S {parent} 1 1")
    (folder / "cmdline").write_bytes(words.replace(" ", "\0").encode() + b"\0")
    (folder / "environ").write_bytes(variables.replace(" ", "\0").encode() + b"\0")


def test_agents_and_ranks_of_mpirun_are_told_but_nobody_below_them_or_elsewhere(
    tmp_path: Path,
) -> None:
    rank = "PATH=/bin OMPI_COMM_WORLD_RANK=3"
    add(tmp_path, 1, 0, "lightcc-pod /usr/sbin/sshd -De")
    add(tmp_path, 2, 1, "sshd -De")
    add(tmp_path, 10, 2, "python -m lightcc.runner.agent.remote")
    add(tmp_path, 11, 10, "python train.py", "LIGHT_RANK=0 PMI_RANK=1")
    add(tmp_path, 20, 2, "orted")
    add(tmp_path, 21, 20, "python train.py", rank)
    add(tmp_path, 22, 21, "a loader of data", rank)
    add(tmp_path, 30, 1, "an orphan", "PMI_RANK=0")
    add(tmp_path, 40, 0, "of another container", rank)
    (tmp_path / "50").mkdir()  # It has ended meanwhile.
    assert pod.runners_of_ranks(tmp_path, 1) == [10, 21, 30]
