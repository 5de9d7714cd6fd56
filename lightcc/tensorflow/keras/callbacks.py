"""Callbacks for `model.fit()`: a common start, averaged metrics, learning rates that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lightcc._keras import callbacks as _callbacks
from lightcc.tensorflow.keras._backend import BACKEND as _BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(
    _callbacks.BroadcastGlobalVariables,
    tf.keras.callbacks.Callback,  # type: ignore[misc]
):
    """Gives all ranks the root's weights and optimizer state, at the end of the first batch.

    Ranks may begin with other weights, or load a checkpoint on the root alone. The state of random
    generators is left alone.

    Args:
        root_rank: World rank of the root.
        device: Not used: variables stay where they are.
        local_variables: Variables that stay as they are on each rank.
    """

    _backend = _BACKEND

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None
    ) -> None:
        """Takes the arguments of the class."""
        super().__init__(root_rank, device, local_variables)


class MetricAverageCallback(_callbacks.MetricAverage, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of an epoch over all ranks, before callbacks that come later see them.

    Put it before ReduceLROnPlateau, TensorBoard and others that use metrics.

    Args:
        device: Not used: metrics are numbers.
    """

    def __init__(self, device: str = "") -> None:
        """Takes the arguments of the class."""
        super().__init__(device)


class LearningRateScheduleCallback(_callbacks.LearningRateSchedule, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to `initial_lr * multiplier(epoch)` in some epochs.

    Args:
        initial_lr: The learning rate that is multiplied.
        multiplier: A function of the epoch; a number `m` is `m ** (epoch - start_epoch)`.
        start_epoch: The first epoch in which it is set.
        end_epoch: The first one in which it is left alone again; `None`: never.
        staircase: Whether it changes at the beginning of an epoch only. Otherwise it changes with
            every batch, and the epoch is a fraction.
        momentum_correction: Whether what an optimizer with momentum remembers is multiplied when
            the learning rate changes (Goyal et al. 2017).
        steps_per_epoch: Batches in an epoch; Keras says it in most cases.

    Raises:
        ValueError: `initial_lr` is `None`; or steps_per_epoch is needed, and Keras does not say it.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Takes the arguments of the class."""
        super().__init__(
            initial_lr,
            multiplier,
            start_epoch,
            end_epoch,
            staircase,
            momentum_correction,
            steps_per_epoch,
        )


class LearningRateWarmupCallback(_callbacks.LearningRateWarmup, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate from `initial_lr / size()` to `initial_lr`, batch by batch.

    Source: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017).

    Args:
        initial_lr: The learning rate after the warm-up.
        warmup_epochs: Epochs of the warm-up.
        momentum_correction: As of LearningRateScheduleCallback.
        steps_per_epoch: Batches in an epoch; Keras says it in most cases.
        verbose: 1: rank 0 prints when the warm-up is over.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Takes the arguments of the class."""
        super().__init__(initial_lr, warmup_epochs, momentum_correction, steps_per_epoch, verbose)


class BestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the model whenever a metric is better than ever; set `filepath` before training.

    Use it on one rank, after MetricAverageCallback.

    Args:
        monitor: The metric.
        verbose: 1: Keras says when it saves.
        save_weights_only: Whether only the weights are saved.
        mode: "min", "max" or "auto": which values are better.
        save_freq: "epoch", or a number of batches.
        filepath: Where the model is saved.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: Any = None,
    ) -> None:
        """Takes the arguments of the class."""
        # Keras wants a name; programs set the attribute later.
        super().__init__(
            filepath="first.weights.h5"
            if save_weights_only
            else "first.keras"
            if filepath is None
            else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins as Keras' callback does.

        Raises:
            ValueError: There is no `filepath`.
        """
        if self.filepath is None:
            msg = "BestModelCheckpoint does not know where: set its attribute filepath"
            raise ValueError(msg)
        super().on_train_begin(logs)
