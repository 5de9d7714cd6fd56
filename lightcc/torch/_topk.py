"""What DistributedOptimizer has to do with top-k compression: its state, momentum and scale."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lightcc import _world
from lightcc.compression import find_topk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from lightcc._core import TopkSpec
    from lightcc.process_sets import ProcessSet

_VERSION = 1
_PREFIX = "allreduce."


class CompressedGradients:
    """The gradients of one optimizer as the engine's compression knows them.

    Attributes:
        spec: What the engine is asked for; None: nothing, LIGHT_TOPK_ALLREDUCE decides.
    """

    def __init__(
        self,
        compression: Any,
        groups: list[dict[str, Any]],
        names: Mapping[torch.Tensor, str],
        process_set: ProcessSet,
    ) -> None:
        """Checks the arguments of DistributedOptimizer that concern compression."""
        topk = find_topk(compression)
        takes_over = topk is not None and topk.momentum_correction is not False
        if takes_over:
            _check_groups(groups)
        momentum = groups[0].get("momentum") if takes_over else None
        self.spec: TopkSpec | None = None if topk is None else topk.spec(momentum)
        self._takes_over = takes_over
        self._names = names
        self._process_set = process_set
        self._scale: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """Returns what is kept back on this rank."""
        world, process_set = _world.current(), self._set()
        names = set(self._names.values())
        tensors = {
            name.removeprefix(_PREFIX): state
            for (owner, name), state in world.save_compression().items()
            if owner == process_set and name.removeprefix(_PREFIX) in names
        }
        place = world.compression_place(process_set)
        return {"version": _VERSION, "place": place, "scale": self._scale, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes in what `state_dict()` returned."""
        if state.get("version") != _VERSION:
            msg = f"a compression state of version {state.get('version')}: expected {_VERSION}"
            raise ValueError(msg)
        world, process_set = _world.current(), self._set()
        place = world.compression_place(process_set)
        saved = None if state["place"] is None else tuple(state["place"])
        self._scale = state["scale"]
        if saved != place:
            warnings.warn(
                f"The compression state of another grid ({saved}, here {place}) is dropped; "
                "load_compression_state() can divide it anew.",
                stacklevel=3,
            )
            return
        for name, tensor in state["tensors"].items():
            world.load_compression(process_set, _PREFIX + name, tensor)

    def set_gradient_scale(self, scale: float) -> None:
        """Multiplies what is kept back as gradients are from now on."""
        if not 0.0 < scale < float("inf"):
            msg = f"the gradients' scale is {scale}: expected a finite number above 0"
            raise ValueError(msg)
        if self._scale is not None and scale != self._scale:
            operations = [_PREFIX + name for name in self._names.values()]
            _world.current().scale_compression(scale / self._scale, self._set(), operations)
        self._scale = scale

    def expect_gradient_scale(self, scale: float) -> None:
        """Compares, because it is too late to change what has been added to gradients already."""
        if self._scale is not None and scale != self._scale:
            msg = (
                f"the loss was multiplied by {scale:g}, but what compression kept back has the"
                f" scale {self._scale:g}: call optimizer.set_gradient_scale(scaler.get_scale())"
                " before the first backward() with this GradScaler"
            )
            raise ValueError(msg)
        self._scale = scale

    @contextmanager
    def without_momentum(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        """Lets an optimizer step without its momentum where the compression has applied it.

        Compressed parameters are put into groups of their own for the time of the step; what the
        optimizer remembers belongs to parameters, not groups.
        """
        if not self._takes_over:
            yield
            return
        world, process_set = _world.current(), self._set()
        before = list(groups)
        parts: list[dict[str, Any]] = []
        for group in before:
            compressed: list[Any] = []
            others: list[Any] = []
            for p in group["params"]:
                num_bytes = p.numel() * p.element_size()
                (compressed if world.compresses(process_set, num_bytes) else others).append(p)
            parts.append({**group, "params": others})
            parts.append({**group, "params": compressed, "momentum": 0.0})
        groups[:] = parts
        try:
            yield
        finally:
            groups[:] = before

    def _set(self) -> int:
        process_set = self._process_set.process_set_id
        if process_set is None:
            msg = "Process set provided does not exist, or has not been registered."
            raise ValueError(msg)
        return process_set


def _check_groups(groups: list[dict[str, Any]]) -> None:
    """Refuses optimizers whose momentum the compression cannot apply instead of them."""
    momenta = {group.get("momentum") for group in groups}
    if len(momenta) != 1 or not all(momenta):
        found = ", ".join(sorted(map(str, momenta)))
        msg = (
            "momentum_correction needs an optimizer with the same momentum in all parameter groups,"
            f" such as SGD(momentum=0.9); here it is {found}."
        )
        raise ValueError(msg)
    if any(group.get("nesterov") or group.get("dampening") for group in groups):
        msg = "momentum_correction is plain momentum: without nesterov and dampening."
        raise ValueError(msg)
