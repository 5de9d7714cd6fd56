"""Momentum that top-k compression applies to gradients, and the optimizer then must not."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lightcc.compression import TopKCompressor, find_engine_compressor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightcc._adapter import CompressedGradients


def momentum_to_take_over(compression: Any, groups: list[dict[str, Any]]) -> float | None:
    """Returns the momentum that `compression` applies instead of the optimizer; `None`: none.

    Args:
        compression: As of DistributedOptimizer.
        groups: The optimizer's parameter groups.

    Raises:
        ValueError: The compression cannot apply this optimizer's momentum.
    """
    topk = find_engine_compressor(compression)
    if not isinstance(topk, TopKCompressor) or topk.momentum_correction is False:
        return None
    momenta = {group.get("momentum") for group in groups}
    if len(momenta) != 1 or not all(momenta):
        found = ", ".join(sorted(map(str, momenta)))
        msg = (
            "momentum_correction needs an optimizer with the same momentum in all parameter groups,"
            f" such as SGD(momentum=0.9); here it is {found}."
        )
        raise ValueError(msg)
    if any(group.get("nesterov") or group.get("dampening") for group in groups):
        msg = "momentum_correction is plain momentum: without nesterov and dampening."
        raise ValueError(msg)
    return float(groups[0]["momentum"])


@contextmanager
def without_momentum(
    compressed: CompressedGradients, groups: list[dict[str, Any]]
) -> Iterator[None]:
    """Lets an optimizer step without its momentum where the compression has applied it.

    Compressed parameters are put into groups of their own for the time of the step; what the
    optimizer remembers belongs to parameters, not groups. An optimizer's momentum adds up weight
    decay, too, to 1 / (1 - momentum) times one step's; so these groups decay by as much.
    """
    if compressed.spec is None or compressed.spec.momentum == 0.0:
        yield
        return
    before = list(groups)
    parts: list[dict[str, Any]] = []
    for group in before:
        stepped: list[Any] = []
        others: list[Any] = []
        for p in group["params"]:
            is_compressed = compressed.compresses(p.numel() * p.element_size())
            (stepped if is_compressed else others).append(p)
        parts.append({**group, "params": others})
        decay = group.get("weight_decay", 0.0) / (1.0 - compressed.spec.momentum)
        parts.append({**group, "params": stepped, "momentum": 0.0, "weight_decay": decay})
    groups[:] = parts
    try:
        yield
    finally:
        groups[:] = before
