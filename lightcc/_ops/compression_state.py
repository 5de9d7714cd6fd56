"""Residuals of compression, from one job to the next.

Each rank has a file of its own, because each has another residual. A file is a zip archive: a
`manifest.json` that says of which rank, grid and tensors it is, and the tensors' states one by one.

Ranks that go on with different states fail in the next step, far from the cause. So a state is
taken in by all ranks or by none: each rank checks its own, all hear of all, then all load the same.
"""

from __future__ import annotations

import contextlib
import json
import logging
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lightcc import _world
from lightcc._binding import _core
from lightcc._ops.functions import allgather_object
from lightcc.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    Key: TypeAlias = tuple[int, str]  # Process set, and name of the operation.

_VERSION = 1
_MANIFEST = "manifest.json"
_log = logging.getLogger(__name__)


class _Tensor(NamedTuple):
    """What one file has of one tensor."""

    process_set: int
    name: str
    position: tuple[int, int, int, int]  # Blocks, block, members, member.
    file: Path
    entry: str  # Its name in the archive.
    ranks: tuple[int, ...] | None  # The members of the process set; None in older files.


def save_compression_state(directory: str | os.PathLike[str]) -> Path:
    """Saves the residuals of compression on this rank, for `load_compression_state()`.

    Every rank must call it, with the same directory, when no compressed tensor is in flight: after
    `synchronize()` or the optimizer's step. An older file of this rank is replaced at once or not
    at all.

    Args:
        directory: Is made if need be.

    Returns:
        This rank's file.

    Raises:
        ValueError: lightcc is not initialized, or a compressed tensor is in flight.
        OSError: The file cannot be written. Nothing of it is left.
    """
    world = _world.current()
    states = world.save_compression()
    positions = {process_set: world.compression_position(process_set) for process_set, _ in states}
    sets = world.process_sets()
    tensors = [
        {
            "process_set": process_set,
            "ranks": sets[process_set],
            "name": name,
            "place": positions[process_set],
            "entry": str(i),
        }
        for i, (process_set, name) in enumerate(states)
    ]
    manifest = {"version": _VERSION, "rank": world.rank, "size": world.size, "tensors": tensors}
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"compression-{world.rank}.zip"
    partial = file.with_suffix(".partial")
    try:
        with zipfile.ZipFile(partial, "w") as archive:
            archive.writestr(_MANIFEST, json.dumps(manifest))
            for i, state in enumerate(states.values()):
                archive.writestr(str(i), state)
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return file


def load_compression_state(directory: str | os.PathLike[str]) -> int:
    """Takes in what `save_compression_state()` saved, on all ranks or on none.

    Collective: every rank must call it, with a directory that has the files of all ranks. The next
    steps are then those that would have followed, bit for bit, if the grid (hosts and ranks per
    host) is as it was. Where the number of hosts or of ranks per host changed, the residual is
    divided anew among all ranks, with the same sum. Process sets are known by their ranks. What
    does not fit otherwise, or not on all members of its process set, is dropped, and the log says
    so.

    Args:
        directory: As of `save_compression_state()`.

    Returns:
        The number of tensors that were taken in, the same on all ranks.

    Raises:
        ValueError: lightcc is not initialized; or a file of some rank is damaged or cannot be read.
            On all ranks; the text names the file.
        OSError: A file cannot be read. On the ranks where that is so.
        HorovodInternalError: Another rank failed. On all ranks.
    """
    world = _world.current()
    states: dict[Key, bytes] = {}
    failure: Exception | None = None
    try:
        states = _find_states(world, Path(directory))
    except (OSError, ValueError) as error:
        failure = error
    return take_in(states, failure)


def take_in(
    states: Mapping[Key, bytes],
    failure: Exception | None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Loads states that all members of their process sets have, unless a rank has failed.

    Collective: every rank of `process_set` must call it.

    Args:
        states: What this rank has to load.
        failure: Why this rank could not find that out, if so.
        process_set: The ranks that load; all ranks of the states' process sets are among them.

    Returns:
        The number of tensors that were taken in, the same on all ranks.

    Raises:
        ValueError: A rank has failed, or a state is damaged or in flight. On all ranks.
        Exception: `failure`. On this rank.
    """
    world = _world.current()
    tensors: dict[Key, tuple[str, int, int]] = {}
    if failure is None:
        name = ""
        try:
            for (process_set_id, name), state in states.items():
                checked = world.check_compression(process_set_id, name, state)
                tensors[process_set_id, name] = checked
        except ValueError as error:
            failure = ValueError(f"compression's residual of '{name}': {error}")
    report = (world.rank, tensors, None if failure is None else str(failure))
    reports = allgather_object(report, "compression_state", process_set)
    if failure is not None:
        raise failure
    for rank, _, text in reports:
        if text is not None:
            msg = f"no rank has loaded its compression state, because rank {rank} cannot: {text}"
            raise ValueError(msg)
    common = _common({rank: found for rank, found, _ in reports}, world.process_sets())
    for key, state in states.items():
        if key in common:
            world.load_compression(*key, state)
        else:
            _log.warning(
                "compression's residual of '%s' is dropped: not all ranks have it of the same step",
                key[1],
            )
    return len(common)


def _common(
    tensors: Mapping[int, Mapping[Key, tuple[str, int, int]]], sets: Mapping[int, list[int]]
) -> set[Key]:
    """Returns what all members of its process set have alike, given what each rank has."""
    common = set()
    for key in {key for found in tensors.values() for key in found}:
        members = sets.get(key[0], [])
        found = {tensors.get(rank, {}).get(key) for rank in members}
        if len(found) == 1 and None not in found:
            common.add(key)
    return common


def _find_states(world: _core.World, folder: Path) -> dict[Key, bytes]:
    """Returns the states for this rank of all tensors of which the folder has enough."""
    sets = world.process_sets()
    parts: dict[Key, list[_Tensor]] = {}
    for file in sorted(folder.glob("compression-*.zip")):
        for tensor in _read_manifest(file):
            process_set = _find_set(sets, tensor)
            if process_set is None:
                _log.warning(
                    "compression's residual of '%s' is dropped: there is no process set of the"
                    " ranks %s any more",
                    tensor.name,
                    tensor.ranks,
                )
            elif world.rank in sets[process_set]:
                parts.setdefault((process_set, tensor.name), []).append(tensor)
    states = {}
    for key, tensors in parts.items():
        position = world.compression_position(key[0])
        state = None if position is None else _state_for(position, tensors)
        if state is None:
            _log.warning(
                "compression's residual of '%s' is dropped: the grid is another one", key[1]
            )
        else:
            states[key] = state
    return states


def _find_set(sets: Mapping[int, list[int]], tensor: _Tensor) -> int | None:
    """Returns the number that the process set of `tensor` has now, if there is one."""
    if tensor.process_set == 0 or tensor.ranks is None:
        return tensor.process_set if tensor.process_set in sets else None
    return next((i for i, ranks in sets.items() if i and tuple(ranks) == tensor.ranks), None)


def _state_for(position: tuple[int, int, int, int], parts: list[_Tensor]) -> bytes | None:
    """Returns the state of a tensor for a rank at `place`, or None where that cannot be had."""
    blocks, block, members, member = position
    block_parts = {part.position[3]: part for part in parts if part.position[:2] == (blocks, block)}
    if not block_parts:
        return _state_of_others(position, parts)
    old_members = next(iter(block_parts.values())).position[2]
    if sorted(block_parts) != list(range(old_members)):
        return None
    if old_members == members:
        return _read_entry(block_parts[member])
    saved = [_read_entry(block_parts[i]) for i in range(old_members)]
    with _naming(block_parts.values()):
        return _core.regroup_compression(saved[0], saved, blocks, block, members, member)


def _state_of_others(position: tuple[int, int, int, int], parts: list[_Tensor]) -> bytes | None:
    """Returns the same where the number of blocks was another: block i goes to block i mod n."""
    blocks, block, members, member = position
    by_grid: dict[tuple[int, int], dict[tuple[int, int], _Tensor]] = {}
    for part in parts:
        old_blocks, old_block, old_members, old_member = part.position
        by_grid.setdefault((old_blocks, old_members), {})[old_block, old_member] = part
    whole = [(grid, found) for grid, found in by_grid.items() if len(found) == grid[0] * grid[1]]
    if len(whole) != 1:  # Nothing else in the folder is left of an older grid.
        return None
    (_, old_members), found = whole[0]
    mine = [
        part
        for (old_block, old_member), part in sorted(found.items())
        if old_block % blocks == block and (old_members != members or old_member == member)
    ]
    with _naming(mine):
        saved = [_read_entry(part) for part in mine]
        like = saved[0] if saved else _read_entry(found[0, 0])
        return _core.regroup_compression(like, saved, blocks, block, members, member)


@contextlib.contextmanager
def _naming(parts: Iterable[_Tensor]) -> Iterator[None]:
    """Adds to a ValueError which tensor and files it is about."""
    try:
        yield
    except ValueError as error:
        found = list(parts)
        files = ", ".join(str(part.file) for part in found)
        msg = f"'{found[0].name}' in {files}: {error}" if found else str(error)
        raise ValueError(msg) from error


def _read_manifest(file: Path) -> list[_Tensor]:
    try:
        with zipfile.ZipFile(file) as archive:
            manifest: Any = json.loads(archive.read(_MANIFEST))
        version = manifest["version"]
        tensors = [_to_tensor(file, entry) for entry in manifest["tensors"]]
    except OSError:
        raise
    except Exception as error:  # zipfile has many for what is damaged.
        msg = f"{file} is not a compression state, or is damaged: {error}"
        raise ValueError(msg) from error
    if version != _VERSION:
        msg = f"{file} is a compression state of version {version}: expected {_VERSION}"
        raise ValueError(msg)
    return tensors


def _to_tensor(file: Path, entry: Mapping[str, Any]) -> _Tensor:
    """Returns a tensor of the manifest. Numbers and strings are such, or that is an error."""
    blocks, block, members, member = map(int, entry["place"])
    ranks = entry.get("ranks")
    return _Tensor(
        int(entry["process_set"]),
        str(entry["name"]),
        (blocks, block, members, member),
        file,
        str(entry["entry"]),
        None if ranks is None else tuple(map(int, ranks)),
    )


def _read_entry(tensor: _Tensor) -> bytes:
    try:
        with zipfile.ZipFile(tensor.file) as archive:
            return archive.read(tensor.entry)
    except OSError:
        raise
    except Exception as error:
        msg = f"{tensor.file} is damaged: {error}"
        raise ValueError(msg) from error
