"""The gradients of one optimizer as compression knows them: its state and their scale."""

from __future__ import annotations

import logging
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from lightcc import _world
from lightcc._ops.compression_state import take_in
from lightcc.compression import find_engine_compressor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lightcc._core import CompressionSpec
    from lightcc.process_sets import ProcessSet

_log = logging.getLogger(__name__)

_VERSION = 1
PREFIX = "allreduce."


class CompressedGradients:
    """The gradients of one optimizer as the engine's compression knows them.

    Attributes:
        spec: What the engine is asked for; None: nothing, LIGHT_TOPK_ALLREDUCE decides.
        scale: By what the loss is multiplied, as far as that was reported.
    """

    def __init__(
        self,
        compression: Any,
        names: Mapping[Any, str],
        process_set: ProcessSet,
        momentum: float | None = None,
    ) -> None:
        """Takes what an optimizer was asked for.

        Args:
            compression: As of DistributedOptimizer.
            names: Names by parameter; may grow.
            process_set: The ranks whose gradients are combined.
            momentum: What the compression applies instead of the optimizer, if anything.
        """
        compressor = find_engine_compressor(compression)
        self.spec: CompressionSpec | None = (
            None if compressor is None else compressor.spec(momentum)
        )
        self._names = names
        self._process_set = process_set
        self._epoch = _world.counting_epoch()
        if compressor is not None:
            self._tell_of_others()
            _alive.add(self)
        self.scale: float | None = None

    def _tell_of_others(self) -> None:
        """Warns where another optimizer calls other parameters the same."""
        for other in _alive:
            if other._process_set is not self._process_set or other._epoch != self._epoch:  # noqa: SLF001
                continue
            theirs = {name: p for p, name in other._names.items()}  # noqa: SLF001
            same = [name for p, name in self._names.items() if theirs.get(name, p) is not p]
            if same:
                _log.warning(
                    "two DistributedOptimizers call different parameters '%s' (and %d more): a"
                    " residual of compression belongs to the name, so they must not train in"
                    " turns; give them different named_parameters",
                    same[0],
                    len(same) - 1,
                )

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals."""
        world, process_set = _world.current(), self._set()
        operations = self.operations()
        tensors = {
            name.removeprefix(PREFIX): state
            for (owner, name), state in world.save_compression().items()
            if owner == process_set and name in operations
        }
        position = world.compression_position(process_set)
        return {"version": _VERSION, "place": position, "scale": self.scale, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes in what `state_dict()` returned, on all ranks of the process set or on none."""
        process_set = self._set()
        if not self._process_set.included():
            return
        position = _world.current().compression_position(process_set)
        states: dict[tuple[int, str], bytes] = {}
        saved: tuple[int, ...] | None = None
        scale: float | None = None
        failure: Exception | None = None
        try:
            saved, scale, tensors = _parse(state)
            self._refuse_momentum(tensors)
            states = {(process_set, PREFIX + name): data for name, data in tensors.items()}
        except ValueError as error:
            failure = error
        if failure is None and states and saved != position:
            warnings.warn(
                f"The compression state of another grid ({saved}, here {position}) is dropped; "
                "load_compression_state() can divide it anew.",
                stacklevel=3,
            )
            states = {}
        take_in(states, failure, self._process_set)
        self.scale = scale

    def _refuse_momentum(self, tensors: Iterable[str]) -> None:
        """Raises ValueError where tensors are not gradients, but what 1-bit Adam sent instead."""
        names = set(self._names.values())
        for name in tensors:
            if name not in names and name.removesuffix(".momentum") in names:
                msg = (
                    f"the compression state of '{name}' is of 1-bit Adam, which lightcc no longer"
                    " has: begin without it, with Compression.int4"
                )
                raise ValueError(msg)

    def set_gradient_scale(self, scale: float) -> None:
        """Multiplies the residuals by what gradients are multiplied by from now on."""
        if not 0.0 < scale < float("inf"):
            msg = f"the gradients' scale is {scale}: expected a finite number above 0"
            raise ValueError(msg)
        if self.scale is not None and scale != self.scale:
            operations = sorted(self.operations())
            _world.current().scale_compression(scale / self.scale, self._set(), operations)
        self.scale = scale

    def expect_gradient_scale(self, scale: float) -> None:
        """Compares, because it is too late to change what has been added to gradients already."""
        if self.scale is not None and scale != self.scale:
            msg = (
                f"the loss was multiplied by {scale:g}, but the residuals have the"
                f" scale {self.scale:g}: call optimizer.set_gradient_scale(scaler.get_scale())"
                " before the first backward() with this GradScaler"
            )
            raise ValueError(msg)
        self.scale = scale

    def compresses(self, num_bytes: int) -> bool:
        """Returns whether a gradient of that size is compressed."""
        return _world.current().compresses(self._set(), num_bytes)

    def operations(self) -> set[str]:
        """Returns the names by which the engine may know the gradients."""
        return {PREFIX + name for name in self._names.values()}

    def _set(self) -> int:
        process_set = self._process_set.process_set_id
        if process_set is None:
            msg = "Process set provided does not exist, or has not been registered."
            raise ValueError(msg)
        return process_set


_alive: weakref.WeakSet[CompressedGradients] = weakref.WeakSet()


def _parse(
    state: Mapping[str, Any],
) -> tuple[tuple[int, ...] | None, float | None, dict[str, bytes]]:
    """Returns place, scale and tensors of a `state_dict()`.

    Raises:
        ValueError: It is none.
    """
    try:
        if state["version"] != _VERSION:
            msg = f"a compression state of version {state['version']}: expected {_VERSION}"
            raise ValueError(msg)
        position, scale = state["place"], state["scale"]
        return (
            None if position is None else tuple(map(int, position)),
            None if scale is None else float(scale),
            {str(name): bytes(tensor) for name, tensor in state["tensors"].items()},
        )
    except (AttributeError, KeyError, TypeError) as error:
        msg = f"what should be a compression state is none: {error!r}"
        raise ValueError(msg) from error
