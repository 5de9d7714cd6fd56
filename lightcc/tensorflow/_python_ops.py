"""The operations of `liblightcc_tf.so` as Python functions, where that library cannot be used.

They take the same arguments and give the same results. Eagerly they call the engine; in graphs each
is a `tf.py_function`. What they lack beside kernels: an operation holds one of TensorFlow's threads
while it waits, so a graph of tf.compat.v1 needs as many inter-op threads as it has operations that
do not depend on one another; members of a group do not fail together; a function that is called
twice in another has one name for both calls, which TensorFlow runs one after the other; and a saved
model cannot be loaded elsewhere. All ranks of a job use the same kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lightcc import _world
from lightcc._binding import _core
from lightcc._ops import basics
from lightcc._world import NEW
from lightcc.exceptions import HorovodInternalError, RankMismatchError
from lightcc.process_sets import get_process_set_ids_and_ranks
from lightcc.tensorflow.util import _executing_eagerly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc._typing import Handle

#: What the kernels' attributes are where nothing is given.
DEFAULTS: dict[str, Any] = {
    "process_set_id": 0,
    "tensor_name": "",
    "naming": "node",
    "reduce_op": 1,
    "prescale_factor": "1",
    "postscale_factor": "1",
    "quantize_bits": 0,
    "topk_ratio": "0",
    "topk_momentum": "0",
    "topk_warmup_steps": 0,
    "topk_fp16": False,
    "topk_exact": False,
    "names": (),
    "sequence": "",
}

#: By TensorFlow's name of the operation; those who know the gradients put them here.
gradients: dict[str, Callable[..., Any]] = {}


class _Node:
    """What gradients ask of an operation: its attributes, inputs and outputs."""

    def __init__(self, attributes: dict[str, Any], inputs: Sequence[Any]) -> None:
        self.attributes = attributes
        self.inputs = list(inputs)
        self.outputs: list[Any] = []
        self.name = ""  # The node's name, as soon as a graph has one.

    def get_attr(self, name: str) -> Any:
        value = self.attributes[name]
        return value.encode() if isinstance(value, str) else value

    def matching_name(self) -> str | None:
        """Returns what matches this operation across ranks; `None`: the engine numbers it."""
        naming = self.attributes["naming"]
        if naming == "counted":
            return None
        if naming == "given":
            return str(self.attributes["tensor_name"])
        return self.name.rpartition("/")[2] if naming == "node_base" else self.name


def _compression(attributes: dict[str, Any]) -> _core.CompressionSpec | None:
    if attributes["quantize_bits"] != 0:
        return _core.CompressionSpec.quantized(attributes["quantize_bits"])
    ratio = float(attributes["topk_ratio"])
    if ratio == 0.0:
        return None
    return _core.CompressionSpec(
        ratio=ratio,
        fp16=attributes["topk_fp16"],
        exact=attributes["topk_exact"],
        warmup_steps=attributes["topk_warmup_steps"],
        momentum=float(attributes["topk_momentum"]),
    )


def _reduction(attributes: dict[str, Any]) -> tuple[int, float, float, int]:
    return (
        attributes["reduce_op"],
        float(attributes["prescale_factor"]),
        float(attributes["postscale_factor"]),
        attributes["process_set_id"],
    )


def _allreduce(
    world: _core.World, sent: Any, grouped: bool, name: str | None, attributes: dict[str, Any]
) -> Handle[Any]:
    return world.allreduce(
        sent, grouped, NEW, name, *_reduction(attributes), compression=_compression(attributes)
    )


def _reducescatter(
    world: _core.World, sent: Any, grouped: bool, name: str | None, attributes: dict[str, Any]
) -> Handle[Any]:
    return world.reducescatter(sent, grouped, name, *_reduction(attributes))


def _allgather(
    world: _core.World, sent: Any, grouped: bool, name: str | None, attributes: dict[str, Any]
) -> Handle[Any]:
    number, sequence = attributes["process_set_id"], attributes["sequence"]
    return world.allgather(sent, grouped, name, number, sequence=sequence)


def _broadcast(
    world: _core.World, sent: Any, _: bool, name: str | None, attributes: dict[str, Any]
) -> Handle[Any]:
    return world.broadcast(sent, NEW, attributes["root_rank"], name, attributes["process_set_id"])


def _run(
    start: Any,
    node: _Node,
    sent: Sequence[Any],
    *,
    is_list: bool,
    each: Sequence[dict[str, Any]] | None = None,
) -> list[Any]:
    """Runs an operation on eager tensors to its end, with TensorFlow's errors.

    Args:
        start: Starts it.
        node: What asks for it.
        sent: The tensors.
        is_list: Whether it takes a list of tensors.
        each: Attributes that differ between the tensors of a list with names.
    """
    try:
        world = _world.current()
    except ValueError as error:
        raise tf.errors.FailedPreconditionError(None, None, str(error)) from error
    try:
        name, names = node.matching_name(), node.attributes["names"]
        if not is_list:
            return [_core.wait(start(world, sent[0], False, name, node.attributes))]
        if not names and start is not _broadcast:
            return list(_core.wait(start(world, list(sent), True, name, node.attributes)))
        if not names and name is not None:
            names = [f"{name}_{i + 1}of{len(sent)}" for i in range(len(sent))]
        handles = [
            start(
                *(world, tensor, False, names[i] if names else None),
                node.attributes | (each[i] if each else {}),
            )
            for i, tensor in enumerate(sent)
        ]
        return [_core.wait(handle) for handle in handles]
    except (ValueError, TypeError, HorovodInternalError) as error:
        raise _translated(error) from error


def _translated(error: Exception) -> Exception:
    """Returns the error that kernels report."""
    if isinstance(error, RankMismatchError):
        kind = tf.errors.FailedPreconditionError
    elif isinstance(error, HorovodInternalError):
        kind = tf.errors.AbortedError
    else:
        kind = tf.errors.InvalidArgumentError
    translated: Exception = kind(None, None, str(error))
    return translated


def _run_or_add(
    node: _Node, run: Callable[..., list[Any]], name: str, dtypes: list[Any], shapes: list[Any]
) -> list[Any]:
    """Runs `run` on the node's inputs now, or puts it into the graph; returns the outputs."""
    if _executing_eagerly():
        node.outputs = run(*node.inputs)
        return node.outputs
    outputs = tf.py_function(run, node.inputs, dtypes, name=name)
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    node.name = outputs[0].op.name
    for output, shape in zip(outputs, shapes, strict=True):
        output.set_shape(shape)
    node.outputs = outputs
    return outputs


def _other_rows(tensor: Any) -> Any:
    shape = tensor.shape
    return shape if shape.rank is None else tf.TensorShape([None]).concatenate(shape[1:])


def _with_gradient(
    op: str, make: Callable[..., tuple[_Node, list[Any]]], tensors: list[Any]
) -> Any:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(*inputs: Any) -> Any:
        node, outputs = make(*inputs)

        def gradient(*grads: Any) -> Any:
            return gradients[op](node, *grads)

        return list(outputs), gradient

    return differentiable(*tensors)


def _collective(op: str, start: Any, *, is_list: bool, keeps_shape: bool) -> Callable[..., Any]:
    def operation(tensors: Any, name: str | None = None, **given: Any) -> Any:
        attributes = DEFAULTS | given

        def make(*inputs: Any) -> tuple[_Node, list[Any]]:
            node = _Node(attributes, inputs)
            shapes = [it.shape if keeps_shape else _other_rows(it) for it in inputs]
            outputs = _run_or_add(
                node,
                lambda *sent: _run(start, node, sent, is_list=is_list),
                name or op,
                [it.dtype for it in inputs],
                shapes,
            )
            return node, outputs

        sent = [tf.convert_to_tensor(it) for it in (tensors if is_list else [tensors])]
        outputs = _with_gradient(op, make, sent)
        return list(outputs) if is_list else outputs[0]

    return operation


lightcc_allreduce = _collective("LightccAllreduce", _allreduce, is_list=False, keeps_shape=True)
lightcc_grouped_allreduce = _collective(
    "LightccGroupedAllreduce", _allreduce, is_list=True, keeps_shape=True
)
lightcc_allgather = _collective("LightccAllgather", _allgather, is_list=False, keeps_shape=False)
lightcc_grouped_allgather = _collective(
    "LightccGroupedAllgather", _allgather, is_list=True, keeps_shape=False
)
lightcc_broadcast = _collective("LightccBroadcast", _broadcast, is_list=False, keeps_shape=True)
lightcc_reducescatter = _collective(
    "LightccReducescatter", _reducescatter, is_list=False, keeps_shape=False
)
lightcc_grouped_reducescatter = _collective(
    "LightccGroupedReducescatter", _reducescatter, is_list=True, keeps_shape=False
)
lightcc_grouped_broadcast = _collective(
    "LightccGroupedBroadcast", _broadcast, is_list=True, keeps_shape=True
)


def lightcc_tuned_allreduce(
    tensors: Any, ways: Any, name: str | None = None, **given: Any
) -> list[Any]:
    """Combines tensors, each compressed as its row of `ways` says: bits, and a share of top-k."""
    attributes = DEFAULTS | given

    def run(node: _Node, *inputs: Any) -> list[Any]:
        rows = inputs[-1].numpy()
        if rows.shape != (len(inputs) - 1, 2):
            msg = f"ways does not have two numbers for each of {len(inputs) - 1} tensors"
            raise tf.errors.InvalidArgumentError(None, None, msg)
        each = [{"quantize_bits": int(b), "topk_ratio": repr(float(r))} for b, r in rows]
        return _run(_allreduce, node, inputs[:-1], is_list=True, each=each)

    def make(*inputs: Any) -> tuple[_Node, list[Any]]:
        node = _Node(attributes, inputs)
        outputs = _run_or_add(
            node,
            lambda *sent: run(node, *sent),
            name or "LightccTunedAllreduce",
            [it.dtype for it in inputs[:-1]],
            [it.shape for it in inputs[:-1]],
        )
        return node, outputs

    sent = [tf.convert_to_tensor(it) for it in tensors] + [tf.convert_to_tensor(ways, tf.float64)]
    return list(_with_gradient("LightccTunedAllreduce", make, sent))


def lightcc_alltoall(tensor: Any, splits: Any, name: str | None = None, **given: Any) -> Any:
    """Sends rows to every rank; returns what came, and how many rows came from each."""
    attributes = DEFAULTS | given

    def start(
        world: _core.World, sent: Any, _: bool, name: str | None, attributes: dict[str, Any]
    ) -> Handle[Any]:
        rows, parts = sent
        even = parts.shape[0] == 0
        return world.alltoall(rows, None if even else parts, name, attributes["process_set_id"])

    def make(*inputs: Any) -> tuple[_Node, list[Any]]:
        node = _Node(attributes, inputs)
        outputs = _run_or_add(
            node,
            lambda *sent: list(_run(start, node, [sent], is_list=False)[0]),
            name or "LightccAlltoall",
            [inputs[0].dtype, tf.int32],
            [_other_rows(inputs[0]), tf.TensorShape([None])],
        )
        return node, outputs

    sent = [tf.convert_to_tensor(tensor), tf.convert_to_tensor(splits, tf.int32)]
    output, received = _with_gradient("LightccAlltoall", make, sent)
    return output, received


def _scalar(value: Callable[[], int], name: str | None) -> Any:
    def run() -> list[Any]:
        try:
            return [tf.constant(value(), tf.int32)]
        except ValueError as error:
            raise tf.errors.FailedPreconditionError(None, None, str(error)) from error
        except HorovodInternalError as error:
            raise _translated(error) from error

    return _run_or_add(_Node({}, []), run, name or "Lightcc", [tf.int32], [tf.TensorShape([])])[0]


def lightcc_join(name: str | None = None) -> Any:
    """Waits until all ranks have joined; returns the last one."""
    from lightcc._ops import waiting

    return _scalar(waiting.join, name or "LightccJoin")


def lightcc_barrier(process_set_id: int = 0, name: str | None = None) -> Any:
    """Waits for the members of a process set; returns the operation that does."""

    def wait() -> int:
        _core.wait(_world.current().barrier(process_set_id))
        return 0

    done = _scalar(wait, name or "LightccBarrier")
    return None if _executing_eagerly() else done.op


def lightcc_standing(what: str, process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns where this rank stands."""

    def value() -> int:
        if what == "rank":
            return basics.rank()
        if what == "local_rank":
            return basics.local_rank()
        if what == "local_size":
            return basics.local_size()
        basics.size()  # Raises where there is no world.
        members = get_process_set_ids_and_ranks().get(process_set_id)
        if members is None:
            msg = "Process set provided does not exist, or has not been registered."
            raise tf.errors.InvalidArgumentError(None, None, msg)
        return len(members) if what == "size" else int(basics.rank() in members)

    return _scalar(value, name or "LightccStanding")
