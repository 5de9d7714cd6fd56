"""What one rank computes in a step: from the table of models, or from a recorded timeline."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lightcc.bench.layer_table import GRADIENT_BYTES
from lightcc.timeline.summary import handed_in, in_steps
from lightcc.timeline.trace import TraceError, read

if TYPE_CHECKING:
    from pathlib import Path

    from lightcc.bench.layer_table import Training


#: Kinds of operations.
_OF_GRADIENTS = ("ALLREDUCE", "ADASUM", "REDUCESCATTER")
_MODULES = 32


@dataclass(frozen=True)
class Gradient:
    """A gradient of a rank."""

    ready_s: float  # Since the step began.
    num_bytes: int


@dataclass(frozen=True)
class Workload:
    """A step without communication."""

    name: str
    source: str
    step_s: float
    gradients: tuple[Gradient, ...]  # By when they are ready.

    @property
    def num_bytes(self) -> int:
        """All gradients of a rank."""
        return sum(gradient.num_bytes for gradient in self.gradients)

    def lasting(self, step_s: float) -> Workload:
        """Returns the same step, computed in `step_s` seconds."""
        scale = step_s / self.step_s
        gradients = tuple(replace(one, ready_s=one.ready_s * scale) for one in self.gradients)
        return replace(self, step_s=step_s, gradients=gradients)


def from_table(training: Training) -> Workload:
    """Returns the step of a model whose layers' times are known."""
    now = training.forward_s
    gradients = []
    for layer in reversed(training.layers):
        now += layer.backward_s
        gradients += [Gradient(now, GRADIENT_BYTES * count) for count in reversed(layer.counts)]
    source = f"{training.gpu}, {training.source}"
    return Workload(training.name, source, training.step_s, tuple(gradients))


def from_parameters(count: int) -> Workload:
    """Returns a step of a second of so many parameters, in modules that are alike."""
    size = GRADIENT_BYTES * max(1, count // _MODULES)
    ready = [(_MODULES + 2 * i) / (3 * _MODULES) for i in range(1, _MODULES + 1)]
    gradients = tuple(Gradient(at, size) for at in ready)
    return Workload(f"{count:.3g} parameters", f"{_MODULES} equal modules", 1.0, gradients)


def from_timeline(path: Path) -> Workload:
    """Returns the median step of rank 0's timeline, without what it waited for communication.

    The step begins where that of before has handed in its last gradient, and has waited for it.
    What is not summed is no gradient, such as the weights that are broadcast at the beginning.

    Raises:
        TraceError: The file is no timeline of three steps of gradients with sizes.
    """
    trace = read(path)
    summed = [operation for operation in trace.operations if operation.kind in _OF_GRADIENTS]
    operations = sorted(summed, key=lambda operation: handed_in(trace, operation))
    groups = in_steps(operations)
    steps = [[(handed_in(trace, one), one.num_bytes) for one in group] for group in groups]
    ends = [max(one.finished or 0.0 for one in group) for group in groups]
    # Steps with what is not summed in each, as a loss, are fewer than the others.
    usual = statistics.mode(len(step) for step in steps[1:]) if len(steps) > 1 else 0
    whole = [i for i in range(1, len(steps)) if len(steps[i]) == usual]
    if len(whole) < 2:
        msg = f"{path} has fewer than three steps that are alike: record more of them"
        raise TraceError(msg)
    if all(num_bytes == 0 for _, num_bytes in steps[whole[0]]):
        msg = f"{path} does not say how large tensors are: record it with lightcc"
        raise TraceError(msg)
    # After the last gradient is there, the rank goes on: optimizer, data, forward pass.
    relative = [[at - ends[i - 1] for at, _ in steps[i]] for i in whole]
    ready = [max(statistics.median(times), 0.0) for times in zip(*relative, strict=True)]
    gradients = [
        Gradient(at, num_bytes) for at, (_, num_bytes) in zip(ready, steps[whole[0]], strict=True)
    ]
    return Workload(path.name, f"{len(whole)} steps of {path}", max(ready), tuple(gradients))
