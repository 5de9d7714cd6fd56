"""Elastic training with Keras on TensorFlow or torch: Horovod's `horovod.keras.elastic`.

On JAX there is none yet: its compiled steps hide which error has ended them.
"""

from __future__ import annotations

import importlib
from typing import Any

import keras

from lightcc import elastic
from lightcc._keras import elastic as _elastic
from lightcc.keras._backends import backend as _backend

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


def _parts() -> tuple[Any, Any]:
    """Returns `run`, and what gives variables of every rank rank 0's values."""
    name = keras.backend.backend()
    if name == "jax":
        msg = "lightcc.keras.elastic is for Keras on TensorFlow or torch; the backend here is jax"
        raise ImportError(msg)
    if name == "tensorflow":
        of_tensorflow = importlib.import_module("lightcc.tensorflow.elastic")
        return of_tensorflow.run, of_tensorflow.broadcast_keras_variables
    return elastic.run, lambda variables: _backend().broadcast_variables(variables, 0)


run, _broadcast = _parts()


class KerasState(_elastic.ModelState):
    """A model, its optimizer, and Python objects as attributes."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Makes the state, and saves it.

        Args:
            model: The attribute `model`; it must be built.
            optimizer: The attribute `optimizer`; that of the model if `None`.
            kwargs: Other attributes, which travel pickled.

        Raises:
            ValueError: The model is not built, or there is no optimizer.
        """
        super().__init__(model, optimizer, _broadcast, kwargs)


class CommitStateCallback(_elastic.CommitState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _elastic.CommitState.__doc__


class UpdateBatchStateCallback(_elastic.UpdateBatchState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _elastic.UpdateBatchState.__doc__


class UpdateEpochStateCallback(_elastic.UpdateEpochState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _elastic.UpdateEpochState.__doc__
