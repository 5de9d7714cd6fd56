"""`Compression.auto` for frontends that hand gradients to the engine without a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightcc import _world
from lightcc._adapter.compression_tuner import CompressionTuner
from lightcc._adapter.gradient_stream import Slot, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc._core import CompressionSpec
    from lightcc.compression import AutoCompressor
    from lightcc.process_sets import ProcessSet


def compresses_in(process_set: ProcessSet) -> Callable[[int], bool]:
    """Returns what says whether a gradient of so many bytes is compressed in a process set."""
    return lambda num_bytes: _world.current().compresses(process_set.process_set_id or 0, num_bytes)


class TunedSteps:
    """How the gradients of each step travel; a step begins where the one before is over.

    There need not be a world yet: what it says is asked for with the first step.

    Attributes:
        slots: One for each gradient, in the order in which they were given.
        units: What shares a way.
        on_begin: Of the tuner.
    """

    def __init__(
        self,
        compressor: AutoCompressor,
        gradients: Sequence[tuple[str, int]],
        together: Sequence[Sequence[int]],
        process_set: ProcessSet,
        *,
        squares: bool,
    ) -> None:
        """Takes what there is.

        Args:
            compressor: What the caller asked for.
            gradients: Name and bytes of each, the same on all ranks.
            together: Positions of those that share a way; others have ways of their own.
            process_set: The ranks whose gradients are combined.
            squares: Whether the optimizer divides by squares of what arrives.
        """
        self.slots = [Slot(name, num_bytes, "", expected=True) for name, num_bytes in gradients]
        taken = {position for unit in together for position in unit}
        alone = [[position] for position in range(len(self.slots)) if position not in taken]
        self.units = [
            Unit[Slot].bucket([self.slots[position] for position in unit])
            for unit in [*together, *alone]
        ]
        self.on_begin: Callable[[], None] = lambda: None
        self._compressor = compressor
        self._process_set = process_set
        self._squares = squares
        self._tuner: CompressionTuner[Slot] | None = None

    def next_step(self) -> list[CompressionSpec | None]:
        """Returns what the engine is to be asked for in the step that begins, by gradient.

        Collective now and then: every rank of the process set must call it once in each step.

        Raises:
            ValueError: In the first step, no way is within the budget.
            HorovodInternalError: A rank failed. On all ranks.
        """
        if self._tuner is None:
            self._tuner = CompressionTuner(
                self._compressor,
                self,
                compresses_in(self._process_set),
                self._process_set,
                squares=self._squares,
            )
        else:
            self._tuner.begin_step()
        return [slot.spec for slot in self.slots]

    def choices(self) -> dict[str, str]:
        """Returns how each gradient travels now that may be compressed, by its name."""
        return {} if self._tuner is None else self._tuner.choices()
