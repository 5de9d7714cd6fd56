"""The layers of known models, computed from their architectures.

A layer is what back-propagation finishes at once: its gradients' shapes and its multiply-adds for
one sample of a forward pass, from which `layer_table` apportions time. The models are those of
torchvision (classifiers of 1000 classes), GPT-2 small, GPT-3 XL, BERT large, Llama 2 and 3, and
Transformer-XL large for WikiText-103; tests hold the known totals. Layers are listed in the order
of a forward pass; back-propagation produces gradients from the last layer to the first: `gradients`
gives them in that order.

Not counted: what has no weights (activations, pooling, attention's products, softmax) and what is
small beside the products (normalisation, bias).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """A layer with weights."""

    shapes: tuple[Shape, ...]  # The shapes of its gradients, in the order of its parameters.
    macs: int  # Multiply-adds of the forward pass of one sample.

    @property
    def counts(self) -> list[int]:
        """The elements of each gradient."""
        return [prod(shape) for shape in self.shapes]


def _norm(channels: int) -> tuple[Shape, Shape]:
    return (channels,), (channels,)


def _linear(inputs: int, outputs: int, *, bias: bool = True, at: int = 1) -> Layer:
    """A matrix, applied at `at` positions of a sample."""
    shapes: tuple[Shape, ...] = ((outputs, inputs), (outputs,))
    return Layer(shapes if bias else shapes[:1], inputs * outputs * at)


def _conv_norm(inputs: int, outputs: int, *kernel: int, at: int) -> Layer:
    """A convolution without bias, and its batch normalisation.

    Args:
        inputs: Channels that it reads.
        outputs: Channels that it writes.
        kernel: Side, or height and width.
        at: Side of the image that it writes.
    """
    height, width = kernel if len(kernel) > 1 else (kernel[0], kernel[0])
    weights = (outputs, inputs, height, width)
    return Layer((weights, *_norm(outputs)), prod(weights) * at * at)


def _resnet(*blocks: int) -> list[Layer]:
    """Bottleneck residual network (He et al. 2015) with `blocks` per stage; strides in 3x3."""
    layers = [_conv_norm(3, 64, 7, at=112)]
    channels, side = 64, 56
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            read, side = side, 56 >> stage
            layers.append(_conv_norm(channels, width, 1, at=read))
            layers.append(_conv_norm(width, width, 3, at=side))
            layers.append(_conv_norm(width, 4 * width, 1, at=side))
            if block == 0:
                layers.append(_conv_norm(channels, 4 * width, 1, at=side))
            channels = 4 * width
    return [*layers, _linear(channels, 1000)]


def _vgg16() -> list[Layer]:
    """VGG configuration D (Simonyan and Zisserman 2014), without batch normalisation."""
    layers = []
    channels, side = 3, 224
    for widths in ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)):
        for width in widths:
            weights = (width, channels, 3, 3)
            layers.append(Layer((weights, (width,)), prod(weights) * side * side))
            channels = width
        side //= 2
    return [*layers, _linear(512 * 7 * 7, 4096), _linear(4096, 4096), _linear(4096, 1000)]


def _inception_v3() -> list[Layer]:
    """Inception v3 (Szegedy et al. 2015) with its auxiliary classifier, as trained."""
    conv = _conv_norm
    layers = [conv(3, 32, 3, at=149), conv(32, 32, 3, at=147), conv(32, 64, 3, at=147)]
    layers += [conv(64, 80, 1, at=73), conv(80, 192, 3, at=71)]
    for inputs, pool in ((192, 32), (256, 64), (288, 64)):  # Mixed 5b to 5d.
        layers += [conv(inputs, 64, 1, at=35), conv(inputs, 48, 1, at=35), conv(48, 64, 5, at=35)]
        layers += [conv(inputs, 64, 1, at=35), conv(64, 96, 3, at=35), conv(96, 96, 3, at=35)]
        layers += [conv(inputs, pool, 1, at=35)]
    layers += [conv(288, 384, 3, at=17), conv(288, 64, 1, at=35)]  # Mixed 6a.
    layers += [conv(64, 96, 3, at=35), conv(96, 96, 3, at=17)]
    for width in (128, 160, 160, 192):  # Mixed 6b to 6e.
        layers += [conv(768, 192, 1, at=17), conv(768, width, 1, at=17)]
        layers += [conv(width, width, 1, 7, at=17), conv(width, 192, 7, 1, at=17)]
        layers += [conv(768, width, 1, at=17), conv(width, width, 7, 1, at=17)]
        layers += [conv(width, width, 1, 7, at=17), conv(width, width, 7, 1, at=17)]
        layers += [conv(width, 192, 1, 7, at=17), conv(768, 192, 1, at=17)]
    layers += [conv(768, 128, 1, at=5), conv(128, 768, 5, at=1), _linear(768, 1000)]  # Auxiliary.
    layers += [conv(768, 192, 1, at=17), conv(192, 320, 3, at=8)]  # Mixed 7a.
    layers += [conv(768, 192, 1, at=17), conv(192, 192, 1, 7, at=17)]
    layers += [conv(192, 192, 7, 1, at=17), conv(192, 192, 3, at=8)]
    for inputs in (1280, 2048):  # Mixed 7b and 7c.
        layers += [conv(inputs, 320, 1, at=8), conv(inputs, 384, 1, at=8)]
        layers += [conv(384, 384, 1, 3, at=8), conv(384, 384, 3, 1, at=8)]
        layers += [conv(inputs, 448, 1, at=8), conv(448, 384, 3, at=8)]
        layers += [conv(384, 384, 1, 3, at=8), conv(384, 384, 3, 1, at=8)]
        layers += [conv(inputs, 192, 1, at=8)]
    return [*layers, _linear(2048, 1000)]


def _gpt(depth: int, width: int, tokens: int) -> list[Layer]:
    """GPT-2 or GPT-3 (Radford et al. 2019, Brown et al. 2020): tied embeddings of 50,257 words."""
    # The table of tokens gets its gradient when the first layer has been passed, tied or not.
    layers = [Layer(((50257, width), (tokens, width)), 50257 * width * tokens)]
    for _ in range(depth):
        attention = (_linear(width, 3 * width, at=tokens), _linear(width, width, at=tokens))
        feed = (_linear(width, 4 * width, at=tokens), _linear(4 * width, width, at=tokens))
        for pair in (attention, feed):
            layers.append(Layer((*_norm(width), *pair[0].shapes), pair[0].macs))
            layers.append(pair[1])
    return [*layers, Layer(_norm(width), 0)]


def _bert_large() -> list[Layer]:
    """BERT large, uncased (Devlin et al. 2019): 24 layers of width 1024, for 512 tokens."""
    width, tokens = 1024, 512
    tables = ((30522, width), (tokens, width), (2, width))
    layers = [Layer((*tables, *_norm(width)), 0)]
    for _ in range(24):
        layers += [_linear(width, width, at=tokens)] * 3  # Queries, keys and values.
        for inner in (width, 4 * width):  # Attention's output; the perceptron.
            if inner > width:
                layers.append(_linear(width, inner, at=tokens))
            back = _linear(inner, width, at=tokens)
            layers.append(Layer((*back.shapes, *_norm(width)), back.macs))
    return [*layers, _linear(width, width)]


def _llama(words: int, inner: int, keys: int, tokens: int) -> list[Layer]:
    """Llama 2 or 3 (Touvron et al. 2023, Dubey et al. 2024): 32 layers of width 4096."""
    width = 4096
    layers = [Layer(((words, width),), 0)]
    for _ in range(32):
        outputs = (width, keys, keys, width, inner, inner)  # Attention's four; gate and up.
        layers += [_linear(width, each, bias=False, at=tokens) for each in outputs]
        down = _linear(inner, width, bias=False, at=tokens)
        layers.append(Layer((*down.shapes, (width,), (width,)), down.macs))
    head = _linear(width, words, bias=False, at=tokens)
    return [*layers, Layer(((width,), *head.shapes), head.macs)]


def _transformer_xl() -> list[Layer]:
    """Transformer-XL large (Dai et al. 2019), as its authors train it on WikiText-103.

    18 layers of width 1024 with an adaptive softmax of four clusters (div_val 4) over 267,735
    words, weights tied to the embedding's. A sample is a segment of 384 tokens, after 384 more
    that attention remembers. The articles' "257 M parameters" count other parts.
    """
    width, heads, inner, tokens = 1024, 16 * 64, 4096, 384
    clusters = ((20_000, 1024), (20_000, 256), (160_000, 64), (67_735, 16))
    tables: list[Shape] = [(words, size) for words, size in clusters]
    projections: list[Shape] = [(width, size) for _, size in clusters]
    # The head of the softmax sees every token; tails see the few tokens whose word is in them.
    layers = [Layer((*tables, *projections), width * width * tokens)]
    # The biases of attention's positions are shared by all layers: complete after the first one.
    layers.append(Layer(((16, 64), (16, 64)), 0))
    for _ in range(18):
        layers.append(Layer(((3 * heads, width),), (heads + 2 * heads * 2) * width * tokens))
        layers.append(_linear(width, heads, bias=False, at=2 * tokens))  # For relative positions.
        out = _linear(heads, width, bias=False, at=tokens)
        layers.append(Layer((*out.shapes, *_norm(width)), out.macs))
        layers.append(_linear(width, inner, at=tokens))
        back = _linear(inner, width, at=tokens)
        layers.append(Layer((*back.shapes, *_norm(width)), back.macs))
    softmax: tuple[Shape, ...] = ((3, width), (3,), (width, width))
    biases: tuple[Shape, ...] = tuple((words,) for words, _ in clusters)
    head = (20_003 + width) * width * tokens
    return [*layers, Layer((*softmax, *biases), head)]


MODELS: dict[str, Callable[[], list[Layer]]] = {
    "resnet50": lambda: _resnet(3, 4, 6, 3),
    "resnet101": lambda: _resnet(3, 4, 23, 3),
    "vgg16": _vgg16,
    "inception_v3": _inception_v3,
    "gpt2": lambda: _gpt(12, 768, 1024),  # Small.
    "gpt3_xl": lambda: _gpt(24, 2048, 2048),
    "bert_large": _bert_large,
    "llama2_7b": lambda: _llama(32000, 11008, 4096, 4096),
    "llama3_8b": lambda: _llama(128256, 14336, 1024, 8192),
    "transformer_xl": _transformer_xl,
}


def gradients(name: str) -> list[int]:
    """Returns the elements of each gradient of a model of `MODELS`, last layer first."""
    counts = [count for layer in MODELS[name]() for count in layer.counts]
    return counts[::-1]
