"""What the launcher tells an agent to run: the JSON of a JOB frame."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcc.runner.environment import slot_environment, torch_environment, worker_environment
from lightcc.runner.hosts import number_ranks

if TYPE_CHECKING:
    from lightcc.runner.arguments import LaunchOptions
    from lightcc.runner.driver import Start


def job_for(
    host: str,
    options: LaunchOptions,
    environment: dict[str, str],
    rendezvous: str,
    secret: str,
    master: tuple[str, int] | None = None,
) -> dict[str, Any]:
    """Returns the agent's job: `cwd`, `command`, `environment` for all, `ranks` with theirs.

    Args:
        host: Of the agent, as the slots call it.
        options: What to run, and the slots.
        environment: What all ranks get besides what `options` say.
        rendezvous: Address of the store, as the host reaches it.
        secret: The job's; "" if the agent has it.
        master: Where torch.distributed may meet, as the host reaches it; `None`: it is not told.
    """
    sees_torch = not (os.environ.get("LIGHTCC_HOROVOD") or "LIGHTCC_HOROVOD" in options.environment)
    # Trainers start torch.distributed when they are told. A rank's own variables are another job's.
    defaults = "environment" if "LIGHT_RANK" in os.environ else "defaults"
    # Ranks write to pipes, where Python would hold lines back.
    unbuffered = {"PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1")}
    ranks: list[dict[str, Any]] = []
    for slot in options.slots:
        if slot.host == host:
            own = slot_environment(slot, rendezvous=rendezvous, secret=secret)
            ranks.append({"rank": slot.rank, "environment": own, "defaults": {}})
            if master and sees_torch:
                ranks[-1][defaults] |= torch_environment(slot, *master)
    return {
        "cwd": str(Path.cwd()),
        "command": options.command,
        "environment": unbuffered | environment | options.environment,
        "ranks": ranks,
        "grace_s": options.grace_s,
    }


def job_of_worker(
    start: Start, options: LaunchOptions, environment: dict[str, str], rendezvous: str, secret: str
) -> dict[str, Any]:
    """Returns the same for one worker of an elastic job."""
    slot = number_ranks(list(start.hosts))[start.rank]
    job = job_for(start.host, replace(options, slots=[slot]), environment, rendezvous, secret)
    job["ranks"][0]["rank"] = start.worker
    job["ranks"][0]["environment"] |= worker_environment(start.worker)
    return job
