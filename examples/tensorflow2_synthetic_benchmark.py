"""Measures how fast random pictures train a known model of Keras in tf.function, data-parallel.

    lightccrun -np 2 python examples/tensorflow2_synthetic_benchmark.py --model VGG16 --batch-size 8

Flags and output are those of Horovod's script of this name. `--model` is a class of
keras.applications; its weights are random, so nothing is downloaded. The batch is one rank's.
Each rank computes on a GPU where there is one.
"""

from __future__ import annotations

import argparse
import timeit

import numpy as np
import tensorflow as tf

import lightcc.tensorflow as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="TensorFlow Synthetic Benchmark",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--fp16-allreduce", action="store_true", help="use fp16 compression during allreduce")
    add("--topk", type=float, default=0.0, help="send this part of large gradients, such as 0.01")
    add("--model", default="ResNet50", help="model to benchmark")
    add("--batch-size", type=int, default=32, help="input batch size")
    add("--image-size", type=int, default=224, help="pixels of a picture's side")
    add("--num-warmup-batches", type=int, default=10, help="warm-up batches, not measured")
    add("--num-batches-per-iter", type=int, default=10, help="batches of one measurement")
    add("--num-iters", type=int, default=10, help="number of measurements")
    add("--no-cuda", action="store_true", help="compute on the CPU, where there is a GPU, too")
    args = parser.parse_args()
    if not hasattr(tf.keras.applications, args.model):
        parser.error(f"--model: keras.applications has no {args.model}")
    return args


def compression_of(args):
    if args.topk:
        return hvd.Compression.topk(ratio=args.topk)
    return hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none


def choose_gpu(no_cuda):
    """Lets TensorFlow see the GPU of this rank's number on its host alone; returns "GPU" or "CPU".

    Ranks share GPUs where there are fewer, so none takes all of a GPU's memory at once.
    """
    gpus = [] if no_cuda else tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    mine = [gpus[hvd.local_rank() % len(gpus)]] if gpus else []
    tf.config.set_visible_devices(mine, "GPU")
    return "GPU" if mine else "CPU"


def log(text):
    if hvd.rank() == 0:
        print(text, flush=True)


def main():
    args = parse_arguments()
    hvd.init()
    kind = choose_gpu(args.no_cuda)
    side = args.image_size
    model = getattr(tf.keras.applications, args.model)(weights=None, input_shape=(side, side, 3))
    optimizer = tf.keras.optimizers.SGD(0.01 * hvd.size())
    images = tf.random.uniform([args.batch_size, side, side, 3])
    labels = tf.random.uniform([args.batch_size], maxval=999, dtype=tf.int64)
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function
    def train_one_batch():
        with tf.GradientTape() as tape:
            probabilities = model(images, training=True)
            loss = tf.reduce_mean(
                tf.keras.losses.sparse_categorical_crossentropy(labels, probabilities)
            )
        # The gradients of all ranks, averaged.
        tape = hvd.DistributedGradientTape(tape, compression=compression_of(args))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    log(f"Model: {args.model}")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of {kind}s: {hvd.size()}")
    log("Running warmup...")
    timeit.timeit(train_one_batch, number=args.num_warmup_batches)

    log("Running benchmark...")
    speeds = []
    for i in range(args.num_iters):
        seconds = timeit.timeit(train_one_batch, number=args.num_batches_per_iter)
        speeds.append(args.batch_size * args.num_batches_per_iter / seconds)
        log(f"Iter #{i}: {speeds[-1]:.1f} img/sec per {kind}")

    mean, deviation, ranks = np.mean(speeds), 1.96 * np.std(speeds), hvd.size()
    log(f"Img/sec per {kind}: {mean:.1f} +-{deviation:.1f}")
    log(f"Total img/sec on {ranks} {kind}(s): {ranks * mean:.1f} +-{ranks * deviation:.1f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
