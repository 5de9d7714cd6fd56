"""Elastic training with Keras on TensorFlow: Horovod's `horovod.tensorflow.keras.elastic`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lightcc._keras import elastic as _elastic
from lightcc.tensorflow.elastic import TensorFlowKerasState, run

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """A model, its optimizer, and Python objects as attributes."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Makes the state, and saves it; parameters as of `TensorFlowKerasState`."""
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(_elastic.CommitState, tf.keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _elastic.CommitState.__doc__


class UpdateBatchStateCallback(_elastic.UpdateBatchState, tf.keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _elastic.UpdateBatchState.__doc__


class UpdateEpochStateCallback(_elastic.UpdateEpochState, tf.keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _elastic.UpdateEpochState.__doc__
