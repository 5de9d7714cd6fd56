"""The gradients of a training step, combined: what a tape and every optimizer do with them.

In a graph each large gradient is an operation of its own, which starts as soon as the backward pass
has the gradient; small ones share operations, which cost as much as sending a hundred KiB. Which
ones do is this rank's own affair. Eagerly, where all gradients are there at once, one operation
takes them all. Groups and planned buckets have operations of their own, and are the same on all
ranks. The engine knows each gradient by its name, whatever operation it is in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from lightcc import _world
from lightcc._adapter import TunedSteps, check_groups
from lightcc._ops.reductions import Average, check_op
from lightcc._warnings import say_where_nothing_is_compressed
from lightcc.compression import (
    AutoCompressor,
    TopKCompressor,
    check_compression,
    find_engine_compressor,
)
from lightcc.fusion import Rule, batches, choose_fusion, digest_of, evenly
from lightcc.process_sets import ProcessSet, global_process_set, set_id
from lightcc.tensorflow import _calls, _tuning
from lightcc.tensorflow._library import ops
from lightcc.tensorflow._naming import given, refuse_compilation
from lightcc.tensorflow._sparse import allreduce_slices, members
from lightcc.tensorflow.compression import Compression
from lightcc.tensorflow.util import _executing_eagerly, key_of, normalize_name, variable_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightcc._core import CompressionSpec


class _Unit(NamedTuple):
    """What is one operation: positions of gradients, and how they travel."""

    members: list[int]
    together: bool
    rule: int
    limit_bytes: int


class GradientExchange:
    """Combines lists of gradients over all ranks of a process set.

    Attributes:
        process_set: The ranks.
    """

    def __init__(
        self,
        name: str,
        *,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        groups: int | Sequence[Sequence[Any]] | None = None,
        process_set: ProcessSet = global_process_set,
        fusion: Mapping[str, Any],
        squares: bool = True,
        tuned: dict[Any, TunedSteps] | None = None,
    ) -> None:
        """Checks the arguments, which are those of DistributedGradientTape.

        Args:
            name: Begins the names of gradients.
            device_dense: Device of operations on dense gradients.
            device_sparse: Device of operations on sparse ones.
            compression: What is sent for a gradient.
            sparse_as_dense: Whether sparse gradients are made dense first.
            op: How gradients are combined.
            gradient_predivide_factor: With `Average`: how much of the division comes first.
            groups: Number of groups, or lists of variables.
            process_set: The ranks that take part.
            fusion: The arguments of `choose_fusion()`.
            squares: Whether an optimizer may divide by squares of what is returned.
            tuned: What `Compression.auto` knows of earlier steps, by what there is; `None`:
                nothing, as this object stays.

        Raises:
            ValueError: An argument is not allowed.
            TypeError: `compression` is none.
        """
        check_compression(compression)
        if gradient_predivide_factor != 1.0 and op != Average:
            msg = "gradient_predivide_factor not supported with op != Average"
            raise ValueError(msg)
        if groups is not None:
            check_groups(groups, "tf.Variable", _is_variable)
        compressor = find_engine_compressor(compression)
        if isinstance(compressor, TopKCompressor) and compressor.momentum_correction is True:
            msg = (
                "momentum_correction=True cannot take the momentum of an optimizer of TensorFlow:"
                " give it as a number, and none to the optimizer"
            )
            raise ValueError(msg)
        self.process_set = process_set
        self._name = name
        self._devices = (device_dense, device_sparse)
        self._compression = compression
        self._auto = compressor if isinstance(compressor, AutoCompressor) else None
        if self._auto is not None:
            _tuning.check(self._auto, op, squares=squares)
        self._squares = squares
        self._tuned: dict[Any, TunedSteps] = {} if tuned is None else tuned
        self._own_steps: list[TunedSteps] = []  # Entries of `_tuned` that this exchange uses.
        self._spec: CompressionSpec | None = (
            None if compressor is None or self._auto is not None else compressor.spec()
        )
        self._sparse_as_dense = sparse_as_dense
        self._op = check_op(op)
        self._factors = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
        self._groups = groups
        self._choice = choose_fusion(**fusion)
        if compressor is not None and self.combines():
            say_where_nothing_is_compressed(_world.current(), set_id(process_set))

    def combines(self) -> bool:
        """Returns whether there is anybody to combine gradients with."""
        return bool(self.process_set.included()) and (self.process_set.size() or 1) > 1

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], *, generic: bool = False
    ) -> list[Any]:
        """Returns the gradients of all ranks, combined; `None` stays where there is none.

        Collective: every rank of the process set must call it with gradients of the same dtypes and
        shapes, in the same order.

        Args:
            gradients: Tensors, tf.IndexedSlices or `None`.
            variables: What they belong to, one for each.
            generic: Whether names are made of positions, not of the variables' names.
        """
        results = list(gradients)
        if not self.combines():
            return results
        if self._sparse_as_dense:
            results = [tf.convert_to_tensor(g) if _is_sparse(g) else g for g in results]
        named = [f"grad_{i}" if generic else variable_name(v) for i, v in enumerate(variables)]
        names = self._unique(named)
        with tf.device(self._devices[1]):
            for i, gradient in enumerate(results):
                if _is_sparse(gradient):
                    results[i] = self._reduce_sparse(gradient, names[i])
        dense = [i for i, g in enumerate(results) if g is not None and not _is_sparse(g)]
        with tf.device(self._devices[0]):
            units = self._units(dense, results, variables, named)
            ways = self._ways(units, results, variables, names)
            for unit, way in zip(units, ways, strict=True):
                combined = self._reduce_unit(unit, way, results, names)
                for i, result in zip(unit.members, combined, strict=True):
                    results[i] = result
        return results

    def choices(self) -> dict[str, str]:
        """Returns how `Compression.auto` has gradients travel now, by the variables' names."""
        found: dict[str, str] = {}
        for steps in self._own_steps:
            found |= {_own_name(name): way for name, way in steps.choices().items()}
        return found

    def scale(self, gradient: Any) -> Any:
        """Returns a gradient that stays this rank's own, as if its loss were one of all ranks'."""
        if gradient is None or not self.combines():
            return gradient
        if _is_sparse(gradient):
            values = gradient.values / members(self.process_set, gradient.values.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / members(self.process_set, gradient.dtype)

    def _unique(self, named: Sequence[str]) -> list[str]:
        """Returns names for all gradients: no other call in flight has the same."""
        prefix = self._name
        if not _executing_eagerly():
            prefix = tf.compat.v1.get_default_graph().unique_name(normalize_name(prefix))
        digest = digest_of(named)
        return [f"{prefix}.{digest}.{i}.{name}" for i, name in enumerate(named)]

    def _reduce_sparse(self, gradient: Any, name: str) -> Any:
        return allreduce_slices(gradient, self._op, given(name), self.process_set)

    def _ways(
        self,
        units: Sequence[_Unit],
        gradients: Sequence[Any],
        variables: Sequence[Any],
        names: Sequence[str],
    ) -> list[Any]:
        """Returns what `Compression.auto` says of each unit in this step; `None` without it."""
        if self._auto is None or not units:
            return [None] * len(units)
        order = [i for unit in units for i in unit.members]
        sizes = [_num_bytes(gradients[i], variables[i]) for i in order]
        given = [(names[i], size) for i, size in zip(order, sizes, strict=True)]
        at = {i: position for position, i in enumerate(order)}
        together = [[at[i] for i in unit.members] for unit in units if unit.together]
        key = _tuning.key_of(self._auto, given, together, self.process_set)
        if key not in self._tuned:
            self._tuned[key] = TunedSteps(
                self._auto, given, together, self.process_set, squares=self._squares
            )
        if self._tuned[key] not in self._own_steps:
            self._own_steps.append(self._tuned[key])
        return _tuning.ways(self._tuned[key], [len(unit.members) for unit in units])

    def _reduce_unit(
        self, unit: _Unit, way: Any, gradients: Sequence[Any], names: Sequence[str]
    ) -> Any:
        pairs = [
            self._compression.compress(tf.convert_to_tensor(gradients[i])) for i in unit.members
        ]
        arguments = {
            "process_set_id": _calls.set_id(self.process_set),
            **_calls.reduction(self._op, *self._factors),
            **_calls.fusion_arguments(unit.rule, unit.limit_bytes),
        }
        sent = [tensor for tensor, _ in pairs]
        unit_names = [names[i] for i in unit.members]
        if way is not None:
            refuse_compilation()
            combined = ops.lightcc_tuned_allreduce(
                sent, way, names=unit_names, together=unit.together, **arguments
            )
        elif len(sent) == 1 and not unit.together:
            arguments |= _calls.compression_arguments(self._spec)
            combined = [ops.lightcc_allreduce(sent[0], **given(unit_names[0]), **arguments)]
        else:
            refuse_compilation()
            arguments |= _calls.compression_arguments(self._spec)
            combined = ops.lightcc_grouped_allreduce(
                sent, names=unit_names, together=unit.together, **arguments
            )
        return [
            self._compression.decompress(result, context)
            for result, (_, context) in zip(combined, pairs, strict=True)
        ]

    # -- What travels together ------------------------------------------------------------------

    def _units(
        self,
        dense: Sequence[int],
        gradients: Sequence[Any],
        variables: Sequence[Any],
        named: Sequence[str],
    ) -> list[_Unit]:
        rule, limit = self._choice.rule, self._choice.limit_bytes
        units = [_Unit(group, True, rule, limit) for group in self._in_groups(dense, variables)]
        rest = _without(dense, units)
        plan = self._choice.plan([named[i] for i in rest])
        units += [_Unit([rest[i] for i in bucket], True, Rule.PLANNED, 0) for bucket in plan]
        rest = _without(dense, units)
        runs = batches([_batch_bytes(gradients[i]) for i in rest])
        return units + [_Unit([rest[i] for i in run], False, rule, limit) for run in runs]

    def _in_groups(self, dense: Sequence[int], variables: Sequence[Any]) -> list[list[int]]:
        """Returns the caller's groups, without those that have no gradients."""
        groups = self._groups or 0
        if isinstance(groups, int):
            return [list(group) for group in evenly(dense, groups)]
        at = {key_of(variables[i]): i for i in dense}
        found = [[at[key_of(v)] for v in group if key_of(v) in at] for group in groups]
        return [group for group in found if group]


def _without(positions: Sequence[int], units: Sequence[_Unit]) -> list[int]:
    taken = {i for unit in units for i in unit.members}
    return [i for i in positions if i not in taken]


def _batch_bytes(gradient: Any) -> int | None:
    """Returns what a gradient takes of an operation; `None`: it fills one, as its size is unknown.

    Eagerly one operation takes all.
    """
    if _executing_eagerly():
        return 0
    elements = gradient.shape.num_elements()
    return None if elements is None else elements * gradient.dtype.size


def _num_bytes(gradient: Any, variable: Any) -> int:
    """Returns the size of a gradient; 0 where it is not known."""
    elements = gradient.shape.num_elements()
    if elements is None:
        elements = tf.TensorShape(getattr(variable, "shape", None)).num_elements()
    return 0 if elements is None else int(elements) * int(gradient.dtype.size)


def _own_name(name: str) -> str:
    """Returns the variable's name of what `_unique()` made."""
    return name.split(".", 3)[3]


def _is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def _is_variable(obj: Any) -> bool:
    return isinstance(obj, tf.Variable) or hasattr(obj, "assign")
