"""Gradients of emulated steps in the stream that DistributedOptimizer hands them over in.

A gradient's name begins with the model's and `q0` to `q3`, the quarter of the layers that it is in:
what scopewise_fusion asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import lightcc as hvd
from lightcc._adapter import GradientStream, Slot
from lightcc.compression import TopKCompressor
from lightcc.fusion import choose_fusion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray


def names_of(model: str, layers: Sequence[Sequence[int]]) -> list[str]:
    """Returns a name for each gradient; `layers` come in the order of back-propagation."""
    names: list[str] = []
    for number, layer in enumerate(layers):
        quarter = 3 - 4 * number // len(layers)
        names += [f"{model}.q{quarter}.{len(names) + i}" for i in range(len(layer))]
    return names


class _Slot(Slot):
    """One gradient, an array that is reduced in place."""

    __slots__ = ("array",)

    def __init__(self, name: str, array: NDArray[np.float32]) -> None:
        super().__init__(name, array.nbytes, str(array.dtype), expected=True)
        self.array = array


class _Arrays:
    """Gradients as a GradientSource: they are where they are, once in every step."""

    def take(self, slot: _Slot, *, grouped: bool) -> NDArray[np.float32]:  # noqa: ARG002
        return slot.array

    def start_alone(self, slot: _Slot) -> Callable[[], None]:
        raise AssertionError(slot.name)

    def put(self, slot: _Slot, output: Any) -> NoReturn:  # noqa: ARG002
        raise AssertionError(slot.name)

    def is_expected(self, slot: _Slot) -> bool:  # noqa: ARG002
        return True

    def too_many_passes(self, slot: _Slot) -> Exception:
        return AssertionError(slot.name)


class StreamedLayers:
    """A schedule: gradients as they come, in the buckets of the strategy in the environment."""

    def __init__(
        self,
        names: Sequence[str],
        gradients: Sequence[NDArray[np.float32]],
        ratio: float | None = None,
    ) -> None:
        """Makes the plan. Collective.

        Args:
            names: Of the gradients, in the order in which they come.
            gradients: Each reduced in place; shape [n].
            ratio: Of the elements that top-k compression keeps; `None`: LIGHT_TOPK_ALLREDUCE
                decides.
        """
        self._slots = [_Slot(n, g) for n, g in zip(names, gradients, strict=True)]
        self._stream: GradientStream[_Slot] = GradientStream(
            _Arrays(),
            self._slots[::-1],  # As an optimizer knows them, which is not as they come.
            [],
            op=hvd.Average,
            process_set=hvd.global_process_set,
            fusion=choose_fusion(),
            spec=None if ratio is None else TopKCompressor(ratio).spec(),
        )

    def combine_by(self, op: int) -> None:
        """Changes how gradients are combined, from the next step on."""
        self._stream.op = op

    def ready(self, index: int) -> None:
        """Takes a gradient; the call does not wait for other ranks."""
        self._stream.ready(self._slots[index])

    def finish(self) -> None:
        """Returns when all gradients are reduced."""
        self._stream.synchronize()
