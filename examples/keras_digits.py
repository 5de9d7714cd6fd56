"""Trains a network on handwritten digits with Keras' fit(), data-parallel.

    lightccrun -np 2 python examples/keras_digits.py [--topk 0.01] [--epochs 12] [--accuracy 0.95]

It runs on any backend of Keras: KERAS_BACKEND=torch, for example. With TensorFlow or torch, each
rank trains on a GPU where there is one; with `--no-cuda`, on the CPU. The data are the 1797 images
that scikit-learn ships (UCI's digits, 8 x 8 pixels); 360 of them are kept for the test. At the end
all ranks prove that they hold the same weights, bit for bit. The exit code is 0 if the accuracy was
reached and the weights agree.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time

if "--no-cuda" in sys.argv:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # Before the backend looks.

import keras
import numpy as np
from sklearn.datasets import load_digits

import lightcc
import lightcc.keras as hvd

BATCH = 32  # Images of one rank.


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--accuracy", type=float, default=0.95, help="what the test must show")
    parser.add_argument("--topk", type=float, help="the share of a gradient that is sent")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU")
    return parser.parse_args()


def choose_gpu():
    """Has the backend use the GPU of this rank's number on its host. Ranks may share GPUs."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        for gpu in gpus:  # Ranks that share one do not take all of its memory at once.
            tf.config.experimental.set_memory_growth(gpu, True)
        if gpus:
            tf.config.set_visible_devices(gpus[lightcc.local_rank() % len(gpus)], "GPU")
    elif keras.backend.backend() == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(lightcc.local_rank() % torch.cuda.device_count())


def load():
    """Returns (images, labels) for training, and for the test; the same on all ranks."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = (digits.images[order] / 16).astype(np.float32)[..., None], digits.target[order]
    return (images[360:], labels[360:]), (images[:360], labels[:360])


def make_model():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dense(10),
        ]
    )


def train(epochs, compression=hvd.Compression.none, name="dense", rate=0.02):
    """Returns the accuracy, the seconds of a step, and the bytes that a rank sent in a step."""
    (images, labels), test = load()
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
    steps = 1437 // hvd.size() // BATCH  # Of an epoch; the same on all ranks.
    keras.utils.set_random_seed(hvd.rank())  # Other weights on each rank, until the callback.
    optimizer = keras.optimizers.SGD(rate * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, name, compression=compression)
    model = make_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate * hvd.size(), warmup_epochs=2),
    ]
    images, labels = images[: steps * BATCH], labels[: steps * BATCH]
    sent, begin = lightcc.stats()["network_bytes_sent"], time.perf_counter()
    model.fit(images, labels, BATCH, epochs, verbose=0, callbacks=callbacks)
    seconds = (time.perf_counter() - begin) / (epochs * steps)
    sent = (lightcc.stats()["network_bytes_sent"] - sent) / (epochs * steps)
    state = b"".join(np.array(weight).tobytes() for weight in model.get_weights())
    if len(set(lightcc.allgather_object(hashlib.sha256(state).hexdigest()))) != 1:
        sys.exit("weights differ between ranks")
    return model.evaluate(*test, verbose=0)[1], seconds, float(hvd.allreduce(np.float64(sent)))


def main():
    args = parse_arguments()
    hvd.init()
    choose_gpu()
    way = "dense" if args.topk is None else f"top-k {args.topk:.1%}"
    compression = hvd.Compression.none if args.topk is None else hvd.Compression.topk(args.topk)
    accuracy, seconds, sent = train(args.epochs, compression, way)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks, {way}: accuracy {accuracy:.3f} on 360 images not seen before")
        print(f"a step took {1e3 * seconds:.1f} ms, and a rank sent {sent / 1e3:.1f} kB to others")
        print("all ranks hold the same weights, bit for bit")
    return 0 if accuracy >= args.accuracy else 1


if __name__ == "__main__":
    sys.exit(main())
