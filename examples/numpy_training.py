"""Trains a small network on handwritten digits with numpy, data-parallel.

    lightccrun -np 2 python examples/numpy_training.py [epochs]

Each rank learns from its own share of the data; after every batch the gradients are averaged over
all ranks, layer by layer, while the earlier layers' gradients are still being computed. At the end
all ranks prove that they hold the same weights, bit for bit.
"""

from __future__ import annotations

import hashlib
import sys
import time
from itertools import pairwise

import numpy as np
from sklearn.datasets import load_digits

import lightcc as hvd

LAYERS = (64, 128, 64, 10)
RATE = np.float32(0.1)
BATCH = 32  # Samples of one rank.


def make_weights(rng):
    """Returns [weight, bias] of every layer."""
    return [
        [rng.standard_normal((m, n), np.float32) * np.float32((2 / m) ** 0.5), np.zeros(n, "f4")]
        for m, n in pairwise(LAYERS)
    ]


def forward(weights, x):
    """Returns the activations of every layer; the last are class probabilities."""
    activations = [x]
    for weight, bias in weights[:-1]:
        activations.append(np.maximum(activations[-1] @ weight + bias, 0))
    logits = activations[-1] @ weights[-1][0] + weights[-1][1]
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    activations.append(exp / exp.sum(axis=1, keepdims=True))
    return activations


def start_averaging(weights, activations, labels):
    """Back-propagates; starts averaging a layer's gradients as soon as they are there."""
    delta = activations[-1].copy()
    delta[np.arange(len(labels)), labels] -= 1
    delta /= len(labels)
    pending = []
    for layer in reversed(range(len(weights))):
        gradients = [activations[layer].T @ delta, delta.sum(axis=0)]
        pending += [
            (layer, part, hvd.allreduce_async_(gradient, op=hvd.Average, name=f"{layer}.{part}"))
            for part, gradient in enumerate(gradients)
        ]
        delta = (delta @ weights[layer][0].T) * (activations[layer] > 0)
    return pending


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    hvd.init()

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    test, train = slice(0, 360), slice(360, None)
    mine_x, mine_y = x[train][hvd.rank() :: hvd.size()], y[train][hvd.rank() :: hvd.size()]
    steps = len(y[train]) // hvd.size() // BATCH  # The same on all ranks.

    weights = make_weights(np.random.default_rng(hvd.rank()))  # Different on each rank ...
    for name, tensor in enumerate(tensor for layer in weights for tensor in layer):
        hvd.broadcast_(tensor, root_rank=0, name=f"weights.{name}")  # ... until here.

    rng = np.random.default_rng(hvd.rank())
    start = time.perf_counter()
    for _ in range(epochs):
        for batch in np.array_split(rng.permutation(len(mine_y))[: steps * BATCH], steps):
            pending = start_averaging(weights, forward(weights, mine_x[batch]), mine_y[batch])
            for layer, part, handle in pending:
                weights[layer][part] -= RATE * hvd.synchronize(handle)
    seconds = time.perf_counter() - start

    state = b"".join(tensor.tobytes() for layer in weights for tensor in layer)
    hashes = hvd.allgather_object(hashlib.sha256(state).hexdigest())
    if len(set(hashes)) != 1:
        sys.exit(f"weights differ between ranks: {hashes}")
    if hvd.rank() == 0:
        accuracy = (forward(weights, x[test])[-1].argmax(axis=1) == y[test]).mean()
        speed = epochs * steps * BATCH * hvd.size() / seconds
        print(f"{hvd.size()} ranks, {speed:.0f} samples/s, accuracy {accuracy:.3f}")
        print(f"all ranks hold the same weights, bit for bit: {hashes[0][:16]}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
