"""How a call of an operation is matched with those of other ranks.

In a graph it is the name of its node, which differs for each use of a function within another one.
Where operations run eagerly, it is the caller's name; without one, the engine numbers the call.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lightcc.tensorflow.util import _executing_eagerly, normalize_name


def refuse_compilation() -> None:
    """Raises where XLA compiles the graph that is being made.

    Raises:
        NotImplementedError: It does; the text says what to set.
    """
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:  # TensorFlow then says that it has no such operation for XLA.
        return
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        msg = (
            "XLA cannot compile lightcc's operations, which talk to other ranks. Set "
            "jit_compile=False on the tf.function (or in model.compile() of Keras) that reduces "
            "gradients; functions that it calls for the rest of a step may be compiled."
        )
        raise NotImplementedError(msg)


def naming(
    operation: str, name: str | None, first: Any, *, ignore_name_scope: bool = False
) -> dict[str, Any]:
    """Returns the arguments of an operation that name it.

    Args:
        operation: Begins the name of a node whose call has none.
        name: What the caller wants.
        first: The first tensor, after which a node is called otherwise.
        ignore_name_scope: Whether the scopes around the node are left out.

    Raises:
        NotImplementedError: XLA compiles the graph.
    """
    if _executing_eagerly():
        if name is None:
            return {"naming": "counted"}
        return {"naming": "given", "tensor_name": name}
    refuse_compilation()
    if name is None:
        tensor = normalize_name(getattr(first, "name", ""))
        # What a function captures from outside has a number that other ranks need not have.
        name = operation if tensor[:1].isdigit() else f"{operation}_{tensor}"
    return {"naming": "node_base" if ignore_name_scope else "node", "name": normalize_name(name)}


def given(name: str) -> dict[str, Any]:
    """Returns the arguments for a name that is the same in graphs and outside of them.

    Raises:
        NotImplementedError: XLA compiles the graph.
    """
    arguments = {"naming": "given", "tensor_name": name}
    if not _executing_eagerly():
        refuse_compilation()
        arguments["name"] = normalize_name(name)
    return arguments
