"""Elastic training with TensorFlow: Horovod's `horovod.tensorflow.elastic`."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import tensorflow as tf

from lightcc._keras.elastic import ModelState
from lightcc._ops import basics
from lightcc._ops.functions import broadcast_object
from lightcc.elastic import ObjectState, State, run as _run
from lightcc.exceptions import HorovodInternalError
from lightcc.tensorflow._keras_backend import BACKEND
from lightcc.tensorflow.functions import broadcast_variables
from lightcc.tensorflow.util import _executing_eagerly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=State)


def run(func: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Makes a training function go on in another world when its own is over.

    As `lightcc.elastic.run()`, where TensorFlow reports that a rank has failed or left.

    Returns:
        The function, to be called with the state and the other arguments.
    """

    @functools.wraps(func)
    def wrapper(state: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with _translated():
            return func(state, *args, **kwargs)

    return _run(wrapper)  # type: ignore[arg-type]  # but for the name of the first parameter


class TensorFlowKerasState(ModelState):
    """A model of Keras, its optimizer, and Python objects as attributes.

    Optimizers are made whole before the state is synchronised, so that ranks which come later have
    all variables. TensorFlow must run eagerly.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        """Makes the state, and saves it.

        Args:
            model: The attribute `model`; it must be built.
            optimizer: The attribute `optimizer`; that of the model if `None`.
            backend: Not used: it is for sessions of TensorFlow 1.
            kwargs: Other attributes, which travel pickled.

        Raises:
            ValueError: The model is not built, or there is no optimizer.
            NotImplementedError: Operations run in a graph of tf.compat.v1.
        """
        del backend
        if not _executing_eagerly():
            msg = "TensorFlowKerasState needs eager execution; TensorFlowState takes a session"
            raise NotImplementedError(msg)
        super().__init__(model, optimizer, broadcast_keras_variables, kwargs)


class TensorFlowState(ObjectState):
    """Variables of TensorFlow, and Python objects as attributes.

    Attributes:
        variables: The variables.
        session: Which has their values, in a graph of tf.compat.v1.
    """

    can_roll_forward = False
    can_be_kept = False

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        """Makes the state, and saves it.

        Args:
            variables: All global variables if `None`, which only graphs of tf.compat.v1 have.
            session: The session of such a graph; the default session if `None`.
            kwargs: Other attributes, which travel pickled.

        Raises:
            ValueError: There are no variables, or a graph has no session.
        """
        self.variables = list(variables or tf.compat.v1.global_variables())
        if not self.variables:
            msg = "there are no variables: name those that ranks must have in common"
            raise ValueError(msg)
        self.session = session or tf.compat.v1.get_default_session()
        self._assignments: tuple[Any, Any, list[Any]] | None = None
        if not _executing_eagerly():
            if self.session is None:
                msg = "a graph needs a session: give one, or make the state within one"
                raise ValueError(msg)
            self._assignments = _assignments(self.variables)
        self._values: list[Any] = []
        self._save_variables()
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)

    def save(self) -> None:
        """Keeps copies of all variables, and the objects."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Goes back to what was saved last."""
        if self._assignments is not None:
            _, assign, fed = self._assignments
            self.session.run(assign, dict(zip(fed, self._values, strict=True)))
        else:
            for variable, value in zip(self.variables, self._values, strict=True):
                variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Takes over rank 0's state, and saves it. Collective."""
        with _translated():
            if self._assignments is not None:
                self.session.run(self._assignments[0])
            else:
                broadcast_variables(self.variables, root_rank=0)
        self._save_variables()
        super().sync()

    def _save_variables(self) -> None:
        if self._assignments is not None:
            self._values = self.session.run(self.variables)
        else:
            self._values = [variable.numpy().copy() for variable in self.variables]


def _assignments(variables: list[Any]) -> tuple[Any, Any, list[Any]]:
    """Returns what broadcasts, what assigns, and what is fed to the latter; once in each graph."""
    fed = [tf.compat.v1.placeholder(v.dtype.base_dtype, v.shape) for v in variables]
    pairs = zip(variables, fed, strict=True)
    assign = tf.group(*(tf.compat.v1.assign(variable, value) for variable, value in pairs))
    return broadcast_variables(variables, root_rank=0), assign, fed


def broadcast_keras_variables(variables: Sequence[Any]) -> None:
    """Gives variables of Keras rank 0's values. Collective.

    Raises:
        HorovodInternalError: A rank failed or left.
    """
    with _translated():
        BACKEND.broadcast_variables(variables, 0)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turns TensorFlow's error for a world that is over into ours."""
    try:
        yield
    except tf.errors.AbortedError as error:
        raise HorovodInternalError(error.message) from error
