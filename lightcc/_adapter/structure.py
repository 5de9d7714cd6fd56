"""Nested state (an optimizer's, a model's) as bytes for its structure and tensors for the rest.

A broadcast of such state sends the structure as an object and the tensors where they lie.
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def take_apart(state: Any, describe: Callable[[Any], Any | None]) -> tuple[bytes, list[Any]]:
    """Returns a picklable object without its tensors, and these.

    A tensor that occurs several times is there once.

    Args:
        state: The object.
        describe: Returns what `put_together()` needs to make a tensor like the given object;
            `None`: it is no tensor.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, describe)
    pickler.dump(state)
    return file.getvalue(), pickler.tensors


def put_together(structure: bytes, make: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    """Returns the object again, and its tensors in the order of `take_apart()`.

    Args:
        structure: As of `take_apart()`, from a process that is trusted: pickles can run code.
        make: Makes a tensor, given what `describe` returned for it.
    """
    unpickler = _Unpickler(io.BytesIO(structure), make)
    state = unpickler.load()
    return state, [tensor for _, tensor in sorted(unpickler.tensors.items())]


class _Pickler(pickle.Pickler):
    """Pickles an object without its tensors, which it collects."""

    def __init__(self, file: io.BytesIO, describe: Callable[[Any], Any | None]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Any] = []
        self._describe = describe
        self._positions: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> tuple[int, Any] | None:
        description = self._describe(obj)
        if description is None:
            return None
        position = self._positions.setdefault(id(obj), len(self.tensors))
        if position == len(self.tensors):
            self.tensors.append(obj)
        return position, description


class _Unpickler(pickle.Unpickler):
    """Makes the object again, with new tensors for those left out."""

    def __init__(self, file: io.BytesIO, make: Callable[[Any], Any]) -> None:
        super().__init__(file)
        self.tensors: dict[int, Any] = {}
        self._make = make

    def persistent_load(self, pid: tuple[int, Any]) -> Any:
        position, description = pid
        if position not in self.tensors:
            self.tensors[position] = self._make(description)
        return self.tensors[position]
