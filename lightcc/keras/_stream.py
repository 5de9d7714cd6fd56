"""The gradients of a step where they are tensors that the engine takes: torch's or numpy's.

All of a step's gradients are there at once, so they are handed to a stream of `lightcc/_adapter`
one after another, and awaited. The stream is made when the first gradients show what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightcc import _world
from lightcc._adapter import (
    CompressionTuner,
    GradientStream,
    Slot,
    check_groups,
    compresses_in,
    plan_groups,
    ways_within,
)
from lightcc._keras.values import Values
from lightcc._ops.reductions import Average, Sum, check_op
from lightcc._warnings import say_where_nothing_is_compressed
from lightcc.compression import AutoCompressor, engine_spec, find_engine_compressor
from lightcc.fusion import choose_fusion, digest_of
from lightcc.process_sets import set_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc._keras import Settings


class _Slot(Slot):
    """One variable's gradient, and where it is now.

    Attributes:
        sent: What is combined in place.
    """

    __slots__ = ("sent", "zeros")

    def __init__(self, name: str, sent: Any, zeros: Callable[[Any], Any]) -> None:
        super().__init__(name, sent.nbytes, str(sent.dtype), expected=True)
        self.sent = sent
        self.zeros = zeros


class _Gradients:
    """Gradients as a GradientSource; one that this rank does not have is zeros."""

    def take(self, slot: _Slot, *, grouped: bool) -> Any:  # noqa: ARG002
        return slot.sent

    def start_alone(self, slot: _Slot) -> Callable[[], None]:
        raise AssertionError(slot.name)

    def put(self, slot: _Slot, output: Any) -> None:  # noqa: ARG002
        raise AssertionError(slot.name)

    def is_expected(self, slot: _Slot) -> bool:  # noqa: ARG002
        return True

    def too_many_passes(self, slot: _Slot) -> Exception:
        return AssertionError(slot.name)


class StreamExchange:
    """Combines lists of gradients over all ranks of a process set."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        to_send: Callable[[Any], Any],
        zeros: Callable[[Any], Any],
    ) -> None:
        """Checks the settings.

        Args:
            name: Begins the names of gradients.
            settings: Of the optimizer.
            to_send: Returns what the engine may write into, dense and contiguous, for a gradient.
            zeros: Returns zeros like a tensor.

        Raises:
            ValueError: A setting is not allowed.
        """
        if settings.gradient_predivide_factor != 1.0 and settings.op != Average:
            msg = "gradient_predivide_factor not supported with op != Average"
            raise ValueError(msg)
        if settings.groups is not None:
            check_groups(settings.groups, "keras.Variable", lambda v: hasattr(v, "assign"))
        self._op = check_op(settings.op)
        self._name = name
        self._settings = settings
        self._to_send = to_send
        self._zeros = zeros
        compressor = find_engine_compressor(settings.compression)
        self._auto = compressor if isinstance(compressor, AutoCompressor) else None
        if self._auto is not None:
            if self._op not in (Average, Sum):
                msg = f"{self._auto.label} compression needs op=Average or op=Sum."
                raise ValueError(msg)
            if _world.exists():
                ways_within(self._auto, squares=settings.squares)
        self._spec = None if self._auto is not None else engine_spec(settings.compression)
        self._tuner: CompressionTuner[_Slot] | None = None
        self._fusion = choose_fusion(**settings.fusion)
        if compressor is not None and self.combines():
            say_where_nothing_is_compressed(_world.current(), set_id(settings.process_set))
        self._slots: dict[int, _Slot] = {}
        self._stream: GradientStream[_Slot] | None = None
        self._made_for: tuple[int, tuple[int, ...]] | None = None

    def combines(self) -> bool:
        """Returns whether there is anybody to combine gradients with."""
        process_set = self._settings.process_set
        return bool(process_set.included()) and (process_set.size() or 1) > 1

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the gradients of all ranks, combined.

        A variable that had a gradient in the first step has zeros where it has none.
        """
        if not self.combines():
            return list(gradients)
        compression = self._settings.compression
        sent: dict[int, tuple[Any, Any]] = {}
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                # Combined in place, and compressors may return what they are given.
                sent[i] = compression.compress(self._to_send(gradient))
        stream = self._stream_for(sent, variables)
        for i, slot in self._slots.items():
            if i in sent:
                slot.sent = sent[i][0]
            else:
                slot.sent = self._zeros(slot.sent)
            stream.ready(slot)
        stream.synchronize()
        if self._tuner is not None:
            self._tuner.count_step()
        results = list(gradients)
        for i, slot in self._slots.items():
            context = sent[i][1] if i in sent else None
            results[i] = compression.decompress(slot.sent, context)
        return results

    def choices(self) -> dict[str, str]:
        """Returns how `Compression.auto` has gradients travel now, by the variables' paths."""
        found = {} if self._tuner is None else self._tuner.choices()
        return {name.split(".", 3)[3]: way for name, way in found.items()}

    def scale(self, gradient: Any) -> Any:
        """Returns a gradient that stays this rank's own, divided by the number of ranks."""
        if gradient is None or not self.combines():
            return gradient
        return gradient / (self._settings.process_set.size() or 1)

    def _stream_for(
        self, sent: dict[int, tuple[Any, Any]], variables: Sequence[Any]
    ) -> GradientStream[_Slot]:
        """Returns the stream, a new one in a new world or for other variables. Collective then."""
        made_for = (_world.epoch(), tuple(id(variable) for variable in variables))
        if self._stream is not None and made_for == self._made_for:
            return self._stream
        settings = self._settings
        paths = [str(getattr(v, "path", v)) for v in variables]
        prefix = f"{self._name}.{digest_of(paths)}"
        self._slots = {
            i: _Slot(f"{prefix}.{i}.{paths[i]}", tensor, self._zeros)
            for i, (tensor, _) in sent.items()
        }
        names = {i: slot.name for i, slot in self._slots.items()}
        groups = settings.groups or 0
        if not isinstance(groups, int):
            at = {id(variable): i for i, variable in enumerate(variables)}
            groups = [[at[id(v)] for v in group if id(v) in at] for group in groups]
        planned = plan_groups(groups, names, settings.process_set)
        averaged = self._op == Average
        factor = settings.gradient_predivide_factor if averaged else 1.0
        self._stream = GradientStream(
            _Gradients(),
            self._slots.values(),
            [[self._slots[i] for i in group] for group in planned],
            op=self._op,
            process_set=settings.process_set,
            fusion=self._fusion,
            factors=(1.0 / factor, factor),
            spec=self._spec,
        )
        if self._auto is not None:
            self._tuner = CompressionTuner(
                self._auto,
                self._stream,
                compresses_in(settings.process_set),
                settings.process_set,
                squares=settings.squares,
            )
        self._made_for = made_for
        return self._stream


class EagerAggregation:
    """Adds up the gradients of several passes where operations run at once.

    Attributes:
        counter: The passes that have been added since the last step.
    """

    def __init__(
        self, passes: int, reduce: Callable[[list[Any]], list[Any]], *, average: bool
    ) -> None:
        """Takes what `lightcc._keras.Backend.aggregation()` takes."""
        self.counter = 0
        self._passes = passes
        self._reduce = reduce
        self._average = average
        self._sums: list[Any] = []

    def add(self, gradients: Sequence[Any]) -> list[Any]:
        """Adds gradients up; returns the combined sums in the last pass."""
        if self.counter == 0:
            self._sums = [None] * len(gradients)
        self._sums = [
            total if g is None else g if total is None else total + g
            for total, g in zip(self._sums, gradients, strict=True)
        ]
        self.counter += 1
        if self.counter < self._passes:
            return list(self._sums)
        factor = 1.0 / self._passes if self._average else 1.0
        return self._reduce([None if s is None else s * factor for s in self._sums])

    def step(
        self,
        apply: Callable[[], Any],
        gradients: Sequence[Any],  # noqa: ARG002
        otherwise: Callable[[], Any],
    ) -> Any:
        """Calls `apply` in the last pass and begins anew, and `otherwise` in the others."""
        if self.counter < self._passes:
            return otherwise()
        self.counter = 0
        return apply()


class StreamBackend(Values):
    """What the backends for torch and JAX share: there are no tapes and no global variables."""

    def key(self, variable: Any) -> Any:
        """Returns what tells this variable from others."""
        return id(variable)

    def differentiate(self, loss: Any, variables: list[Any], grad_loss: Any, tape: Any) -> Any:
        """Refuses.

        Raises:
            NotImplementedError: Only TensorFlow has tapes.
        """
        del loss, variables, grad_loss, tape
        msg = "compute_gradients() is for TensorFlow; here give the gradients to apply()"
        raise NotImplementedError(msg)

    def compiles_collectives(self) -> bool:
        """Returns true: what is compiled leaves them out, or calls back for them."""
        return True

    def broadcast_global_variables(self, root_rank: int) -> Any:  # noqa: ARG002
        """Refuses.

        Raises:
            RuntimeError: There are no global variables.
        """
        msg = (
            "hvd.broadcast_global_variables() is for graphs of tf.compat.v1: use "
            "hvd.callbacks.BroadcastGlobalVariablesCallback"
        )
        raise RuntimeError(msg)
