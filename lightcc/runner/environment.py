"""What the launcher tells a rank through its environment.

One table (`LAUNCHER_VARIABLES`) lists the variables. docs/reference/environment.md has its rows.
The Horovod names are set beside our own, so that scripts which read them keep working.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightcc.runner.hosts import Slot


class LauncherVariable(NamedTuple):
    """One variable that the launcher sets for every rank."""

    name: str
    alias: str
    meaning: str


LAUNCHER_VARIABLES = (
    LauncherVariable("LIGHT_RANK", "HOROVOD_RANK", "This process's rank, 0 to size - 1."),
    LauncherVariable("LIGHT_SIZE", "HOROVOD_SIZE", "Number of ranks of the job."),
    LauncherVariable(
        "LIGHT_LOCAL_RANK", "HOROVOD_LOCAL_RANK", "Position among the ranks of the same host."
    ),
    LauncherVariable("LIGHT_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE", "Number of ranks on this host."),
    LauncherVariable(
        "LIGHT_CROSS_RANK",
        "HOROVOD_CROSS_RANK",
        "Position of this host among the hosts that have this local rank.",
    ),
    LauncherVariable(
        "LIGHT_CROSS_SIZE", "HOROVOD_CROSS_SIZE", "Number of hosts that have this local rank."
    ),
    LauncherVariable("LIGHT_HOSTNAME", "HOROVOD_HOSTNAME", "This host as the launcher calls it."),
    LauncherVariable(
        "LIGHT_RENDEZVOUS", "", "host:port of the store through which the ranks find each other."
    ),
    LauncherVariable(
        "LIGHT_SECRET", "", "The job's secret, which every connection proves. Never in argv."
    ),
    LauncherVariable(
        "LIGHT_WORKER",
        "",
        "Number of this process in an elastic job, which no other ever has. There, rank and size "
        "are those of its start.",
    ),
    LauncherVariable(
        "LIGHT_COMMIT_FDS",
        "",
        "Descriptors of the memory in which the agent of a host "
        "[keeps commits](../running/elastic.md#commits-that-outlive-ranks).",
    ),
)

# What belongs to the launcher's login session, machine or pod, not to the job.
_NOT_FORWARDED = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "DISPLAY",
        "HOME",
        "HOSTNAME",
        "K_MPI_JOB_ROLE",
        "LOGNAME",
        "LS_COLORS",
        "MAIL",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_VISIBLE_DEVICES",
        "OLDPWD",
        "PWD",
        "SHELL",
        "SHLVL",
        "TERM",
        "TMPDIR",
        "USER",
        "_",
    }
)
_LIGHTCC_PREFIXES = ("LIGHT_", "LIGHTCC_", "HOROVOD_")
_NOT_FORWARDED_PREFIXES = (
    *("BASH_FUNC_", "DBUS_", "HYDRA_", "I_MPI_HYDRA_", "KUBERNETES_", "OMPI_MCA_", "PMI_", "PMIX_"),
    *("SLURM_", "SSH_", "TMUX", "XDG_"),
)


def make_secret() -> str:
    """Returns 256 random bits as text."""
    return secrets.token_hex(32)


def slot_environment(slot: Slot, *, rendezvous: str, secret: str) -> dict[str, str]:
    """Returns the variables of `LAUNCHER_VARIABLES`, under both names, for one rank.

    Without LIGHT_SECRET if `secret` is empty: then the rank's agent knows it.
    """
    values = {
        "LIGHT_RANK": str(slot.rank),
        "LIGHT_SIZE": str(slot.size),
        "LIGHT_LOCAL_RANK": str(slot.local_rank),
        "LIGHT_LOCAL_SIZE": str(slot.local_size),
        "LIGHT_CROSS_RANK": str(slot.cross_rank),
        "LIGHT_CROSS_SIZE": str(slot.cross_size),
        "LIGHT_HOSTNAME": slot.host,
        "LIGHT_RENDEZVOUS": rendezvous,
    }
    if secret:
        values["LIGHT_SECRET"] = secret
    aliases = {row.alias: values[row.name] for row in LAUNCHER_VARIABLES if row.alias}
    return values | aliases | {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}


def torch_environment(slot: Slot, host: str, port: int) -> dict[str, str]:
    """Returns what `init_process_group()` reads; variables that are set already stay."""
    return {
        "RANK": str(slot.rank),
        "WORLD_SIZE": str(slot.size),
        "LOCAL_RANK": str(slot.local_rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


def worker_environment(number: int) -> dict[str, str]:
    """Returns what a worker of an elastic job has besides."""
    return {"LIGHT_WORKER": str(number), "HOROVOD_ELASTIC": "1"}


def default_environment(slots: Sequence[Slot], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns what ranks get where the user's environment says nothing, as under torchrun."""
    if "OMP_NUM_THREADS" in environ or all(slot.local_size == 1 for slot in slots):
        return {}
    return {"OMP_NUM_THREADS": "1"}


def forwarded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns what of the launcher's own environment a rank on another host should see."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _NOT_FORWARDED and not name.startswith(_NOT_FORWARDED_PREFIXES)
    }


def dialed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns what of it a rank of a worker that has dialled in should see."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_LIGHTCC_PREFIXES) and not name.startswith("LIGHT_SECRET")
    }
