"""Keeping what top-k compression keeps back, from one job to the next.

Each rank has a file of its own, because each keeps back another part. A file is a zip archive: a
`manifest.json` that says of which rank, grid and tensors it is, and the tensors' states one by one.
"""

from __future__ import annotations

import json
import logging
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lightcc import _core, _world
from lightcc.functions import allgather_object

if TYPE_CHECKING:
    import os

_VERSION = 1
_MANIFEST = "manifest.json"
_log = logging.getLogger(__name__)


class _Tensor(NamedTuple):
    """What one file has of one tensor."""

    process_set: int
    name: str
    place: tuple[int, int, int, int]  # Blocks, block, members, member.
    file: Path
    entry: str  # Its name in the archive.


def save_compression_state(directory: str | os.PathLike[str]) -> Path:
    """Saves what top-k compression keeps back on this rank, for `load_compression_state()`.

    Every rank must call it, with the same directory, when no compressed tensor is in flight: after
    `synchronize()` or the optimizer's step. An older file of this rank is replaced at once or not
    at all.

    Args:
        directory: Is made if need be.

    Returns:
        This rank's file.

    Raises:
        ValueError: lightcc is not initialized, or a compressed tensor is in flight.
        OSError: The file cannot be written.
    """
    world = _world.current()
    states = world.save_compression()
    places = {process_set: world.compression_place(process_set) for process_set, _ in states}
    tensors = [
        {"process_set": process_set, "name": name, "place": places[process_set], "entry": str(i)}
        for i, (process_set, name) in enumerate(states)
    ]
    manifest = {"version": _VERSION, "rank": world.rank, "size": world.size, "tensors": tensors}
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"compression-{world.rank}.zip"
    partial = file.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w") as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest))
        for i, state in enumerate(states.values()):
            archive.writestr(str(i), state)
    partial.replace(file)
    return file


def load_compression_state(directory: str | os.PathLike[str]) -> int:
    """Takes in what `save_compression_state()` saved.

    Collective: every rank must call it, with a directory that has the files of all ranks. The next
    steps are then those that would have followed, bit for bit, if the grid (hosts and ranks per
    host) is as it was. Where only the number of ranks per host changed, what they kept back is
    divided anew among them. What does not fit otherwise, or not on all ranks, is dropped, and the
    log says so.

    Args:
        directory: As of `save_compression_state()`.

    Returns:
        The number of tensors that were taken in, the same on all ranks.

    Raises:
        ValueError: lightcc is not initialized; or a file is damaged. On the ranks where that is so.
        OSError: A file cannot be read. On the ranks where that is so.
        HorovodInternalError: Another rank failed. On all ranks.
    """
    world = _world.current()
    states: dict[tuple[int, str], bytes] = {}
    failure: Exception | None = None
    try:
        states = _find_states(world, Path(directory))
    except (OSError, ValueError) as error:
        failure = error
    # Ranks must go on with the same tensors, and take the same step of each.
    common = set.intersection(*(set(keys) for keys in allgather_object(sorted(states))))
    if failure is not None:
        raise failure
    for key, state in states.items():
        if key in common:
            world.load_compression(*key, state)
        else:
            _log.warning("what was kept back of '%s' is dropped: not all ranks have it", key[1])
    return len(common)


def _find_states(world: _core.World, folder: Path) -> dict[tuple[int, str], bytes]:
    """Returns the states for this rank of all tensors of which the folder has enough."""
    tensors: dict[tuple[int, str], list[_Tensor]] = {}
    for file in sorted(folder.glob("compression-*.zip")):
        for tensor in _read_manifest(file):
            tensors.setdefault((tensor.process_set, tensor.name), []).append(tensor)
    states = {}
    for key, parts in tensors.items():
        place = world.compression_place(key[0])
        state = None if place is None else _state_for(place, parts)
        if state is None:
            _log.warning(
                "what compression kept back of '%s' is dropped: the grid is another one", key[1]
            )
        else:
            states[key] = state
    return states


def _state_for(place: tuple[int, int, int, int], parts: list[_Tensor]) -> bytes | None:
    """Returns the state of a tensor for a rank at `place`, or None where that cannot be had."""
    blocks, block, members, member = place
    block_parts = {part.place[3]: part for part in parts if part.place[:2] == (blocks, block)}
    if not block_parts:
        return None
    old_members = next(iter(block_parts.values())).place[2]
    if sorted(block_parts) != list(range(old_members)):
        return None
    if old_members == members:
        return _read_entry(block_parts[member])
    saved = [_read_entry(block_parts[i]) for i in range(old_members)]
    return _core.reshard_compression(saved, blocks, block, members, member)


def _read_manifest(file: Path) -> list[_Tensor]:
    try:
        with zipfile.ZipFile(file) as archive:
            manifest: Any = json.loads(archive.read(_MANIFEST))
        version = manifest["version"]
        tensors = [
            _Tensor(t["process_set"], t["name"], tuple(t["place"]), file, t["entry"])
            for t in manifest["tensors"]
        ]
    except (zipfile.BadZipFile, KeyError, TypeError, json.JSONDecodeError) as error:
        msg = f"{file} is no compression state, or damaged: {error}"
        raise ValueError(msg) from error
    if version != _VERSION:
        msg = f"{file} is a compression state of version {version}: expected {_VERSION}"
        raise ValueError(msg)
    return tensors


def _read_entry(tensor: _Tensor) -> bytes:
    try:
        with zipfile.ZipFile(tensor.file) as archive:
            return archive.read(tensor.entry)
    except (zipfile.BadZipFile, KeyError) as error:
        msg = f"{tensor.file} is damaged: {error}"
        raise ValueError(msg) from error
