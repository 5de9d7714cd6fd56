"""Writes when gradients of some models become ready: what build/dev/tests/sim/fusion_steps reads.

python tools/gradient_times.py [--link-share S] | build/dev/tests/sim/fusion_steps

A model is a line with its name, how many gradients it has, the seconds of its forward pass and the
bytes per second of a link; then come the gradients, each with the seconds since the start of the
backward pass and its bytes. ResNet-50 and VGG-16 are those of `bench train`. The two transformers
are made here; their steps' times are assumptions that stand for a large and for a small step.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import NamedTuple

from lightcc.bench.cluster import parse_rate
from lightcc.bench.layer_table import GRADIENT_BYTES, read_table


class Timed(NamedTuple):
    """A model whose gradients become ready one after another.

    Attributes:
        name: Without blanks.
        forward_s: Seconds of the forward pass.
        link: Bytes per second.
        gradients: Seconds since the start of the backward pass, and bytes.
    """

    name: str
    forward_s: float
    link: float
    gradients: list[tuple[float, int]]


def of_bench(name: str) -> Timed:
    """Returns a model of the benchmark's table."""
    training = read_table()[name]
    layers = training.layers[::-1]
    ends = itertools.accumulate(layer.backward_s for layer in layers)
    gradients = [
        (end, count * GRADIENT_BYTES)
        for end, layer in zip(ends, layers, strict=True)
        for count in layer.counts
    ]
    return Timed(name, training.forward_s, parse_rate(training.link) / 8, gradients)


def transformer(name: str, width: int, step_s: float) -> Timed:
    """Returns 33 blocks of 12 gradients and an embedding of 4, on links of 50 Gb/s.

    Args:
        name: Without blanks.
        width: Of the model; the embedding has 8192 rows.
        step_s: Seconds of a step, a third of it for the forward pass.
    """
    squares, rows = width * width, width
    attention = [3 * squares, 3 * rows, squares, rows]
    block = [*attention, 4 * squares, 4 * rows, 4 * squares, *[rows] * 5]
    layers = [block] * 33 + [[8192 * width, squares, rows, rows]]
    backward_s = step_s * 2 / 3
    gradients = [
        (backward_s * (number + 1) / len(layers), count * GRADIENT_BYTES)
        for number, layer in enumerate(layers)
        for count in layer
    ]
    return Timed(name, step_s / 3, 50e9 / 8, gradients)


def main() -> None:
    """Writes all models."""
    parser = argparse.ArgumentParser(description="Writes when gradients become ready.")
    parser.add_argument("--link-share", type=float, default=1.0, help="of the links' rates")
    share = parser.parse_args().link_share
    models = [
        of_bench("resnet50"),
        of_bench("vgg16"),
        transformer("transformer-400", 1024, 0.2),
        transformer("small-transformer-400", 128, 0.015),
    ]
    for model in models:
        head = (model.name, len(model.gradients), model.forward_s, model.link * share)
        lines = [head, *model.gradients]
        sys.stdout.writelines(" ".join(map(str, line)) + "\n" for line in lines)


if __name__ == "__main__":
    main()
