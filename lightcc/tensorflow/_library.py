"""Loads the operations of `liblightcc_tf.so` into the TensorFlow of this process.

Where that cannot be, `_python_ops` takes their place.
"""

from __future__ import annotations

import ctypes
import os
import warnings
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


#: 0: operations run as Python functions.
VARIABLE = "LIGHTCC_TF_KERNELS"
PATH = Path(__file__).parents[1] / "liblightcc_tf.so"


def _try_kernels() -> tuple[Any, str]:
    """Returns the operations as functions, or `None` and why there are none.

    Nothing of TensorFlow runs: programs choose devices and threads after the import, which it
    allows until something has run. That it calls back as kernels need it is tried in a child
    process, and looked at once more by the first collective.
    """
    if os.environ.get(VARIABLE) == "0":
        return None, f"{VARIABLE} is 0"
    try:
        kernels = tf.load_op_library(str(PATH))
    except (tf.errors.NotFoundError, OSError) as error:
        return None, f"{PATH} cannot be loaded: {error}"
    library = ctypes.CDLL(str(PATH))
    library.lightcc_tf_problem.restype = ctypes.c_char_p
    problem = library.lightcc_tf_problem().decode()
    if problem:
        return None, problem
    if not _calls_back(library):
        return None, "it does not call back as it does from 2.14 to 2.21"
    _let_collectives_overlap()
    return kernels, ""


def _calls_back(library: Any) -> bool:
    library.lightcc_tf_calls_back.restype = ctypes.c_bool
    return bool(library.lightcc_tf_calls_back(None))


def _load() -> tuple[Any, str]:
    """Returns the operations as functions, and why they are no kernels; "" where they are."""
    kernels, reason = _try_kernels()
    if not reason:
        return kernels, ""
    if os.environ.get(VARIABLE) != "0":
        msg = (
            f"lightcc's kernels cannot be used with TensorFlow {tf.__version__}: {reason}. Its "
            "operations run as Python functions, which is slower; all ranks need the same."
        )
        warnings.warn(msg, RuntimeWarning, stacklevel=2)
    from lightcc.tensorflow import _python_ops

    return _python_ops, reason


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


ops, why_no_kernels = _load()
