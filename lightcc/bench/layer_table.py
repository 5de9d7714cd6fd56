"""Per model, the layers' gradients and times, and published figures.

Gradient sizes and multiply-adds follow from the architectures (`models`), and one GPU's published
step is apportioned by multiply-adds, a third to the forward pass, two thirds to the backward pass
(which multiplies twice). A file of JSON can be given in its place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightcc.bench.cluster import parse_rate
from lightcc.bench.models import MODELS

if TYPE_CHECKING:
    from pathlib import Path

GRADIENT_BYTES = 4
_FORWARD_SHARE = 1 / 3

_TACO = "Tencent TACO-Training documentation (qcloud-documents, AI training acceleration engine)"
_NVIDIA = "NVIDIA DeepLearningExamples, PyTorch Transformer-XL large, DGX A100, TF32, batch 8 x 384"
_ASSUMED = "assumed: 40% of an A100's 312 Tflop/s in bfloat16, batch 8 x "
_BF16_FLOPS = 0.4 * 312e12
_RESNET50_RATE, _RESNET50_BATCH = 777.0, 256


class TableError(ValueError):
    """A file that is no table of layers; the text says why."""


@dataclass(frozen=True)
class Layer:
    """A layer of an emulated model."""

    backward_s: float
    counts: list[int]  # Elements of each of its gradients.


@dataclass(frozen=True)
class Training:
    """A model's training step on one GPU, and what is published about 16 of them."""

    name: str
    batch: int  # Samples of a GPU's step.
    per_s: float  # Samples that one GPU alone does in a second.
    gpu: str
    link: str  # The rate of each host's link, as published.
    source: str
    gpus: int
    published: dict[str, float]  # Samples per second of all GPUs: horovod_tcp, lightcc_harp.
    layers: list[Layer]  # In the order of the forward pass.

    @property
    def step_s(self) -> float:
        """One GPU's step without communication."""
        return self.batch / self.per_s

    @property
    def forward_s(self) -> float:
        """The part before the first gradient."""
        return self.step_s - sum(layer.backward_s for layer in self.layers)

    @property
    def gradient_bytes(self) -> int:
        """All gradients of one rank."""
        return GRADIENT_BYTES * sum(sum(layer.counts) for layer in self.layers)

    def published_efficiency(self, what: str) -> float | None:
        """The published throughput over that many times one GPU's; None if there is none."""
        rate = self.published.get(what)
        return None if rate is None else rate / (self.gpus * self.per_s)

    def implied_tcp_rate(self) -> tuple[float, float] | None:
        """The least and the most that TCP can have carried in Horovod's published run, in bit/s.

        A ring over all GPUs sends 2 (N-1)/N of the gradients out of each host. Least: it was busy
        from the first gradient to the end of the step. Most: it began when the step's computing
        was over.
        """
        rate = self.published.get("horovod_tcp")
        if rate is None:
            return None
        bits = 8 * 2 * (self.gpus - 1) / self.gpus * self.gradient_bytes
        step = self.gpus * self.batch / rate
        return bits / (step - self.forward_s), bits / (step - self.step_s)


def read_table(path: Path | None = None) -> dict[str, Training]:
    """Returns the trainings of a file, by model; without one, those of `MODELS`.

    Raises:
        TableError: There is no such file, or it is not of this form.
    """
    try:
        models = _own() if path is None else json.loads(path.read_text(encoding="utf-8"))["models"]
        return {name: _training(name, fields) for name, fields in models.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{path} is no table of layers: {type(error).__name__}: {error}"
        raise TableError(msg) from error


def _training(name: str, fields: dict[str, Any]) -> Training:
    layers = [
        Layer(float(layer["backward_us"]) * 1e-6, [int(n) for n in layer["gradients"]])
        for layer in fields["layers"]
    ]
    parse_rate(fields["link"])
    training = Training(
        name=name,
        batch=int(fields["batch"]),
        per_s=float(fields["per_s"]),
        gpu=str(fields["gpu"]),
        link=str(fields["link"]),
        source=str(fields["source"]),
        gpus=int(fields["gpus"]),
        published={what: float(rate) for what, rate in fields["published"].items()},
        layers=layers,
    )
    if min((n for layer in layers for n in layer.counts), default=0) < 1:
        msg = f"{name} has a layer without elements"
        raise ValueError(msg)
    if min(layer.backward_s for layer in layers) < 0 or training.forward_s < 0:
        msg = f"{name}'s layers take longer than its step, or less than no time"
        raise ValueError(msg)
    return training


def _published() -> dict[str, dict[str, Any]]:
    """One GPU's published step, and the published rates of 16 of them, by model."""

    def fields(
        batch: int, per_s: float, gpu: str, source: str, **published: float
    ) -> dict[str, Any]:
        link = {"V100": "25g", "A100": "50g"}[gpu]
        return {
            "batch": batch,
            "per_s": per_s,
            "gpu": gpu,
            "link": link,
            "source": source,
            "gpus": 16,
            "published": published,
        }

    def like_resnet50(name: str) -> dict[str, Any]:
        # Networks of the same kind: as many multiply-adds per second as the published ResNet-50.
        rate = round(_RESNET50_RATE * _macs("resnet50") / _macs(name), 1)
        source = f"derived from ResNet-50's by multiply-adds: {_TACO}"
        return fields(_RESNET50_BATCH, rate, "A100", source)

    def assumed(name: str, tokens: int) -> dict[str, Any]:
        rate = round(_BF16_FLOPS / 6 / _macs(name), 3)
        return fields(8, rate, "A100", f"{_ASSUMED}{tokens}")

    resnet50 = {"horovod_tcp": 5504, "lightcc_harp": 11173}
    return {
        "inception_v3": like_resnet50("inception_v3"),
        "resnet50": fields(_RESNET50_BATCH, _RESNET50_RATE, "A100", _TACO, **resnet50),
        "resnet101": like_resnet50("resnet101"),
        "vgg16": fields(128, 251, "V100", _TACO, horovod_tcp=847, lightcc_harp=3562),
        "transformer_xl": fields(8 * 384, 14497, "A100", _NVIDIA),
        "bert_large": assumed("bert_large", 512),
        "gpt2": assumed("gpt2", 1024),
        "gpt3_xl": assumed("gpt3_xl", 2048),
        "llama2_7b": assumed("llama2_7b", 4096),
        "llama3_8b": assumed("llama3_8b", 8192),
    }


def _macs(name: str) -> int:
    return sum(layer.macs for layer in MODELS[name]())


def _own() -> dict[str, Any]:
    """Returns the models' fields, as a file has them."""
    models = {}
    for name, fields in _published().items():
        backward_us = (1 - _FORWARD_SHARE) * fields["batch"] / fields["per_s"] * 1e6
        total = _macs(name)
        layers = [
            {"backward_us": round(backward_us * layer.macs / total, 2), "gradients": layer.counts}
            for layer in MODELS[name]()
        ]
        models[name] = {**fields, "layers": layers}
    return models
