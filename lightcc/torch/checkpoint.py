"""Saving a training, and going on with it, also on another number of ranks.

A checkpoint is a folder of its own: what all ranks have alike, written by rank 0, and a file of
each rank with its residuals of compression. It appears whole or not at all. All ranks need to
see the folder, so hosts need to share it.

Example:
    >>> import torch
    >>> import lightcc.torch as hvd
    >>> from lightcc.torch import checkpoint
    >>> hvd.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> path = checkpoint.save("checkpoints", model=model, optimizer=optimizer, epoch=3)
    >>> checkpoint.load("checkpoints", model=model, optimizer=optimizer)
    {'epoch': 3}
"""

from __future__ import annotations

import io
import pickle
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from lightcc import _world
from lightcc._ops.basics import rank
from lightcc._ops.compression_state import load_compression_state, save_compression_state
from lightcc._ops.functions import allgather_object, broadcast_object

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

__all__ = ["load", "save"]

T = TypeVar("T")

_NAME = re.compile(r"checkpoint-(\d+)")
_STATE = "state.pt"
_FAILURES = (OSError, ValueError, TypeError, KeyError, RuntimeError, pickle.PickleError)


def save(directory: str | os.PathLike[str], *, keep: int = 2, **values: Any) -> Path:
    """Saves a checkpoint, on all ranks or on none.

    Collective: every rank must call it, after a step, when no gradients are on their way.

    Args:
        directory: Where checkpoints are; is made if need be. All ranks see the same.
        keep: How many checkpoints stay there, this one included; older ones are removed.
        **values: Models, optimizers, learning rate schedules, samplers, and what else has a
            `state_dict()`; of these, rank 0's state is saved. Anything else is saved as it is:
            numbers, strings, tensors, and lists and dicts of them.

    Returns:
        The folder of this checkpoint, the same on all ranks.

    Raises:
        ValueError: lightcc is not initialized, `keep` is below 1, gradients are on their way, or
            another rank cannot save. On all ranks, with that rank's reason.
        TypeError: A value is none of these. On rank 0.
        OSError: A file cannot be written. On the ranks where that is so.
    """
    if keep < 1:
        msg = f"keep={keep}: at least one checkpoint must stay"
        raise ValueError(msg)
    _world.finish()  # What a GPU computes with what never came is not saved.
    parent = Path(directory)
    number = 1 + broadcast_object(_latest(parent) if rank() == 0 else 0, name="checkpoint number")
    partial, final = (parent / f"checkpoint-{number}{ending}" for ending in (".partial", ""))
    try:
        _together("saved", lambda: _write_state(partial, values) if rank() == 0 else None)
        _together("saved", lambda: save_compression_state(partial))
        _together("saved", lambda: partial.rename(final) if rank() == 0 else None)
    except _FAILURES:
        if rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    if rank() == 0:
        for old in range(number - keep, 0, -1):
            if not (parent / f"checkpoint-{old}").exists():
                break
            shutil.rmtree(parent / f"checkpoint-{old}", ignore_errors=True)
    return final


def load(directory: str | os.PathLike[str], **values: Any) -> dict[str, Any] | None:
    """Goes back to the latest checkpoint in `directory`, if there is one.

    Collective: every rank must call it. The number of ranks may be another than when it was saved.
    Residuals are divided anew among all ranks (`load_compression_state()`). After
    an error some of `values` may have their saved state already, so do not train on.

    Args:
        directory: As of `save()`.
        **values: What had a `state_dict()` when it was saved, by the same names. Each gets its
            state back by `load_state_dict()`. Names that are left out stay unused.

    Returns:
        The values that were saved as they are; `None`: there is no checkpoint.

    Raises:
        ValueError: lightcc is not initialized, the checkpoint lacks a name or is damaged, or
            another rank cannot load. On all ranks, with that rank's reason.
        RuntimeError: A state does not fit, as torch says it. On the ranks where that is so.
    """
    parent = Path(directory)
    number = broadcast_object(_latest(parent) if rank() == 0 else 0, name="checkpoint number")
    if number == 0:
        return None
    folder = parent / f"checkpoint-{number}"
    content = _together("loaded", lambda: _read_state(folder) if rank() == 0 else b"")
    content = broadcast_object(content, name="checkpoint state")
    saved: dict[str, Any] = _together("loaded", lambda: _restore(folder, content, values))
    load_compression_state(folder)
    return saved


def _latest(parent: Path) -> int:
    """Returns the highest number of a checkpoint that is whole; 0: there is none."""
    found = [match for path in parent.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return max((int(match[1]) for match in found), default=0)


def _together(done: str, action: Callable[[], T]) -> T:
    """Returns what `action` returns, unless it has failed on any rank: then all ranks raise."""
    result: T | None = None
    failure: Exception | None = None
    try:
        result = action()
    except _FAILURES as error:
        failure = error
    texts = allgather_object(None if failure is None else str(failure), name="checkpoint")
    if failure is not None:
        raise failure
    for other, text in enumerate(texts):
        if text is not None:
            msg = f"no checkpoint was {done}, because rank {other} cannot: {text}"
            raise ValueError(msg)
    return result  # type: ignore[return-value]  # There was no failure.


def _write_state(partial: Path, values: Mapping[str, Any]) -> None:
    objects, plain = {}, {}
    for name, value in values.items():
        if hasattr(value, "state_dict"):
            objects[name] = value.state_dict()
        else:
            _check_plain(name, value)
            plain[name] = value
    shutil.rmtree(partial, ignore_errors=True)  # A job that ended while it saved left this.
    partial.mkdir(parents=True)
    torch.save({"objects": objects, "values": plain}, partial / _STATE)


def _check_plain(name: str, value: Any) -> None:
    """Refuses what could not be read without running code of the file."""
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception as error:
        msg = (
            f"{name}: a {type(value).__name__} has no state_dict() and is no number, string, "
            "tensor, or list or dict of them"
        )
        raise TypeError(msg) from error


def _read_state(folder: Path) -> bytes:
    return (folder / _STATE).read_bytes()


def _restore(folder: Path, content: bytes, values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        objects: dict[str, Any] = state["objects"]
        plain: dict[str, Any] = state["values"]
    except Exception as error:
        msg = f"{folder / _STATE} is damaged: {error}"
        raise ValueError(msg) from error
    missing = [name for name in values if name not in objects]
    if missing:
        msg = f"{folder} has no state of {', '.join(missing)}; it has {', '.join(objects)}"
        raise ValueError(msg)
    for name, value in values.items():
        value.load_state_dict(objects[name])
    return plain
