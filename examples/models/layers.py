"""What several image models are made of."""

from __future__ import annotations

import torch
from torch import nn


class ConvNorm(nn.Sequential):
    """A convolution without bias, batch normalization and, unless told otherwise, ReLU."""

    def __init__(self, inputs, outputs, kernel, stride=1, padding=0, eps=1e-5, relu=True):
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(outputs, eps=eps),
            *([nn.ReLU(inplace=True)] if relu else []),
        )


class ImageModel(nn.Module):
    """A classifier of images with a side of `side` pixels."""

    side = 224
    unit = "img"

    def inputs(self, batch_size):
        """Returns a batch of random images and of random labels."""
        images = torch.randn(batch_size, 3, self.side, self.side)
        return images, torch.randint(1000, (batch_size,))

    def loss(self, images, labels):
        return nn.functional.cross_entropy(self(images), labels)
