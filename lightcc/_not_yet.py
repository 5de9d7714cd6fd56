"""Horovod's names that are not there yet, and what is said when somebody asks for one."""

from __future__ import annotations

from lightcc.exceptions import NotThereYetError

_WHAT = {
    "elastic": "elastic jobs",
}


def absent(name: str, owner: str | type) -> AttributeError:
    """Returns the error for attribute `name` of `owner`: a module by name, or an object's class."""
    if name in _WHAT:
        text = f"{name}: this version of lightcc does not support {_WHAT[name]} yet"
        return NotThereYetError(text, name=name)
    who = f"module {owner!r}" if isinstance(owner, str) else f"'{owner.__name__}' object"
    return AttributeError(f"{who} has no attribute {name!r}", name=name)


def absent_module(name: str, what: str) -> ModuleNotFoundError:
    """Returns the error for a module of `what`, which is imported as `name`."""
    text = (
        f"{name}: this version of lightcc does not support {what} yet; ranks are started by "
        "lightccrun, lightcc.run(), torchrun, mpirun or srun"
    )
    return ModuleNotFoundError(text, name=name)
