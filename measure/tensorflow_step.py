"""Measures how much of the all-reduce of a TensorFlow training step its backward pass hides.

Usage: tensorflow_step.py [--layers 8] [--width 1024] [--batch 1024] [--link 1g] [--rounds 5]

Two ranks are on two hosts. A step is a tf.function: a perceptron of `layers` square layers runs
forward and backward, its gradients are averaged, and SGD moves its variables. Ways take turns:

    compute   the step without an all-reduce
    reduce    the all-reduce alone, of tensors of the gradients' shapes
    after     `compute`, and one grouped all-reduce once all gradients are there
    during    `DistributedGradientTape`: each gradient travels as soon as it is there
    strategy  tf.distribute.MultiWorkerMirroredStrategy, its ring over gRPC

Hidden is the part of `reduce` that `after` takes and `during` does not. The backward pass is two
thirds of `compute`, and the gradient that it makes last cannot be hidden. After each way that
shares gradients all ranks must have variables of the same bits, and other ones than before.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from ranks import add_rank_arguments, print_head, print_row, serve, slowest, starter, times_text
from tensorflow_gradients import STRATEGY, Lightcc, Strategy, both_kinds

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = ("compute", "reduce", "after", "during", STRATEGY)
RATE = 1e-3


class Rank:
    """Answers requests with the seconds of steps."""

    def __init__(self, backend: LightccSteps | StrategySteps) -> None:
        """Has no model yet."""
        self._backend = backend
        self.start: list[Any] = []  # The variables' first values, which have the gradients' shapes.
        self._weights: list[Any] = []
        self._inputs: Any = None
        self._functions: dict[str, Callable[[], Any]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Runs steps of a way, and returns their seconds and what the variables are after them."""
        if not self._weights:
            self._take_model(**request["model"])
        way = request["way"]
        if way not in self._functions:
            self._functions[way] = self._backend.step_function(self, way)
        function, seconds = self._functions[way], []
        for weight, start in zip(self._weights, self.start, strict=True):
            weight.assign(start)
        before = self._digest()
        function()
        for _ in range(request["steps"]):
            begin = time.perf_counter()
            float(function())
            seconds.append(time.perf_counter() - begin)
        digest = self._digest()
        return {"seconds": seconds, "digest": digest, "moved": digest != before}

    def _take_model(self, layers: int, width: int, batch: int) -> None:
        import tensorflow as tf

        generator = tf.random.Generator.from_seed(1)
        self.start = [generator.normal((width, width), stddev=width**-0.5) for _ in range(layers)]
        self._weights = [tf.Variable(each) for each in self.start]
        generator = tf.random.Generator.from_seed(2 + self._backend.rank)
        self._inputs = generator.normal((batch, width))

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for weight in self._weights:
            digest.update(memoryview(weight.numpy()).cast("B"))
        return digest.hexdigest()

    def gradients(self, tape_of: Callable[[Any], Any] = lambda tape: tape) -> list[Any]:
        """Runs forward and backward, with the tape that `tape_of` makes of TensorFlow's."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            activations = self._inputs
            for weight in self._weights:
                activations = tf.nn.relu(activations @ weight)
            loss = tf.reduce_mean(activations**2)
        return list(tape_of(tape).gradient(loss, self._weights))

    def apply(self, gradients: list[Any]) -> Any:
        """Moves the variables; returns a number that is there once they have moved."""
        import tensorflow as tf

        moves = [
            weight.assign_sub(RATE * gradient)
            for weight, gradient in zip(self._weights, gradients, strict=True)
        ]
        with tf.control_dependencies(moves):
            return tf.constant(0.0)


class LightccSteps(Lightcc):
    """The ways of lightcc."""

    def step_function(self, rank: Rank, way: str) -> Callable[[], Any]:
        """Returns a step, as a graph."""
        import tensorflow as tf

        hvd = self._hvd

        def step() -> Any:
            if way == "compute":
                return rank.apply(rank.gradients())
            if way == "reduce":
                reduced = hvd.grouped_allreduce([tf.identity(it) for it in rank.start])
                return rank.apply([RATE * it for it in reduced])
            if way == "during":
                return rank.apply(rank.gradients(hvd.DistributedGradientTape))
            gradients = rank.gradients()
            with tf.control_dependencies(gradients):
                gradients = [tf.identity(it) for it in gradients]
            return rank.apply(hvd.grouped_allreduce(gradients))

        graph: Callable[[], Any] = tf.function(step)
        return graph


class StrategySteps(Strategy):
    """The way of MultiWorkerMirroredStrategy."""

    def step_function(self, rank: Rank, way: str) -> Callable[[], Any]:
        """Returns a step, as a graph."""
        del way
        import tensorflow as tf

        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            mean = tf.distribute.ReduceOp.MEAN
            gradients = context.all_reduce(mean, rank.gradients(), self._options)
            return rank.apply(list(gradients))

        graph: Callable[[], Any] = tf.function(lambda: self._strategy.run(replica))
        return graph


def check(way: str, answers: list[dict[str, Any]]) -> None:
    """Raises an error where ranks differ after steps that share gradients, or nothing moved."""
    if not all(answer["moved"] for answer in answers):
        msg = f"{way}: a step left the variables as they were"
        raise RuntimeError(msg)
    if way != "compute" and len({answer["digest"] for answer in answers}) != 1:
        msg = f"{way}: ranks have different variables"
        raise RuntimeError(msg)


def main() -> int:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_rank_arguments(parser, hosts=2, ranks=2, rounds=5)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3, help="of a round")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(Rank(StrategySteps() if arguments.serve == STRATEGY else LightccSteps()).answer)
        return 0
    model = {name: getattr(arguments, name) for name in ("layers", "width", "batch")}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with starter(__file__, arguments) as start:
        ranks = both_kinds(start, WAYS)
        for _ in range(arguments.rounds):
            for way in WAYS:
                request = {"model": model, "way": way, "steps": arguments.steps}
                answers = ranks[way].ask(request)
                check(way, answers)
                times[way] += slowest(answers)
    medians = {way: statistics.median(times[way]) for way in WAYS}
    hidden = (medians["after"] - medians["during"]) / medians["reduce"]
    megabytes = 4e-6 * arguments.layers * arguments.width**2
    print_head("gradients, ms: median (least)", "batch", *WAYS, "hidden")
    name = f"{megabytes:.3g} MB in {arguments.layers}"
    cells = [times_text(times[way]) for way in WAYS]
    print_row(name, str(arguments.batch), *cells, f"{hidden:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
