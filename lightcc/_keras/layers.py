"""Layers whose variables stay a rank's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def local_variables(local_layers: Any) -> Iterable[Any]:
    """Returns the trainable weights of a layer, of several, or of none.

    Raises:
        ValueError: Something is no layer.
    """
    layers = [] if local_layers is None else local_layers
    if hasattr(layers, "trainable_weights"):
        layers = [layers]
    if not all(hasattr(layer, "trainable_weights") for layer in layers):
        msg = "All local layers must be of tf.keras.layers.Layer type."
        raise ValueError(msg)
    return [variable for layer in layers for variable in layer.trainable_weights]
