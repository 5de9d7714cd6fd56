"""Loads the operations of `liblightcc_tf.so` into the TensorFlow of this process."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import tensorflow as tf

import lightcc._binding  # noqa: F401  First: it loads the engine, which the operations use.

#: TensorFlow's name of each operation that talks to other ranks.
COLLECTIVES = (
    "LightccAllreduce",
    "LightccGroupedAllreduce",
    "LightccTunedAllreduce",
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


PATH = Path(__file__).parents[1] / "liblightcc_tf.so"


def _load() -> Any:
    """Returns the operations as functions.

    Nothing of TensorFlow runs: programs choose devices and threads after the import, which it
    allows until something has run. That it calls back as kernels need it is tried in a child
    process, and looked at once more by the first collective.

    Raises:
        ImportError: This TensorFlow cannot use the kernels; the text says why.
    """
    try:
        kernels = tf.load_op_library(str(PATH))
    except (tf.errors.NotFoundError, OSError) as error:
        reason = f"{PATH} cannot be loaded: {error}"
        raise _refusal(reason) from error
    library = ctypes.CDLL(str(PATH))
    library.lightcc_tf_problem.restype = ctypes.c_char_p
    problem = library.lightcc_tf_problem().decode()
    if problem:
        raise _refusal(problem)
    if not _calls_back(library):
        reason = "it does not call back as it does from 2.14 to 2.21"
        raise _refusal(reason)
    _let_collectives_overlap()
    return kernels


def _calls_back(library: Any) -> bool:
    library.lightcc_tf_calls_back.restype = ctypes.c_bool
    return bool(library.lightcc_tf_calls_back(None))


def _refusal(reason: str) -> ImportError:
    return ImportError(
        f"lightcc's kernels cannot be used with TensorFlow {tf.__version__}: {reason}"
    )


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
