"""Loads the operations of `liblightcc_tf.so` into the TensorFlow of this process."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import tensorflow as tf

from lightcc import basics  # First: it loads the engine, which the operations use.

#: TensorFlow's name of each operation that talks to other ranks.
COLLECTIVES = (
    "LightccAllreduce",
    "LightccGroupedAllreduce",
    "LightccAllgather",
    "LightccGroupedAllgather",
    "LightccBroadcast",
    "LightccGroupedBroadcast",
    "LightccReducescatter",
    "LightccGroupedReducescatter",
    "LightccAlltoall",
    "LightccJoin",
    "LightccBarrier",
)


def _load() -> Any:
    """Returns the operations as functions.

    Nothing runs: programs choose devices and threads after the import, which TensorFlow allows
    until something has run. The first collective checks how this TensorFlow calls back.

    Raises:
        ImportError: This TensorFlow is too old.
    """
    path = Path(basics.__file__).with_name("liblightcc_tf.so")
    try:
        ops = tf.load_op_library(str(path))
    except (tf.errors.NotFoundError, OSError) as error:
        msg = f"lightcc's operations for TensorFlow {tf.__version__} cannot be loaded: {error}"
        raise ImportError(msg) from error
    library = ctypes.CDLL(str(path))
    library.lightcc_tf_problem.restype = ctypes.c_char_p
    problem = library.lightcc_tf_problem().decode()
    if problem:
        msg = f"lightcc cannot work with TensorFlow {tf.__version__}: {problem}"
        raise ImportError(msg)
    _let_collectives_overlap()
    return ops


def _let_collectives_overlap() -> None:
    """Tells tf.function that collectives need not run one after another.

    They are stateful, so that none is left out or run only once; but each is matched with those of
    other ranks by its name, so that their order does not matter.
    """
    try:
        from tensorflow.python.framework import auto_control_deps
    except ImportError:  # They then run in the order of the program, which is right but slower.
        return
    known = getattr(auto_control_deps, "ASYNC_STATEFUL_OPS", None)
    if known is not None:
        auto_control_deps.ASYNC_STATEFUL_OPS = type(known)([*known, *COLLECTIVES])


ops = _load()
