"""Runs scripts of Horovod's examples, unmodified, on data that is generated here.

MNIST and ImageNet are downloads; files of the same format with random pictures take their place.
So what is shown is that the scripts run to their end on two ranks, not what they learn.
"""

from __future__ import annotations

import importlib.util
import random
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# What each script imports beside torch, and its arguments.
SCRIPTS = {
    "pytorch_synthetic_benchmark.py": (
        ("torchvision",),
        "--no-cuda --model resnet18 --batch-size 2 --num-warmup-batches 1 "
        "--num-batches-per-iter 1 --num-iters 2",
    ),
    "pytorch_mnist.py": (
        ("torchvision", "filelock", "packaging"),
        "--no-cuda --epochs 1 --batch-size 32 --data-dir {folder}/mnist",
    ),
    "pytorch_imagenet_resnet50.py": (
        ("torchvision", "tqdm", "tensorboard"),
        "--no-cuda --epochs 1 --batch-size 2 --val-batch-size 2 --train-dir {folder}/pictures "
        "--val-dir {folder}/pictures --log-dir {folder}/logs "
        "--checkpoint-format {folder}/checkpoint-{{epoch}}.pth.tar",
    ),
    "pytorch_lightning_mnist.py": (
        ("torchvision", "filelock", "pytorch_lightning"),
        "--no-cuda --epochs 1 --batch-size 32 --data-dir {folder}/mnist",
    ),
}
BRIEFLY = (
    "--no-cuda --model MobileNetV2 --batch-size 1 --num-warmup-batches 1 --num-batches-per-iter 1 "
    "--num-iters 2"
)
# Those of TensorFlow, below examples/: variables, and arguments. They are of TensorFlow 1, or call
# what is no function in Keras 3.
TENSORFLOW_SCRIPTS = {
    "tensorflow/tensorflow_synthetic_benchmark.py": ("LIGHTCC_TENSORFLOW1=1", BRIEFLY),
    "tensorflow2/tensorflow2_synthetic_benchmark.py": ("TF_USE_LEGACY_KERAS=1", BRIEFLY),
    "tensorflow2/tensorflow2_mnist.py": ("TF_USE_LEGACY_KERAS=1", ""),
}
# Runs a script with random pictures for MNIST, which it loads, and no more than 20 steps.
WITH_PICTURES = """
import runpy, sys
import numpy as np, tensorflow as tf
draw = np.random.default_rng(1)
def part(count):
    pictures = draw.integers(0, 256, (count, 28, 28)).astype(np.uint8)
    return pictures, draw.integers(0, 10, count).astype(np.uint8)
take = tf.data.Dataset.take
tf.data.Dataset.take = lambda self, count: take(self, min(count, 20))
tf.keras.datasets.mnist.load_data = lambda path="": (part(512), part(64))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
MNIST_PICTURES = {"train": 256, "t10k": 64}


def run_example(
    sources: Path, script: str, run: Callable[[list[str], Path], None]
) -> tuple[str, str]:
    """Runs one script on two ranks and returns status and reason.

    Args:
        sources: A checkout of Horovod.
        script: A key of `SCRIPTS`.
        run: Runs a command in a folder, with Horovod's names.
    """
    needs, arguments = SCRIPTS[script]
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        return "skipped", f"needs {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_mnist(folder / "mnist" / "MNIST" / "raw")
        write_pictures(folder / "pictures")
        launcher = [sys.executable, "-m", "lightcc.runner", "--horovod", "-np", "2", "sh", "-c"]
        path = str(sources / "examples" / "pytorch" / script)
        program = [sys.executable, path, *arguments.format(folder=folder).split()]
        # A rank that has come to its end says so, with a file of its own.
        run([*launcher, f'"$@" && touch {folder}/done.$LIGHT_RANK', "sh", *program], folder)
        ends = len(list(folder.glob("done.*")))
        return ("passed", "") if ends == 2 else ("failed", f"{ends} of 2 ranks came to the end")


def run_tensorflow_example(
    sources: Path, script: str, python: str, run: Callable[[list[str], Path], None]
) -> tuple[str, str]:
    """Runs a script of `TENSORFLOW_SCRIPTS` on two ranks and returns status and reason.

    Args:
        sources: A checkout of Horovod.
        script: A key of `TENSORFLOW_SCRIPTS`.
        python: The interpreter that has TensorFlow and lightcc.
        run: Runs a command in a folder, with Horovod's names.
    """
    variables, arguments = TENSORFLOW_SCRIPTS[script]
    with tempfile.TemporaryDirectory() as folder:
        program = ["-c", WITH_PICTURES] if "mnist" in script else []
        program += [str(sources / "examples" / script), *arguments.split()]
        launcher = [python, "-m", "lightcc.runner", "--horovod", "-np", "2", "env", variables]
        mark = f'"$@" && touch {folder}/done.$LIGHT_RANK'
        run([*launcher, "sh", "-c", mark, "sh", python, *program], Path(folder))
        ends = len(list(Path(folder).glob("done.*")))
    return ("passed", "") if ends == 2 else ("failed", f"{ends} of 2 ranks came to the end")


def write_mnist(folder: Path) -> None:
    """Writes MNIST's four files, with random pictures and labels."""
    folder.mkdir(parents=True)
    draw = random.Random(1)  # noqa: S311 - pictures, not secrets.
    for part, count in MNIST_PICTURES.items():
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        pictures = folder / f"{part}-images-idx3-ubyte"
        pictures.write_bytes(header + draw.randbytes(count * 28 * 28))
        labels = bytes(draw.randrange(10) for _ in range(count))
        header = struct.pack(">II", 0x801, count)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + labels)


def write_pictures(folder: Path) -> None:
    """Writes two classes of four small pictures each, one folder a class."""
    draw = random.Random(2)  # noqa: S311 - pictures, not secrets.
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            data = b"P6 64 64 255\n" + draw.randbytes(3 * 64 * 64)
            (folder / name / f"{number}.ppm").write_bytes(data)
