"""Measures all-reduces of gradients in tf.function: lightcc's, and those of TensorFlow's strategy.

Usage: tensorflow_gradients.py [--models small,resnet50,vgg16] [--ways WAY,...] [--hosts 2]
           [--link 1g] [--ranks 2] [--rounds 5]

A way is how a step reduces its gradients:

    grouped      one operation of lightcc's for all
    each         one operation for each gradient
    py_function  the same, where lightcc's kernels cannot be used
    topk         `grouped`, and 1% of large gradients travels
    strategy     tf.distribute.MultiWorkerMirroredStrategy, its ring over gRPC

Ranks of lightcc and of the strategy live side by side and take turns, so that each round measures
all ways on the same machine. Results are looked at before and after: sums must be exact, and with
top-k all ranks must hold the same bits.

Not measured: the time of a backward pass, and GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from math import prod
from typing import TYPE_CHECKING, Any

from lightcc.bench.models import gradients
from ranks import add_rank_arguments, print_head, print_row, serve, slowest, starter, times_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc.bench.cluster import Cluster
    from ranks import Ranks, Starter

STRATEGY = "strategy"
OF_LIGHTCC = ("grouped", "each", "py_function", "topk")
TOPK_RATIO = 0.01
PATTERN = 7  # Gradients differ, so that one cannot pass for another.


def shapes_of(model: str) -> list[tuple[int, ...]]:
    """Returns the shapes of a step's gradients."""
    if model == "small":
        return [(10,)] * 161
    return [(count,) for count in gradients(model)]


def bytes_of(model: str) -> int:
    """Returns the bytes of a step's gradients, which are float32."""
    return 4 * sum(prod(shape) for shape in shapes_of(model))


# -- A rank ---------------------------------------------------------------------------------------


class Lightcc:
    """The ways of lightcc on this rank."""

    def __init__(self) -> None:
        """Joins the other ranks."""
        import lightcc.tensorflow as hvd

        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        self._hvd = hvd

    def function(self, way: str) -> Callable[[list[Any]], list[Any]]:
        """Returns what reduces gradients, as a graph."""
        import tensorflow as tf

        from lightcc.tensorflow import _python_ops

        hvd = self._hvd
        topk = hvd.Compression.topk(ratio=TOPK_RATIO)

        def step(tensors: list[Any]) -> list[Any]:
            if way == "grouped":
                return list(hvd.grouped_allreduce(tensors, op=hvd.Sum))
            if way == "topk":
                return list(hvd.grouped_allreduce(tensors, op=hvd.Sum, compression=topk))
            if way == "each":
                return [hvd.allreduce(it, op=hvd.Sum) for it in tensors]
            return [_python_ops.lightcc_allreduce(it) for it in tensors]

        graph: Callable[[list[Any]], list[Any]] = tf.function(step)
        return graph

    def same_everywhere(self, digest: str) -> bool:
        """Returns whether all ranks have the same text."""
        return len(set(self._hvd.allgather_object(digest))) == 1


class Strategy:
    """MultiWorkerMirroredStrategy on this rank, whose place TF_CONFIG tells."""

    def __init__(self) -> None:
        """Joins the other ranks."""
        import tensorflow as tf

        ring = tf.distribute.experimental.CommunicationImplementation.RING
        self._options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=self._options
        )
        self.size = self._strategy.num_replicas_in_sync
        self.rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]

    def function(self, way: str) -> Callable[[list[Any]], list[Any]]:
        """Returns what reduces gradients, as a graph."""
        del way
        import tensorflow as tf

        def reduce(tensors: list[Any]) -> list[Any]:
            context = tf.distribute.get_replica_context()
            total = tf.distribute.ReduceOp.SUM
            here = [tf.identity(it) for it in tensors]  # Arguments have no device, which it needs.
            return list(context.all_reduce(total, here, self._options))

        def step(tensors: list[Any]) -> list[Any]:
            return list(self._strategy.run(reduce, args=(tensors,)))

        graph: Callable[[list[Any]], list[Any]] = tf.function(step)
        return graph

    def same_everywhere(self, digest: str) -> bool:
        """Is not asked: sums are exact."""
        del digest
        return True


class Rank:
    """Answers requests: one line of JSON in, one out."""

    def __init__(self, backend: Lightcc | Strategy) -> None:
        """Has no model yet."""
        self._backend = backend
        self._model = ""
        self._tensors: list[Any] = []
        self._functions: dict[str, Callable[[list[Any]], list[Any]]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Runs steps of a way, and returns their seconds."""
        if request["model"] != self._model:
            self._take_model(request["model"])
        way = request["way"]
        if way not in self._functions:
            self._functions[way] = self._backend.function(way)
        function, seconds = self._functions[way], []
        results = function(self._tensors)
        self._check(way, results)
        for _ in range(request["steps"]):
            begin = time.perf_counter()
            results = function(self._tensors)
            results[-1].numpy()
            for result in results:
                memoryview(result)  # There: a step may end before its tensors are.
            seconds.append(time.perf_counter() - begin)
        self._check(way, results)
        return {"seconds": seconds}

    def _take_model(self, model: str) -> None:
        import tensorflow as tf

        self._model, self._functions = model, {}
        self._tensors = [
            tf.fill(shape, float((self._backend.rank + 1) * (i % PATTERN + 1)))
            for i, shape in enumerate(shapes_of(model))
        ]

    def _check(self, way: str, results: list[Any]) -> None:
        import hashlib

        import tensorflow as tf

        total = self._backend.size * (self._backend.size + 1) // 2
        if way == "topk":
            digest = hashlib.sha256()
            for result in results:
                digest.update(memoryview(result).cast("B"))
            if not self._backend.same_everywhere(digest.hexdigest()):
                msg = f"{self._model}: top-k gave ranks different results"
                raise RuntimeError(msg)
            return
        for i, result in enumerate(results):
            low, high = float(tf.reduce_min(result)), float(tf.reduce_max(result))
            if low != high or low != total * (i % PATTERN + 1):
                msg = f"{self._model}: gradient {i} by {way}: from {low} to {high}"
                raise RuntimeError(msg)


# -- All ranks ------------------------------------------------------------------------------------


def limit_s(model: str, cluster: Cluster | None) -> float:
    """Returns the least seconds of a dense step: of the link, or of copying the gradients once."""
    if cluster is not None:
        # Each host sends half of the sums and gets the other half, after half of the addends.
        return (
            bytes_of(model) * 8 * 2 * (len(cluster.names) - 1) / len(cluster.names) / cluster.rate
        )
    import numpy as np

    source = np.ones(bytes_of(model) // 4, np.float32)
    target = np.empty_like(source)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - begin)
    return min(times)


def both_kinds(start: Starter, ways: Sequence[str]) -> dict[str, Ranks]:
    """Starts ranks of lightcc and of the strategy, if they have a way; returns them by way."""
    kinds: dict[str, Ranks] = {}
    if STRATEGY in ways:
        kinds[STRATEGY] = start.start(STRATEGY, start.of_tensorflow())
    if set(ways) - {STRATEGY}:
        kinds["lightcc"] = start.start("lightcc", start.of_lightcc())
    return {way: kinds[STRATEGY if way == STRATEGY else "lightcc"] for way in ways}


def main() -> int:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_rank_arguments(parser, hosts=1, ranks=2, rounds=5)
    parser.add_argument("--models", default="small,resnet50,vgg16")
    parser.add_argument("--ways", default="grouped,each,py_function,strategy")
    parser.add_argument("--steps", type=int, default=0, help="of a round; 0: by the model's size")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(Rank(Strategy() if arguments.serve == STRATEGY else Lightcc()).answer)
        return 0
    ways = arguments.ways.split(",")
    for way in ways:
        if way != STRATEGY and way not in OF_LIGHTCC:
            parser.error(f"--ways: {way} is none of {', '.join([*OF_LIGHTCC, STRATEGY])}")
    with starter(__file__, arguments) as start:
        ranks = both_kinds(start, ways)
        print_head("gradients, ms: median (least)", "limit", *ways)
        for model in arguments.models.split(","):
            steps = arguments.steps or (5 if model == "small" else 2)
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(arguments.rounds):
                for way in ways:
                    request = {"model": model, "way": way, "steps": steps}
                    times[way] += slowest(ranks[way].ask(request))
            limit = limit_s(model, start.cluster) * 1e3
            name = f"{model}: {bytes_of(model) / 1e6:.3g} MB in {len(shapes_of(model))}"
            print_row(name, f"{limit:.3g}", *(times_text(times[way]) for way in ways))
    return 0


if __name__ == "__main__":
    sys.exit(main())
