"""Whether replicas are the same: a sample of each, hashed and compared."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Elements of an array that are looked at, about; others each time, until all have been.
SAMPLE = 4096


def sample(flat: Any, count: int, turn: int) -> Any:
    """Returns some elements of an array with one dimension and `count` elements."""
    stride = max(1, count // SAMPLE)
    return flat[turn % stride :: stride]


def digest(samples: Iterable[bytes]) -> bytes:
    """Returns a hash of bytes."""
    found = hashlib.blake2b(digest_size=16)
    for data in samples:
        found.update(data)
    return found.digest()


def odd_ranks(digests: Sequence[bytes]) -> list[int]:
    """Returns which ranks differ from more than half of all; none if all are the same.

    Raises:
        RuntimeError: They differ, and no more than half of them agree.
    """
    counts = Counter(digests)
    common = max(counts, key=counts.__getitem__)
    count = counts[common]
    if 2 * count <= len(digests):
        msg = (
            f"replicas differ, and of {len(digests)} ranks only {count} have the same: "
            "nobody knows which one is right, so begin from a checkpoint"
        )
        raise RuntimeError(msg)
    return [rank for rank, found in enumerate(digests) if found != common]
