"""Residual networks of bottleneck blocks (He et al. 2015).

Where a stage halves the image, the 3x3 convolution does it, as is usual today.
"""

from __future__ import annotations

from torch import nn

from models.layers import ConvNorm, ImageModel


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride, project):
        super().__init__()
        self.branch = nn.Sequential(
            ConvNorm(inputs, width, 1),
            ConvNorm(width, width, 3, stride, 1),
            ConvNorm(width, 4 * width, 1, relu=False),
        )
        self.shortcut = (
            ConvNorm(inputs, 4 * width, 1, stride, relu=False) if project else nn.Identity()
        )

    def forward(self, x):
        return nn.functional.relu(self.branch(x) + self.shortcut(x))


class ResNet(ImageModel):
    """`blocks`: how many blocks each stage has; [3, 4, 6, 3] is ResNet-50."""

    def __init__(self, blocks):
        super().__init__()
        layers = [ConvNorm(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Bottleneck(channels, width, stride, project=block == 0))
                channels = 4 * width
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, 1000)

    def forward(self, images):
        return self.classifier(self.features(images))
