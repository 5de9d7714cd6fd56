"""States and callbacks of elastic jobs for Keras; a frontend says how variables are broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightcc import _world
from lightcc._ops import basics
from lightcc._ops.functions import broadcast_object
from lightcc.elastic import ObjectState, State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Broadcast = Callable[[Sequence[Any]], None]


class ModelState(ObjectState):
    """A model, its optimizer, and Python objects as attributes.

    Attributes:
        model: The model.
        optimizer: The optimizer.
    """

    can_roll_forward = False
    can_be_kept = False

    def __init__(
        self, model: Any, optimizer: Any, broadcast: Broadcast, objects: dict[str, Any]
    ) -> None:
        """Makes the state, and saves it.

        Args:
            model: It must be built.
            optimizer: `None`: the one with which the model was compiled.
            broadcast: Gives variables of every rank rank 0's values. Collective.
            objects: Attributes that travel pickled.

        Raises:
            ValueError: The model is not built, or there is no optimizer.
        """
        if not getattr(model, "built", True):
            msg = "Model must be built first. Run `model.build(input_shape)`."
            raise ValueError(msg)
        self.model = model
        self.optimizer: Any = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is None:
            msg = "there is no optimizer: give one, or compile the model with one"
            raise ValueError(msg)
        self._broadcast = broadcast
        self._values: list[Any] = []
        self._save_variables()
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **objects)

    def save(self) -> None:
        """Keeps copies of all variables, and the objects."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Goes back to what was saved last."""
        for variable, value in zip(self._variables(), self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Takes over rank 0's state, and saves it. Collective."""
        # Each rank draws random numbers of its own.
        variables = [v for v in self._variables() if "seed_generator" not in getattr(v, "path", "")]
        self._broadcast(variables)
        self._save_variables()
        super().sync()

    def _save_variables(self) -> None:
        _world.finish()  # What has failed by then is not saved.
        self._values = [variable.numpy().copy() for variable in self._variables()]

    def _variables(self) -> list[Any]:
        """Returns all variables; those of the optimizer are made if it has not made a step yet."""
        build = getattr(self.optimizer, "build", None)
        if build is not None and not getattr(self.optimizer, "built", False):
            build(self.model.trainable_variables)
        found = self.optimizer.variables
        of_optimizer = list(found() if callable(found) else found)
        # A model that was compiled may count those of its optimizer as its own.
        known = {id(variable) for variable in of_optimizer}
        return [v for v in self.model.variables if id(v) not in known] + of_optimizer


class CommitState:
    """Commits the state after each so many batches, and at the end of each epoch.

    Collective: every rank must train with it.

    Args:
        state: The state.
        batches_per_commit: From one commit to the next.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        """Takes the arguments of the class."""
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts anew, so that all ranks count alike."""
        del logs
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits when it is time."""
        del batch, logs
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        del epoch, logs
        self.state.commit()


class UpdateBatchState:
    """Keeps the number of the batch in `state.batch`; 0 at the end of each epoch.

    Args:
        state: The state.
    """

    params: dict[str, Any]

    def __init__(self, state: Any) -> None:
        """Takes the arguments of the class."""
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins anew."""
        del logs
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Says that the epoch has fewer steps left, where Keras knows their number."""
        del epoch, logs
        if self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keeps the number."""
        del logs
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begins to count anew."""
        del epoch, logs
        self.state.batch = 0


class UpdateEpochState:
    """Keeps how many epochs are over in `state.epoch`, across changes of the world.

    Args:
        state: The state.
    """

    def __init__(self, state: Any) -> None:
        """Takes the arguments of the class."""
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Keras counts from 0 after each change of the world."""
        del logs
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts one more."""
        del logs
        self.state.epoch = self.initial_epoch + epoch + 1
