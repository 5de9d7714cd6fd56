"""The callbacks for training with Keras; a frontend derives each from Keras' Callback as well.

Sources: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), for the
warm-up and for momentum correction.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from lightcc._ops.basics import rank, size
from lightcc._ops.reductions import Average, allreduce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lightcc._keras.backend import Backend


class BroadcastGlobalVariables:
    """Gives all ranks the root's weights and optimizer state, at the end of the first batch.

    Ranks may begin with other weights, or load a checkpoint on the root alone. The state of random
    generators is left alone.

    Args:
        root_rank: World rank of the root.
        device: Not used: variables stay where they are.
        local_variables: Variables that stay as they are on each rank.
    """

    _backend: Backend
    model: Any

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None
    ) -> None:
        """Takes the arguments of the class."""
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local: set[Any] = set()
        for variable in local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable as it is on each rank."""
        self._local.add(self._backend.key(var))

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts, once. Collective."""
        del batch, logs
        if self.broadcast_done:
            return
        model = self.model
        optimizer = getattr(model, "optimizer", None)
        variables = [v for v in model.variables if self._backend.key(v) not in self._local]
        if optimizer is not None:
            found = optimizer.variables
            variables += found if isinstance(found, list) else found()
        # Each rank draws random numbers of its own.
        variables = [v for v in variables if "seed_generator" not in getattr(v, "path", "")]
        self._backend.broadcast_variables(variables, self.root_rank)
        self.broadcast_done = True


class MetricAverage:
    """Averages the metrics of an epoch over all ranks, before callbacks that come later see them.

    Put it before ReduceLROnPlateau, TensorBoard and others that use metrics.

    Args:
        device: Not used: metrics are numbers.
    """

    def __init__(self, device: str = "") -> None:
        """Takes the arguments of the class."""
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages. Collective: all ranks must have the same metrics."""
        del epoch
        if not logs:
            return
        names = sorted(logs)  # On all ranks in one order.
        values = np.array([float(logs[name]) for name in names], np.float64)
        averages = allreduce(values, op=Average, name="MetricAverageCallback")
        logs.update(zip(names, averages.tolist(), strict=True))


class LearningRateSchedule:
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

    model: Any
    params: dict[str, Any]

    def __init__(
        self,
        initial_lr: float | None,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Takes the arguments of the class."""
        super().__init__()
        if initial_lr is None:
            msg = "Parameter `initial_lr` is required"
            raise ValueError(msg)
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch: int | None = None
        self.multiplier: Callable[[float], float]
        self._momentum: Any = None  # To be restored after the batch.
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            decay = multiplier
            self.multiplier = lambda epoch: decay ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds the number of steps in an epoch, where it is needed."""
        del logs
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._find_steps_per_epoch()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        del logs
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate, where it changes."""
        del logs
        epoch = self.current_epoch or 0
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._adjust(epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(epoch)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Restores the momentum."""
        del batch, logs
        if self._momentum is not None:
            _set(self.model.optimizer, "momentum", self._momentum)
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the learning rate to the metrics, as "lr"."""
        del epoch
        if logs is not None:
            logs["lr"] = _learning_rate(self.model.optimizer)

    def _find_steps_per_epoch(self) -> int:
        steps = self.params.get("steps")
        if steps:
            return int(steps)
        samples, batch_size = self.params.get("samples"), self.params.get("batch_size")
        if samples and batch_size:
            return int(samples) // int(batch_size)
        msg = (
            "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch"
            f" parameter to the {type(self).__name__}()."
        )
        raise ValueError(msg)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before = _learning_rate(optimizer)
        after = self.initial_lr * self.multiplier(epoch)
        _set(optimizer, "learning_rate", after)
        if self.momentum_correction and before > 0.0 and after != before:
            self._correct_momentum(after / before)

    def _correct_momentum(self, factor: float) -> None:
        """Makes up for the learning rate that is part of what an optimizer remembers.

        Where the momentum is a variable, it is multiplied for one batch. Elsewhere it is a constant
        of the compiled step, and what is remembered is multiplied instead, which is the same.
        """
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        momentum = getattr(optimizer, "momentum", None)
        if momentum is None:
            return
        if hasattr(momentum, "assign"):
            self._momentum = float(momentum.numpy())
            _set(optimizer, "momentum", self._momentum * factor)
        elif momentum:
            own = getattr(optimizer, "_momentums", ())
            remembered: Any = getattr(optimizer, "momentums", own)
            for variable in remembered:
                if variable is not None:
                    variable.assign(variable * factor)


class LearningRateWarmup(LearningRateSchedule):
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

        def multiplier(epoch: float) -> float:
            # So that an epoch ends with a round number.
            epoch += 1.0 / (self.steps_per_epoch or 1)
            return 1.0 / size() * (epoch * (size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the learning rate to the metrics; says at the end what it is now."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose > 0 and rank() == 0:
            rate = _learning_rate(self.model.optimizer)
            text = f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.\n"
            sys.stdout.write(text)


class BestModelCheckpoint:
    """Saves the model whenever a metric is better than ever; set `filepath` before training.

    Use it on one rank, after MetricAverageCallback. A frontend has its signature.
    """

    filepath: Any

    def __init__(self, *, filepath: Any, **arguments: Any) -> None:
        # Keras wants a name, whose end says what is saved; programs set the attribute later.
        weights = arguments.get("save_weights_only", False)
        name = "first.weights.h5" if weights else "first.keras"
        super().__init__(
            filepath=name if filepath is None else filepath,  # type: ignore[call-arg]
            save_best_only=True,
            **arguments,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins as Keras' callback does.

        Raises:
            ValueError: There is no `filepath`.
        """
        if self.filepath is None:
            msg = "BestModelCheckpoint does not know where: set its attribute filepath"
            raise ValueError(msg)
        base: Any = super()
        base.on_train_begin(logs)


def _learning_rate(optimizer: Any) -> float:
    rate = optimizer.learning_rate
    return float(rate.numpy() if hasattr(rate, "numpy") else rate)


def _set(optimizer: Any, attribute: str, value: float) -> None:
    found = getattr(optimizer, attribute)
    if hasattr(found, "assign"):
        found.assign(value)
    else:
        setattr(optimizer, attribute, value)
