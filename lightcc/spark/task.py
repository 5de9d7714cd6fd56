"""What a Spark task does: it runs one rank, or serves an elastic job, in a process of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark import BarrierTaskContext, TaskContext

from lightcc._binding import _core
from lightcc.runner.agent import frames
from lightcc.runner.call import rank_command
from lightcc.runner.environment import slot_environment
from lightcc.runner.hosts import Slot, number_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What the first task sets in the store when all have started.
STARTED = "spark/started"
_STORE_S = 30.0
_JOIN_S = 60  # The launcher listens before there are tasks.
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """What all tasks get.

    Attributes:
        call: The function and its arguments, as `runner.call` pickles them.
        environment: Variables of the ranks beside the executor's and the launcher's.
        rendezvous: Address of the job's store.
        secret: What ranks prove.
        executable: The interpreter of the ranks; `None`: that of the task.
        keeps_stdout: Whether what ranks print is handed back. Else Spark's own log gets it.
        keeps_stderr: The same of standard error.
    """

    call: bytes
    environment: dict[str, str]
    rendezvous: str
    secret: str
    executable: str | None
    keeps_stdout: bool
    keeps_stderr: bool


class RankEnd(NamedTuple):
    """How a rank has ended."""

    rank: int
    host: str
    code: int
    outcome: bytes  # Empty, if the process ended before it had one.
    stdout: bytes
    stderr: bytes


def slot_of_task(index: int, host_of_task: list[str]) -> Slot:
    """Returns where a task's rank stands: ranks of a host are neighbours, that of task 0 is 0."""
    hosts = list(dict.fromkeys(host_of_task))
    order = sorted(range(len(host_of_task)), key=lambda it: hosts.index(host_of_task[it]))
    slots = number_ranks([host_of_task[it] for it in order])
    return slots[order.index(index)]


def run_rank(job: Job) -> Iterator[RankEnd]:
    """Runs this task's rank to its end. Blocks: until all tasks have started, too."""
    context = BarrierTaskContext.get()
    host_of_task = context.allGather(os.uname().nodename)
    slot = slot_of_task(context.partitionId(), host_of_task)
    if context.partitionId() == 0:
        store = _core.StoreClient(job.rendezvous, job.secret)
        store.set(STARTED, b"1", _STORE_S)
        store.close()
    variables = slot_environment(slot, rendezvous=job.rendezvous, secret=job.secret)
    with (
        tempfile.TemporaryFile() as call,
        tempfile.TemporaryFile() as outcome,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        call.write(job.call)
        call.seek(0)
        result_fd = {frames.RESULT_FD: str(outcome.fileno())}
        own = os.getpid()
        process = subprocess.Popen(  # noqa: S603  the user's interpreter
            rank_command(job.executable or sys.executable),
            env=os.environ | job.environment | variables | result_fd,
            stdin=call,
            # Standard output may be a pipe to Spark itself.
            stdout=stdout if job.keeps_stdout else 2,
            stderr=stderr if job.keeps_stderr else 2,
            pass_fds=[outcome.fileno()],
            preexec_fn=lambda: _end_with(own),
        )
        code = process.wait()
        found = []
        for file in (outcome, stdout, stderr):
            file.seek(0)
            found.append(file.read())
    yield RankEnd(slot.rank, slot.host, code, *found)


@dataclass(frozen=True)
class WorkerJob:
    """What all tasks of an elastic job get.

    Attributes:
        launcher: Where it listens, HOST:PORT.
        secret: What workers prove.
    """

    launcher: str
    secret: str


#: The command of a rank of an elastic job: the launcher does not know the executors' Python.
RANK_COMMAND = ("/bin/sh", "-c", 'exec "$PYSPARK_PYTHON" -m lightcc.runner.call_rank')


def serve_worker(job: WorkerJob) -> Iterator[int]:
    """Gives an elastic job one slot, until the job is over; yields the number of the task.

    Raises:
        RuntimeError: The worker failed. Spark tries again elsewhere.
    """
    context = TaskContext.get()
    node = os.uname().nodename
    own = os.getpid()
    command = [sys.executable, "-m", "lightcc.runner.agent.worker", "--join", job.launcher]
    name = f"{node}-{context.taskAttemptId()}"  # A host has a slot for each of its tasks.
    done = subprocess.run(  # noqa: S603  this interpreter
        [*command, "--name", name, "--join-timeout", str(_JOIN_S)],
        env=os.environ | {"LIGHT_SECRET": job.secret, "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=2,  # Standard output may be a pipe to Spark itself.
        preexec_fn=lambda: _end_with(own),
        check=False,
    )
    if done.returncode != 0:
        msg = f"the worker of an elastic job on {node} ended with code {done.returncode}"
        raise RuntimeError(msg)
    yield context.partitionId()


def _end_with(parent: int) -> None:
    """Has this process, a new child, end when its parent does: Spark kills tasks."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
