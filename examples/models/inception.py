"""Inception v3 (Szegedy et al. 2015) with its auxiliary classifier, as it is trained.

A block is a list of branches whose outputs are joined; a branch is a list of layers. The batch must
have two images or more: at the auxiliary classifier, an image is a single pixel.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from models.layers import ConvNorm, ImageModel

conv = partial(ConvNorm, eps=1e-3)


def row(inputs, outputs):
    return conv(inputs, outputs, (1, 7), padding=(0, 3))


def column(inputs, outputs):
    return conv(inputs, outputs, (7, 1), padding=(3, 0))


class Branches(nn.Module):
    """Joins the outputs of its branches along the channels."""

    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*branch) for branch in branches)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


def pool(inputs, outputs):
    return [nn.AvgPool2d(3, 1, 1), conv(inputs, outputs, 1)]


def mixed_5(inputs, pooled):
    return Branches(
        [conv(inputs, 64, 1)],
        [conv(inputs, 48, 1), conv(48, 64, 5, padding=2)],
        [conv(inputs, 64, 1), conv(64, 96, 3, padding=1), conv(96, 96, 3, padding=1)],
        pool(inputs, pooled),
    )


def mixed_6a():
    return Branches(
        [conv(288, 384, 3, 2)],
        [conv(288, 64, 1), conv(64, 96, 3, padding=1), conv(96, 96, 3, 2)],
        [nn.MaxPool2d(3, 2)],
    )


def mixed_6(width):
    return Branches(
        [conv(768, 192, 1)],
        [conv(768, width, 1), row(width, width), column(width, 192)],
        [
            conv(768, width, 1),
            column(width, width),
            row(width, width),
            column(width, width),
            row(width, 192),
        ],
        pool(768, 192),
    )


def mixed_7a():
    return Branches(
        [conv(768, 192, 1), conv(192, 320, 3, 2)],
        [conv(768, 192, 1), row(192, 192), column(192, 192), conv(192, 192, 3, 2)],
        [nn.MaxPool2d(3, 2)],
    )


def mixed_7(inputs):
    def fork():
        return Branches(
            [conv(384, 384, (1, 3), padding=(0, 1))], [conv(384, 384, (3, 1), padding=(1, 0))]
        )

    return Branches(
        [conv(inputs, 320, 1)],
        [conv(inputs, 384, 1), fork()],
        [conv(inputs, 448, 1), conv(448, 384, 3, padding=1), fork()],
        pool(inputs, 192),
    )


class InceptionV3(ImageModel):
    side = 299

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            conv(3, 32, 3, 2),
            conv(32, 32, 3),
            conv(32, 64, 3, padding=1),
            nn.MaxPool2d(3, 2),
            conv(64, 80, 1),
            conv(80, 192, 3),
            nn.MaxPool2d(3, 2),
            *(mixed_5(*channels) for channels in ((192, 32), (256, 64), (288, 64))),
            mixed_6a(),
            *(mixed_6(width) for width in (128, 160, 160, 192)),
        )
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, 3),
            conv(768, 128, 1),
            conv(128, 768, 5),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(768, 1000),
        )
        self.head = nn.Sequential(
            mixed_7a(),
            mixed_7(1280),
            mixed_7(2048),
            nn.AdaptiveAvgPool2d(1),
            nn.Dropout(),
            nn.Flatten(),
            nn.Linear(2048, 1000),
        )

    def forward(self, images):
        features = self.stem(images)
        return self.head(features), self.auxiliary(features)

    def loss(self, images, labels):
        logits, auxiliary = self(images)
        entropy = nn.functional.cross_entropy
        return entropy(logits, labels) + 0.4 * entropy(auxiliary, labels)
