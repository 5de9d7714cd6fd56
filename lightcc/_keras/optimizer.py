"""An optimizer of Keras whose gradients are those of all ranks.

It is a class below the given optimizer's own, with the same name, so that a model saved with it
loads without lightcc as well. The gradients are combined before the optimizer sees them: before it
clips, checks for overflow, or moves averages.

In Keras 3 everything goes through `apply()`: fit(), loops of one's own, and every backend. There
Horovod's optimizer has no effect, since it overrides what Keras 3 does not have. In Keras 2 fit()
calls `compute_gradients()`, and loops of one's own call `apply_gradients()` alone. Both combine, so
variables whose gradients the first has combined are noted until the second has come.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from lightcc import _world
from lightcc._adapter import choose_under_squares, say_choice, warn_under_second_moment
from lightcc._keras import hooks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightcc._keras.backend import Aggregation, Backend, Exchange, Settings


#: What an optimizer has that divides by a running mean of squared gradients, or of their like:
#: Adam, AdamW and others; RMSprop and Adadelta; Adagrad and Ftrl; Adafactor.
_SECOND_MOMENT = ("beta_2", "rho", "initial_accumulator_value", "beta_2_decay")


class CallableList(list[Any]):
    """A list that may be called: programs write `optimizer.variables()` and `.variables`."""

    def __call__(self) -> CallableList:
        """Returns itself."""
        return self


class _Training:
    """What an optimizer needs in order to combine gradients; Keras does not look into it."""

    def __init__(
        self, name: str, settings: Settings, backend: Backend, adaptive: str | None
    ) -> None:
        self.backend = backend
        self._name = name
        self._adaptive = adaptive  # The optimizer's class, until it was looked at.
        self.settings = settings
        self.local: set[Any] = set()
        self.combined: set[Any] = set()  # Variables whose gradients wait for apply_gradients().
        self._exchange: Exchange = backend.exchange(name, settings)
        self._pairs: list[tuple[Any, Any]] = []
        self.aggregation: Aggregation | None = None
        if settings.backward_passes_per_step > 1:
            self.aggregation = backend.aggregation(
                settings.backward_passes_per_step,
                self._reduce_sums,
                average=settings.average_aggregated_gradients,
                name=name,
            )

    def choices(self) -> dict[str, str]:
        """Returns how `Compression.auto` has gradients travel now."""
        return self._exchange.choices()

    def combine(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns what the optimizer steps with; its own sums where more passes are to come."""
        if self.aggregation is None:
            return self._reduce(gradients, variables)
        self._pairs = list(zip(gradients, variables, strict=True))
        return self.aggregation.add(gradients)

    def _reduce_sums(self, sums: Sequence[Any]) -> list[Any]:
        """Combines sums of all gradients, or of those alone that are not `None`."""
        variables = [v for g, v in self._pairs if len(sums) == len(self._pairs) or g is not None]
        return self._reduce(sums, variables)

    def _reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        is_local = [self.backend.key(variable) in self.local for variable in variables]
        shared = [i for i, local in enumerate(is_local) if not local]
        results = list(gradients)
        if self._adaptive is not None and _world.exists():
            self._suit_optimizer(self._adaptive, [_num_bytes(variables[i]) for i in shared])
            self._adaptive = None
        reduced = self._exchange.reduce(
            [gradients[i] for i in shared], [variables[i] for i in shared]
        )
        for i, gradient in zip(shared, reduced, strict=True):
            results[i] = gradient
        if self.settings.scale_local_gradients:
            results = [
                self._exchange.scale(g) if local else g
                for g, local in zip(results, is_local, strict=True)
            ]
        return results

    def _suit_optimizer(self, name: str, sizes: list[int]) -> None:
        """Compresses as suits an optimizer that divides by squares, or warns that it does not."""
        settings = self.settings
        chosen = choose_under_squares(settings.compression, settings.op)
        if chosen is settings.compression:
            warn_under_second_moment(chosen, name, sizes, settings.process_set)
            return
        self._exchange = self.backend.exchange(self._name, settings._replace(compression=chosen))
        say_choice(chosen, name, sizes, settings.process_set)


def _num_bytes(variable: Any) -> int:
    dtype = str(getattr(variable.dtype, "name", variable.dtype))  # float32, or bfloat16.
    bits = "".join(filter(str.isdigit, dtype))
    return math.prod(map(int, variable.shape)) * int(bits or 0) // 8


class Distributed:
    """What a distributed optimizer has beside those of the given one's class."""

    _lightcc_settings: ClassVar[Settings]
    _lightcc_backend: ClassVar[Backend]
    _lightcc_name: ClassVar[str]

    def _training(self) -> _Training:
        # Neither Keras nor TensorFlow shall track it: it is no part of a saved model.
        found: _Training | None = self.__dict__.get("_lightcc_training")
        if found is None:
            inner = getattr(self, "inner_optimizer", self)
            is_adaptive = any(hasattr(inner, name) for name in _SECOND_MOMENT)
            found = _Training(
                self._lightcc_name,
                self._lightcc_settings._replace(squares=is_adaptive),
                self._lightcc_backend,
                type(inner).__name__ if is_adaptive else None,
            )
            object.__setattr__(self, "_lightcc_training", found)
        return found

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of a variable this rank's own."""
        training = self._training()
        training.local.add(training.backend.key(var))

    def compression_choices(self) -> dict[str, str]:
        """Returns how `Compression.auto` has gradients travel now, by their variables' names.

        What travels as it is because it is small, or because all ranks share a host, is not there.
        """
        return self._training().choices()

    @property
    def _agg_helper(self) -> Aggregation | None:
        """Private, but Horovod's tests and some programs reach for its `counter`."""
        return self._training().aggregation

    @property
    def variables(self) -> CallableList:
        """The variables of the optimizer; calling the list gives the list."""
        found: Any = super().variables  # type: ignore[misc]
        return CallableList(found if isinstance(found, list) else found())

    def _all_ranks_finite(self, finite: Any) -> Any:
        training = self._training()
        return training.backend.all_true(finite, training.settings.process_set)


class _Keras3(Distributed):
    """For optimizers of Keras 3."""

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Steps with the gradients of all ranks, as the given optimizer does with this rank's.

        Collective: every rank of the process set must call it.

        Args:
            grads: Gradients, one for each variable; `None` where there is none.
            trainable_variables: The variables; those of `build()` if `None`.
        """
        self._training().backend.outside_compilation(self._apply)(
            list(grads), None if trainable_variables is None else list(trainable_variables)
        )

    def _apply(self, grads: list[Any], given: list[Any] | None) -> None:
        base: Any = super()
        variables = self._trainable_variables if given is None else given  # type: ignore[attr-defined]
        if not grads or len(grads) != len(variables):
            base.apply(grads, given)  # Which does nothing, or says what is wrong.
            return
        training = self._training()
        gradients = self._combine(grads, variables)
        if training.aggregation is None:
            base.apply(gradients, given)
            return
        if not self.built:  # type: ignore[has-type]  # No variable is made within a condition.
            self.build(variables)  # type: ignore[attr-defined]
            self.built = True
        training.aggregation.step(
            lambda: base.apply(gradients, given),
            gradients,
            lambda: self._iterations.assign_add(1),  # type: ignore[attr-defined]
        )

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Does what `apply()` does, and returns the values that variables then have (JAX)."""
        base: Any = super()
        if hasattr(self, "inner_optimizer"):  # Which does not come back to apply().
            training = self._training()
            variables = self._trainable_variables  # type: ignore[attr-defined]
            grads = training.combine(list(grads), variables)
        return base.stateless_apply(optimizer_variables, grads, trainable_variables)

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[Any]:
        """Returns the gradients of all ranks, each with its variable, as Keras 2 has it.

        Args:
            loss: A tensor, or a function that returns one.
            var_list: Variables.
            tape: The tf.GradientTape that has recorded a tensor.
        """
        return self._compute_gradients(loss, var_list, None, tape)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[Any]:
        variables = list(var_list)
        backend = self._training().backend
        gradients = backend.differentiate(loss, variables, grad_loss, tape)
        return _computed(self, list(zip(gradients, variables, strict=True)))

    def _combine(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return _combine_once(self._training(), gradients, variables)


class _Keras2(Distributed):
    """For optimizers of Keras 2: today's, and those below `keras.optimizers.legacy`."""

    _HAS_AGGREGATE_GRAD = True

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[Any]:
        """Returns the gradients of all ranks, each with its variable.

        Collective: every rank of the process set must call it.

        Args:
            loss: A tensor, or a function that returns one.
            var_list: Variables.
            tape: The tf.GradientTape that has recorded a tensor.
        """
        return self._compute_gradients(loss, var_list, None, tape)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[Any]:
        base: Any = super()
        if hasattr(base, "_compute_gradients"):
            pairs = base._compute_gradients(loss, var_list, grad_loss, tape=tape)  # noqa: SLF001
        else:
            pairs = base.compute_gradients(loss, var_list, tape=tape)
        return _computed(self, list(pairs))

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Returns the gradients of all ranks in a graph of tf.compat.v1."""
        base: Any = super()
        pairs = zip(base.get_gradients(loss, params), params, strict=True)
        return [gradient for gradient, _ in _computed(self, list(pairs))]

    def apply_gradients(self, grads_and_vars: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Steps as the given optimizer does, with the gradients of all ranks.

        Gradients that `compute_gradients()` has combined are not combined once more.
        """
        base: Any = super()
        pairs = list(grads_and_vars)
        training = self._training()
        training.backend.outside_compilation(base.apply_gradients)
        variables = [variable for _, variable in pairs]
        gradients = _combine_once(training, [gradient for gradient, _ in pairs], variables)
        pairs = list(zip(gradients, variables, strict=True))
        if training.aggregation is None:
            return base.apply_gradients(pairs, *args, **kwargs)
        return training.aggregation.step(
            lambda: base.apply_gradients(pairs, *args, **kwargs),
            gradients,
            lambda: self.iterations.assign_add(1),  # type: ignore[attr-defined]
        )


def _computed(optimizer: Distributed, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Returns gradients combined, and notes that they are."""
    training = optimizer._training()  # noqa: SLF001  of this module
    variables = [variable for _, variable in pairs]
    gradients = training.combine([gradient for gradient, _ in pairs], variables)
    training.combined.update(training.backend.key(variable) for variable in variables)
    return list(zip(gradients, variables, strict=True))


def _combine_once(
    training: _Training, gradients: Sequence[Any], variables: Sequence[Any]
) -> list[Any]:
    """Returns gradients combined; those of variables that have been are as they are."""
    keys = {training.backend.key(variable) for variable in variables}
    if keys and keys <= training.combined:
        training.combined -= keys
        return list(gradients)
    return training.combine(gradients, variables)


def is_of_keras_3(optimizer: Any) -> bool:
    """Returns whether something is an optimizer of Keras 3."""
    return hasattr(optimizer, "stateless_apply") and hasattr(optimizer, "apply")


def is_distributed(optimizer: Any) -> bool:
    """Returns whether an optimizer, or the one within it, combines gradients of all ranks."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return isinstance(optimizer, Distributed) or isinstance(inner, Distributed)


def distribute(
    optimizer: Any, settings: Settings, backend: Backend, *, in_place: bool = False
) -> Any:
    """Returns an optimizer like `optimizer` whose gradients are those of all ranks.

    Args:
        optimizer: Of Keras 3 or 2.
        settings: How gradients are combined.
        backend: The framework below Keras.
        in_place: Whether the given optimizer becomes one. Otherwise it stays as it is, and a copy
            is returned. In Keras 3 the copy has the same state.

    Raises:
        TypeError: It is no optimizer of Keras.
        ValueError: It is distributed already, or a setting is not allowed.
    """
    if is_distributed(optimizer):
        msg = "the optimizer is distributed already"
        raise ValueError(msg)
    settings.check()
    cls = type(optimizer)
    kind: type[Distributed]
    if is_of_keras_3(optimizer):
        kind = _Keras3
        hooks.install(is_distributed, backend)
    elif hasattr(optimizer, "apply_gradients") and hasattr(optimizer, "get_config"):
        kind = _Keras2
    else:
        msg = (
            f"the optimizer is {optimizer!r}: expected an optimizer object of Keras, such as"
            " keras.optimizers.SGD()"
        )
        raise TypeError(msg)
    members = {
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
        "_lightcc_settings": settings,
        "_lightcc_backend": backend,
        "_lightcc_name": settings.name or f"Distributed{cls.__name__}",
    }
    made = type(cls.__name__, (kind, cls), members)
    if in_place:
        optimizer.__class__ = made
        distributed = optimizer
    else:
        distributed = made.from_config(optimizer.get_config())  # type: ignore[attr-defined]
        if kind is _Keras3 and optimizer.built:
            _copy_state(optimizer, distributed)
    distributed._training()  # Says now what is not allowed.  # noqa: SLF001
    return distributed


def _copy_state(source: Any, target: Any) -> None:
    """Gives an optimizer of Keras 3 the variables' values of another."""
    target.build(list(source._trainable_variables))  # noqa: SLF001
    for variable, other in zip(target.variables, source.variables, strict=True):
        variable.assign(other)
