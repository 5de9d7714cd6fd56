"""What is there of compression where a world fails within a step, and what of it counts.

A failure leaves ranks on both sides of a step, and each rank's tensors, too. Where training rolls
forward, ranks go on from the one with most finished steps. Then the step that failed is finished
for all, or is made again by all:

- It is finished where one rank finished it: it has got what all ranks sent. So what was sent is
  sent, and what each rank kept back after that counts, also of those that were still receiving.
- Else it is made again, and what was kept back before it counts, also of tensors of which
  everything was sent.

So each rank tells what it has of both. How far the tensors had come on the rank from which all go
on says which of them it is, tensor by tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightcc.elastic._parts import About, Stamp

#: How often a tensor was all-reduced, and how many of these steps counted.
Steps: TypeAlias = tuple[int, int]


class Ending(NamedTuple):
    """What a rank has where its world failed.

    Attributes:
        about: Of the part that would be that of its last commit, without a length.
        version: Of that commit.
        marked: How far tensors had come then.
        states: Of each tensor the states that are there, by how far it has come.
    """

    about: About
    version: int
    marked: Mapping[str, Steps]
    states: Mapping[str, Mapping[Steps, bytes]]

    def tensors(self) -> set[str]:
        """Returns the names of all tensors."""
        return set(self.marked) | set(self.states)


class Offer(NamedTuple):
    """What a rank tells of an ending, or of parts.

    Attributes:
        stamp: Of its last commit, or of the parts.
        version: Of the commit to which it belongs.
        is_ending: Whether there are states of moments next to it, too.
        is_marked: Whether the rank knows how far tensors had come then.
    """

    stamp: Stamp
    version: int
    is_ending: bool
    is_marked: bool


def choose(offers: Sequence[Sequence[Offer]], version: int) -> Stamp | None:
    """Returns of which moment all go on: that of which most ranks have something, or the newest.

    Args:
        offers: By rank.
        version: Of the state with which all go on.

    Returns:
        The same on all ranks; `None`: nobody has anything that belongs to that state.
    """

    def number(stamp: Stamp) -> int:
        return sum(any(_goes_with(it, stamp) for it in own) for own in offers)

    stamps = {it.stamp for own in offers for it in own if it.version == version}
    return max(stamps, key=lambda it: (number(it), it), default=None)


def _goes_with(offer: Offer, stamp: Stamp) -> bool:
    if offer.is_ending:
        return not stamp.moves and offer.stamp.epoch == stamp.epoch
    return offer.stamp == stamp


def find_marks(offers: Sequence[Sequence[Offer]], stamp: Stamp) -> int | None:
    """Returns the rank that tells how far tensors had come at `stamp`.

    `None`: nobody needs it, or nobody knows.
    """
    if not any(it.is_ending and _goes_with(it, stamp) for own in offers for it in own):
        return None
    knowing = (
        rank
        for rank, own in enumerate(offers)
        if any(it.stamp == stamp and it.is_marked for it in own)
    )
    return next(knowing, None)


def fitting(ending: Ending, marked: Mapping[str, Steps]) -> dict[str, bytes]:
    """Returns the states of those tensors that are there as far as `marked` says."""
    return {
        name: ending.states[name][at]
        for name, at in marked.items()
        if at in ending.states.get(name, {})
    }
