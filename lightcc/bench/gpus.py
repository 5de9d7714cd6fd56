"""What is asked of GPUs: which lightcc can use, and torch and NCCL there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lightcc._binding import _core
from lightcc.bench.peers import clean_environment

_TORCH = Path(__file__).with_name("cuda_tensors.py")


class GpuError(RuntimeError):
    """Nothing can be measured on a GPU here; the text says why."""


def find_gpus() -> list[str]:
    """Returns the names of the GPUs of this process, in the driver's order.

    Raises:
        GpuError: There is none, or lightcc cannot use one of them.
    """
    try:
        found: list[dict[str, Any]] = _core.find_gpus()["gpus"]
    except NotImplementedError as error:
        raise GpuError(str(error)) from error
    for index, gpu in enumerate(found):
        if gpu["objection"]:
            msg = f"GPU {index} ({gpu['name']}) is of no use: {gpu['objection']}"
            raise GpuError(msg)
    return [gpu["name"] for gpu in found]


def why_no_nccl(num_gpus: int, num_ranks: int) -> str:
    """Returns why torch's NCCL cannot be measured on so many ranks; empty where it can.

    Raises:
        GpuError: This interpreter has no torch with CUDA at all.
    """
    objections = _ask_torch()
    if objections["torch"]:
        msg = f"tensors of a GPU are torch's, but {objections['torch']}"
        raise GpuError(msg)
    if objections["nccl"] or num_ranks <= num_gpus:
        return str(objections["nccl"])
    return f"NCCL wants a GPU for each of {num_ranks} ranks, and there are {num_gpus}"


def _ask_torch() -> dict[str, str]:
    """Returns what `cuda_tensors` says of torch, which this process does not import itself."""
    done = subprocess.run(  # noqa: S603 - this interpreter.
        [sys.executable, str(_TORCH)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=clean_environment() | {"PYTHONPATH": python_path()},
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        msg = f"torch cannot be asked for CUDA: {last}"
        raise GpuError(msg)
    said: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return said


def python_path() -> str:
    """Returns a PYTHONPATH with which ranks import the lightcc that this process has."""
    return os.pathsep.join(path or "." for path in sys.path)
