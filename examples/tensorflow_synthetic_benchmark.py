"""Measures how fast random pictures train a known model in a graph of TensorFlow 1, data-parallel.

    mpirun -np 4 python examples/tensorflow_synthetic_benchmark.py --model=VGG16 --batch-size=128

Flags and output are those of Horovod's script of this name: a graph, a Session, an optimizer of
tf.compat.v1. `--model` is a class of keras.applications; its weights are random, so nothing is
downloaded. The batch is one rank's. Each rank computes on a GPU where there is one.
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
    add("--model", default="ResNet50", help="model to benchmark")
    add("--batch-size", type=int, default=32, help="input batch size")
    add("--image-size", type=int, default=224, help="pixels of a picture's side")
    add("--num-warmup-batches", type=int, default=10, help="warm-up batches, not measured")
    add("--num-batches-per-iter", type=int, default=10, help="batches of one measurement")
    add("--num-iters", type=int, default=10, help="number of measurements")
    add("--eager", action="store_true", help="run eagerly, in no graph")
    add("--no-cuda", action="store_true", help="compute on the CPU, where there is a GPU, too")
    add("--use-adasum", action="store_true", help="use the adasum algorithm to do reduction")
    args = parser.parse_args()
    if not hasattr(tf.keras.applications, args.model):
        parser.error(f"--model: keras.applications has no {args.model}")
    return args


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


class Training:
    """A model, an optimizer, and a batch that stays the same."""

    def __init__(self, args):
        side = args.image_size
        self.model = getattr(tf.keras.applications, args.model)(
            weights=None, input_shape=(side, side, 3)
        )
        # Without Adasum the batch grows with the number of ranks, and the rate with it.
        rate = 0.01 * (1 if args.use_adasum else hvd.size())
        self.optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(rate),
            compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
            op=hvd.Adasum if args.use_adasum else hvd.Average,
        )
        # Keras 3 has variables of its own, which hold those that this optimizer knows.
        self.weights = [
            it if isinstance(it, tf.Variable) else it.value for it in self.model.trainable_variables
        ]
        self.images = tf.random.uniform([args.batch_size, side, side, 3])
        self.labels = tf.random.uniform([args.batch_size], maxval=999, dtype=tf.int64)

    def loss(self):
        probabilities = self.model(self.images, training=True)
        return tf.reduce_mean(
            tf.keras.losses.sparse_categorical_crossentropy(self.labels, probabilities)
        )


def measure(args, train_one_batch, kind):
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


def main():
    args = parse_arguments()
    hvd.init()
    kind = choose_gpu(args.no_cuda)
    log(f"Model: {args.model}")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of {kind}s: {hvd.size()}")
    if args.eager:
        training = Training(args)
        hvd.broadcast_variables(training.model.variables, root_rank=0)
        minimize = training.optimizer.minimize
        measure(args, lambda: minimize(training.loss, var_list=training.weights), kind)
    else:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            training = Training(args)
            train = training.optimizer.minimize(training.loss(), var_list=training.weights)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(hvd.broadcast_global_variables(0))
            measure(args, lambda: session.run(train), kind)
    hvd.shutdown()


if __name__ == "__main__":
    main()
