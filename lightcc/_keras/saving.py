"""Loads a saved model so that its optimizer is distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightcc._keras.optimizer import distribute, is_of_keras_3

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightcc._keras.backend import Backend, Settings


def load_model(
    keras: Any,
    filepath: Any,
    custom_optimizers: Sequence[type] | None,
    custom_objects: Mapping[str, Any] | None,
    settings: Settings,
    backend: Backend,
) -> Any:
    """Returns the model; its optimizer goes on where the saved one stopped.

    Args:
        keras: The module that loads it.
        filepath: What `model.save()` wrote, with a distributed optimizer or another one.
        custom_optimizers: Classes that are not Keras' own.
        custom_objects: As of `keras.models.load_model()`.
        settings: How gradients are combined.
        backend: The framework below Keras.
    """
    known: dict[str, Any] = {cls.__name__: cls for cls in custom_optimizers or ()}
    known.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return model
    distribute(optimizer, settings, backend, in_place=True)
    if is_of_keras_3(optimizer) and not backend.compiles_collectives():
        model.jit_compile = False
    return model
