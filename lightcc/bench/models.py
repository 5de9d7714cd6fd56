"""The gradient shapes of known models, computed from their architectures.

What matters to a collective library is how many tensors there are and how large each is, so every
model is a list of shapes in the order of its parameters. Back-propagation produces gradients from
the last layer to the first: `gradients` gives them in that order. The models are those of
torchvision (classifiers of 1000 classes) and GPT-2 small; tests hold the known totals.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

Shape = tuple[int, ...]


def _norm(channels: int) -> list[Shape]:
    return [(channels,), (channels,)]


def _linear(inputs: int, outputs: int) -> list[Shape]:
    return [(outputs, inputs), (outputs,)]


def _conv_norm(inputs: int, outputs: int, *kernel: int) -> list[Shape]:
    """A convolution without bias, and its batch normalisation; `kernel`: side or height, width."""
    height, width = kernel if len(kernel) > 1 else (kernel[0], kernel[0])
    return [(outputs, inputs, height, width), *_norm(outputs)]


def _resnet(*blocks: int) -> list[Shape]:
    """Bottleneck residual network (He et al. 2015) with `blocks` per stage."""
    shapes = _conv_norm(3, 64, 7)
    channels = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            shapes += _conv_norm(channels, width, 1)
            shapes += _conv_norm(width, width, 3)
            shapes += _conv_norm(width, 4 * width, 1)
            if block == 0:
                shapes += _conv_norm(channels, 4 * width, 1)
            channels = 4 * width
    return shapes + _linear(channels, 1000)


def _vgg16() -> list[Shape]:
    """VGG configuration D (Simonyan and Zisserman 2014), without batch normalisation."""
    shapes: list[Shape] = []
    channels = 3
    for width in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512):
        shapes += [(width, channels, 3, 3), (width,)]
        channels = width
    return shapes + _linear(512 * 7 * 7, 4096) + _linear(4096, 4096) + _linear(4096, 1000)


def _inception_v3() -> list[Shape]:
    """Inception v3 (Szegedy et al. 2015) with its auxiliary classifier, as trained."""
    conv = _conv_norm
    shapes = conv(3, 32, 3) + conv(32, 32, 3) + conv(32, 64, 3) + conv(64, 80, 1) + conv(80, 192, 3)
    for inputs, pool in ((192, 32), (256, 64), (288, 64)):  # Mixed 5b to 5d.
        shapes += conv(inputs, 64, 1) + conv(inputs, 48, 1) + conv(48, 64, 5)
        shapes += conv(inputs, 64, 1) + conv(64, 96, 3) + conv(96, 96, 3) + conv(inputs, pool, 1)
    shapes += conv(288, 384, 3) + conv(288, 64, 1) + conv(64, 96, 3) + conv(96, 96, 3)  # 6a.
    for width in (128, 160, 160, 192):  # Mixed 6b to 6e.
        shapes += conv(768, 192, 1)
        shapes += conv(768, width, 1) + conv(width, width, 1, 7) + conv(width, 192, 7, 1)
        shapes += conv(768, width, 1) + conv(width, width, 7, 1) + conv(width, width, 1, 7)
        shapes += conv(width, width, 7, 1) + conv(width, 192, 1, 7) + conv(768, 192, 1)
    shapes += conv(768, 128, 1) + conv(128, 768, 5) + _linear(768, 1000)  # Auxiliary classifier.
    shapes += conv(768, 192, 1) + conv(192, 320, 3) + conv(768, 192, 1)  # Mixed 7a.
    shapes += conv(192, 192, 1, 7) + conv(192, 192, 7, 1) + conv(192, 192, 3)
    for inputs in (1280, 2048):  # Mixed 7b and 7c.
        shapes += conv(inputs, 320, 1)
        shapes += conv(inputs, 384, 1) + conv(384, 384, 1, 3) + conv(384, 384, 3, 1)
        shapes += conv(inputs, 448, 1) + conv(448, 384, 3)
        shapes += conv(384, 384, 1, 3) + conv(384, 384, 3, 1) + conv(inputs, 192, 1)
    return shapes + _linear(2048, 1000)


def _gpt2() -> list[Shape]:
    """GPT-2 small (Radford et al. 2019): 12 layers of width 768, tied embeddings."""
    width = 768
    shapes: list[Shape] = [(50257, width), (1024, width)]
    for _ in range(12):
        shapes += _norm(width) + _linear(width, 3 * width) + _linear(width, width)
        shapes += _norm(width) + _linear(width, 4 * width) + _linear(4 * width, width)
    return shapes + _norm(width)


MODELS: dict[str, Callable[[], list[Shape]]] = {
    "resnet50": lambda: _resnet(3, 4, 6, 3),
    "resnet101": lambda: _resnet(3, 4, 23, 3),
    "vgg16": _vgg16,
    "inception_v3": _inception_v3,
    "gpt2": _gpt2,
}


def gradients(name: str) -> list[int]:
    """Returns the elements of each gradient of a model of `MODELS`, last layer first."""
    return [prod(shape) for shape in reversed(MODELS[name]())]
