"""Which framework is below Keras, and lightcc's operations for it."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, cast

import keras

from lightcc import _keras

if TYPE_CHECKING:
    from lightcc._keras import Backend

_MODULES = {
    "tensorflow": ("lightcc.tensorflow._keras_backend", "lightcc.tensorflow.compression"),
    "torch": ("lightcc.keras._torch", "lightcc.torch.compression"),
    "jax": ("lightcc.keras._jax", "lightcc.compression"),
}


def _name() -> str:
    """Returns the name of the framework.

    Raises:
        ImportError: lightcc has no operations for it.
    """
    name = str(keras.backend.backend())
    if name not in _MODULES:
        msg = f"lightcc.keras is for Keras on {', '.join(_MODULES)}; the backend here is {name}"
        raise ImportError(msg)
    return name


@functools.cache
def backend() -> Any:
    """Returns the operations for the framework that Keras runs on."""
    return importlib.import_module(_MODULES[_name()][0]).BACKEND


def backend_for(optimizer: Any) -> Backend:
    """Returns the operations for an optimizer, which may be one of Keras 2, on TensorFlow."""
    if not _keras.is_of_keras_3(optimizer) and hasattr(optimizer, "apply_gradients"):
        return cast("Backend", importlib.import_module(_MODULES["tensorflow"][0]).BACKEND)
    return cast("Backend", backend())


#: The compressors for the framework's tensors.
Compression: Any = importlib.import_module(_MODULES[_name()][1]).Compression
