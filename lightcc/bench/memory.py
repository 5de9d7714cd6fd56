"""How much memory emulated training needs, and how much there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc.bench.peers import LIGHTCC

if TYPE_CHECKING:
    from lightcc.bench.variants import Variant

# What a rank takes beside its gradients. In a peer that is torch, mainly.
_PROCESS_BYTES = {LIGHTCC: 64 << 20, "gloo": 256 << 20}
_FUSION_BYTES = 128 << 20
_LIBRARY_SHARE = 0.2  # What a library holds while it reduces, over the gradients.


def needed_bytes(
    gradient_bytes: int, num_ranks: int, ranks_per_host: int, variants: list[Variant]
) -> int:
    """Returns about how many bytes all ranks need at once.

    The ranks of all variants are there all the time, the gradients only of the one whose turn it
    is. A rank of a lossy variant keeps what was not sent of its share of its host's sum.
    """
    kinds = {(variant.library, variant.environment) for variant in variants}
    processes = sum(_PROCESS_BYTES.get(library, 0) for library, _ in kinds)
    kept = sum(variant.is_lossy for variant in variants) / ranks_per_host
    share = 1 + _LIBRARY_SHARE + kept
    return int(num_ranks * (gradient_bytes * share + _FUSION_BYTES + processes))


def available_bytes(root: Path = Path("/")) -> int:
    """Returns what may be allocated: the machine's available memory, or what a cgroup leaves."""
    text = (root / "proc/meminfo").read_text(encoding="ascii")
    found = re.search(r"MemAvailable:\s+(\d+)", text)
    available = int(found[1]) << 10 if found else 0
    group = root / "sys/fs/cgroup"
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        return available if limit == "max" else min(available, int(limit) - used)
    except (OSError, ValueError):
        return available
