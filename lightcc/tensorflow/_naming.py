"""How a call of an operation is matched with those of other ranks.

In a graph it is the name of its node, which differs for each use of a function within another one.
Where operations run eagerly, it is the caller's name; without one, the engine numbers the call.
"""

from __future__ import annotations

from typing import Any

from lightcc.tensorflow.util import _executing_eagerly, normalize_name


def naming(
    operation: str, name: str | None, first: Any, *, ignore_name_scope: bool = False
) -> dict[str, Any]:
    """Returns the arguments of an operation that name it.

    Args:
        operation: Begins the name of a node whose call has none.
        name: What the caller wants.
        first: The first tensor, after which a node is called otherwise.
        ignore_name_scope: Whether the scopes around the node are left out.
    """
    if _executing_eagerly():
        if name is None:
            return {"naming": "counted"}
        return {"naming": "given", "tensor_name": name}
    if name is None:
        tensor = normalize_name(getattr(first, "name", ""))
        # What a function captures from outside has a number that other ranks need not have.
        name = operation if tensor[:1].isdigit() else f"{operation}_{tensor}"
    return {"naming": "node_base" if ignore_name_scope else "node", "name": normalize_name(name)}


def given(name: str) -> dict[str, Any]:
    """Returns the arguments for a name that is the same in graphs and outside of them."""
    arguments = {"naming": "given", "tensor_name": name}
    if not _executing_eagerly():
        arguments["name"] = normalize_name(name)
    return arguments
