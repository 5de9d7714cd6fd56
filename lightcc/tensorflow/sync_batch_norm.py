"""Batch normalization over the batches of all ranks together, for Keras on TensorFlow.

Two sums per channel are combined: first of the values, which gives the mean, then of the squared
deviations from it, so that no squares of means are subtracted. Batches may have other sizes on
each rank. Their gradients are those of all ranks' losses, since the sums record them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lightcc._ops.basics import size
from lightcc._ops.reductions import Sum
from lightcc.tensorflow.reductions import allreduce


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Applies batch normalization with the statistics of the batches of all ranks.

    In training, forward and backward are those of one process with the joined batch. In inference,
    and in a job of one rank, it is Keras' own layer.

    Collective: in training, all ranks must run the same layers in the same order, forward and
    backward.

    Args:
        fused: `False`: a fused implementation cannot ask other ranks.
        kwargs: As of `tf.keras.layers.BatchNormalization`.

    Raises:
        ValueError: `fused` is true.
        tf.errors.OpError: As of `allreduce()`.

    Example:
        >>> import tensorflow as tf
        >>> import lightcc.tensorflow as hvd
        >>> hvd.init()
        >>> layer = hvd.SyncBatchNormalization(epsilon=1e-9)
        >>> layer(tf.constant([[1.0], [3.0]]), training=True).numpy().round().tolist()
        [[-1.0], [1.0]]
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        """Takes the arguments of the class."""
        if fused in (True, None):
            msg = "SyncBatchNormalization does not support fused=True."
            raise ValueError(msg)
        if _KERAS_3:
            super().__init__(**kwargs)
        else:
            super().__init__(fused=fused, **kwargs)

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns mean and variance; the arguments are those of the Keras at hand."""
        if size() == 1:
            return super()._moments(inputs, *args, **kwargs)
        if _KERAS_3:
            return self._moments_3(inputs, *args, **kwargs)
        return self._moments_2(inputs, *args, **kwargs)

    def _moments_3(self, inputs: Any, mask: Any) -> Any:
        return _moments_of_all(inputs, self._reduction_axes, mask, keep_dims=False)

    def _moments_2(
        self, inputs: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None
    ) -> Any:
        return _moments_of_all(inputs, reduction_axes, mask, keep_dims=keep_dims)


# Keras 3's layer has no fused implementation.
_KERAS_3 = hasattr(tf.keras.optimizers, "LossScaleOptimizer")


def _moments_of_all(inputs: Any, axes: Any, mask: Any, *, keep_dims: bool) -> tuple[Any, Any]:
    """Returns mean and biased variance over all ranks, in float32 at least."""
    values = tf.convert_to_tensor(inputs)
    if values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    weights = tf.ones_like(values)
    if mask is not None:
        weights *= tf.cast(mask, values.dtype)[..., tf.newaxis]
        values = tf.where(weights > 0, values, 0)
    count = tf.reduce_sum(weights, axes, keepdims=True)
    sums = tf.stack([count, tf.reduce_sum(values, axes, keepdims=True)])
    sums = allreduce(sums, op=Sum)
    total = tf.maximum(sums[0], 1)
    mean = sums[1] / total
    squares = tf.reduce_sum(weights * tf.square(values - mean), axes, keepdims=True)
    variance = allreduce(squares, op=Sum) / total
    if not keep_dims:
        mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
    return mean, variance
