"""Which NIC goes with which GPU: the nearest in the PCI tree, one for each as far as they go.

Nearness is the number of bridges that two devices share, and then the same NUMA node. What crosses
fewer bridges shares its way with fewer others; this is also how NCCL chooses. In virtual machines
whose devices all hang on one bus, the order of addresses decides.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.harp.setup.machine import Gpu, Locality, Nic


def nearness(a: Locality, b: Locality) -> tuple[int, bool]:
    """Returns how near two devices are; larger is nearer."""
    ways = zip(a.path, b.path, strict=False)
    shared = len(list(itertools.takewhile(lambda both: both[0] == both[1], ways)))
    return shared, a.node == b.node and a.node >= 0


def pair(gpus: Sequence[Gpu], nics: Sequence[Nic]) -> list[tuple[Gpu, Nic]]:
    """Returns a NIC for each GPU, in the order of GPUs.

    NICs are given once each, then again from the beginning, so none has two GPUs more than another.
    """
    found: dict[Gpu, Nic] = {}
    while nics and len(found) < len(gpus):
        free = list(nics)
        waiting = [gpu for gpu in gpus if gpu not in found]
        ranked = sorted(
            ((gpu, nic) for gpu in waiting for nic in nics),
            key=lambda both: nearness(both[0].locality, both[1].locality),
            reverse=True,  # Stable: ties stay in the order of addresses.
        )
        for gpu, nic in ranked:
            if gpu not in found and nic in free:
                found[gpu] = nic
                free.remove(nic)
    return [(gpu, found[gpu]) for gpu in gpus] if nics else []
