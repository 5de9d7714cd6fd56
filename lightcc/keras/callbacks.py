"""Callbacks for `model.fit()`: a common start, averaged metrics, learning rates that fit."""

from __future__ import annotations

from typing import Any

import keras

from lightcc._keras import callbacks as _callbacks
from lightcc.keras._backends import backend as _backend

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(
    _callbacks.BroadcastGlobalVariables,
    keras.callbacks.Callback,  # type: ignore[misc]
):
    __doc__ = _callbacks.BroadcastGlobalVariables.__doc__
    _backend = _backend()


class MetricAverageCallback(_callbacks.MetricAverage, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _callbacks.MetricAverage.__doc__


class LearningRateScheduleCallback(_callbacks.LearningRateSchedule, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _callbacks.LearningRateSchedule.__doc__


class LearningRateWarmupCallback(_callbacks.LearningRateWarmup, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _callbacks.LearningRateWarmup.__doc__


class BestModelCheckpoint(_callbacks.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the model whenever a metric is better than ever; set `filepath` before training.

    Use it on one rank, after MetricAverageCallback.

    Args:
        monitor: The metric.
        verbose: 1: Keras says when it saves.
        mode: "min", "max" or "auto": which values are better.
        save_freq: "epoch", or a number of batches.
        filepath: Where the model is saved.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: Any = None,
    ) -> None:
        """Takes the arguments of the class."""
        super().__init__(
            filepath=filepath, monitor=monitor, verbose=verbose, mode=mode, save_freq=save_freq
        )
