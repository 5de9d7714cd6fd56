"""What local steps cost in loss, as measured in trainings of some lengths (docs/convergence.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Loss(NamedTuple):
    """What a training lost against a dense one.

    Attributes:
        outer_steps: How many it would have had without a dense phase.
        percent: The loss.
    """

    outer_steps: int
    percent: float


#: A transformer under AdamW on two hosts, by whether outer steps send top-k in place of int4, and
#: by whether a fifth of all steps is dense. The shortest comes first.
LOSSES = {
    (False, False): (Loss(100, 2.5),),
    (False, True): (Loss(100, 0.1), Loss(400, 0.2)),
    (True, False): (Loss(100, 8.5), Loss(400, 0.9)),
    (True, True): (Loss(100, 2.9),),
}
#: What int4 in every step loses there, and its share of float32's bytes.
INT4_LOSS, INT4_SHARE = 0.2, 0.129
#: Steps from one outer step to the next, by default.
EVERY = 15
#: A training has so many times as many steps as its dense phase, where it has one.
FIFTH = 5


def loss_of(outer_steps: float, *, topk: bool, dense_first: bool) -> Loss:
    """Returns the measured training with the most outer steps that has no more than these.

    Where all have more it is the shortest one, which is then too good.
    """
    measured = LOSSES[topk, dense_first]
    return next((it for it in reversed(measured) if it.outer_steps <= outer_steps), measured[0])


def losses_text(every: int, dense_steps: int, topk: bool, total_steps: int | None) -> str:
    """Returns a sentence on what a training of so many steps costs, or what a dense phase does."""
    if total_steps is None:
        return (
            f"{dense_steps} dense steps, then workers train on their own. Trainings whose first"
            " fifth is dense end closer to dense ones; total_steps says how close"
            " (docs/convergence.md)"
        )
    has_phase = FIFTH * dense_steps >= total_steps
    found = loss_of(total_steps / every, topk=topk, dense_first=has_phase)
    text = (
        f"{(total_steps - dense_steps) / every:.0f} outer steps. In a measured training of"
        f" {found.outer_steps} the loss was {found.percent:g}% above a dense one's"
        " (docs/convergence.md)"
    )
    if not has_phase:
        better = loss_of(total_steps / every, topk=topk, dense_first=True)
        text += f"; with dense_steps={total_steps // FIFTH} it was {better.percent:g}%"
    return text


def local_step_hint(shares: Sequence[float], seconds: Sequence[float]) -> str:
    """Returns a sentence where local steps would halve a step; else nothing.

    Args:
        shares: What ways of compressing send, as shares of float32's bytes, from mild to strong.
        seconds: What a step takes in these ways.
    """
    spread = shares[0] - shares[-1]
    of_network = (seconds[0] - seconds[-1]) / spread if spread else 0.0  # A step's, at share 1.
    alone = max(seconds[-1] - of_network * shares[-1], 0.0)
    local = alone + of_network * INT4_SHARE / EVERY
    if of_network <= 0 or local > min(seconds) / 2:
        return ""
    return (
        f"with hvd.LocalSteps a step would take about {1e3 * local:.3g} ms, at a loss that depends"
        " on the number of steps (docs/guides/two-sites.md)"
    )
