"""Small helpers, under the module name and the names that Horovod gives them."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Returns whether operations run now; else a graph is being made."""
    return bool(tf.executing_eagerly())


def normalize_name(name: str) -> str:
    """Returns `name` with only what a node of a graph may be called."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def variable_name(variable: Any) -> str:
    """Returns a variable's name; of Keras 3's, the path, since names are not unique there."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "source"))


def key_of(tensor: Any) -> Any:
    """Returns what tells this tensor or variable from others, in a set."""
    return tensor.ref() if hasattr(tensor, "ref") else id(tensor)
