"""The models of pytorch_synthetic_benchmark.py, written out so that torch is all they need.

Images have 3 channels and 1000 classes; parameters are as many and of the same shapes as in the
papers (and in torchvision). Weights are random.
"""

from __future__ import annotations

from models.inception import InceptionV3
from models.resnet import ResNet
from models.transformer_xl import TransformerXL
from models.vgg import VGG16

MODELS = {
    "resnet50": lambda: ResNet([3, 4, 6, 3]),
    "resnet101": lambda: ResNet([3, 4, 23, 3]),
    "vgg16": VGG16,
    "inception_v3": InceptionV3,
    "transformer_xl": TransformerXL,
}
