"""Predictions as text, and for programs."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lightcc._figures import duration, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.plan.costs import Costs
    from lightcc.plan.local import LocalWay
    from lightcc.plan.sharding import Way
    from lightcc.plan.simulator import Prediction
    from lightcc.plan.site import Site, Variant
    from lightcc.plan.workload import Workload

__all__ = ["as_dict", "local", "shards", "text"]

_ACCURACY = (
    "computed, not measured: efficiencies were 11 to 19% above published ones "
    "(docs/running/plan.md)"
)
_ENOUGH = 0.97  # So near the best variant, no variable is worth setting.


def text(
    workload: Workload,
    site: Site,
    steps: Sequence[Prediction],
    where: dict[str, float] | None = None,
) -> str:
    """Returns a table for a terminal, and what to set; `where`: and what would be saved."""
    lines = [
        *_head(workload, site),
        f"{'variant':<17} {'step':>8} {'bound':>8} {'efficiency':>10} {'hidden':>8} {'exposed':>8} "
        f"{'sent/host':>10}",
    ]
    lines += [
        f"{one.variant.name:<17} {duration(one.step_s):>8} {duration(one.bound_s):>8} "
        f"{one.efficiency:>10.1%} "
        f"{duration(one.hidden_s):>8} {duration(one.exposed_s):>8} "
        f"{size(one.wire_bytes):>10}"
        for one in steps
    ]
    if where is not None:
        lines += ["", f"{steps[0].variant.name} would be shorter by, if this took no time:"]
        lines += [f"  {name:<12} {duration(max(gain, 0.0)):>9}" for name, gain in where.items()]
    return "\n".join([*lines, "", *_advice(steps), "", _ACCURACY]) + "\n"


def shards(workload: Workload, site: Site, found: Sequence[Way], memory_bytes: float) -> str:
    """Returns ways of sharding as a table, and the line that sets the fastest that fits."""
    lines = [
        *_head(workload, site),
        f"{'way':<26} {'a rank':>8}  {'fits':<4} {'sent/host':>9} {'step':>8}",
    ]
    lines += [
        f"{way.name:<26} {size(way.memory_bytes):>8}  "
        f"{'yes' if way.memory_bytes <= memory_bytes else 'no':<4} "
        f"{size(way.sent_bytes):>9} {duration(way.step_s):>8}"
        for way in found
    ]
    fitting = [way for way in found if way.memory_bytes <= memory_bytes]
    if not fitting:
        return "\n".join([*lines, "", "nothing fits: take more ranks"]) + "\n"
    best = min(fitting, key=lambda way: way.step_s)
    return (
        "\n".join([*lines, "", f"the fastest that fits is {best.name}:", f"  {best.line}"]) + "\n"
    )


def local(workload: Workload, site: Site, found: Sequence[LocalWay]) -> str:
    """Returns ways of training for some time as a table, and the line that sets the fastest."""
    head = f"{'dense step':>10} {'local step':>10} {'sent/host':>9} {'training':>9} {'loss':>6}"
    lines = [*_head(workload, site), f"{'way':<26} {head}"]
    for way in found:
        steps = [duration(it) if it else "-" for it in (way.dense_s, way.local_s)]
        hours = f"{way.training_s / 3600:.3g} h"
        lines += [
            f"{way.name:<26} {steps[0]:>10} {steps[1]:>10} {size(way.sent_bytes):>9} {hours:>9} "
            f"{way.loss:>+5.1f}%"
        ]
    best = min(found, key=lambda way: way.training_s)
    lines += ["", "losses are those of a small transformer (docs/convergence.md)"]
    return "\n".join([*lines, f"the fastest is {best.name}:", f"  {best.line}"]) + "\n"


def _head(workload: Workload, site: Site) -> list[str]:
    """Returns what a table is about."""
    tcp = f", TCP {_rate(site.tcp_bps)}" if site.tcp_bps < site.link_bps else ""
    return [
        f"{workload.name}: {size(workload.num_bytes)} of gradients, "
        f"{duration(workload.step_s)} of computing",
        *textwrap.wrap(workload.source, 98, initial_indent="  ", subsequent_indent="  "),
        f"{_counted(site.hosts, 'host')} of {_counted(site.gpus, 'rank')}, "
        f"{_rate(site.link_bps)} each{tcp}",
        *_uneven(site),
        "",
    ]


def _advice(steps: Sequence[Prediction]) -> list[str]:
    """Returns the best variant of each kind, where it is worth a variable."""
    default = steps[0]
    groups: dict[str, list[Prediction]] = {}
    for one in steps:
        if not one.variant.ring:
            groups.setdefault(_kind(one.variant), []).append(one)
    lines = []
    for kind, group in groups.items():
        best = min(group, key=lambda one: one.step_s)
        if best.step_s < default.step_s * _ENOUGH:
            variables = " ".join(
                f"{name}={value}" for name, value in best.variant.variables.items()
            )
            gain = default.step_s / best.step_s
            lines += [f"{gain:.2f} times as fast as the default, {kind}:", f"  {variables}"]
    return lines or ["keep the defaults: nothing gains more than 3%"]


def _kind(variant: Variant) -> str:
    if variant.line_rate:
        return "at the link's rate"
    if variant.compression:
        return "compressed (docs/convergence.md)"
    return "with the same results"


def as_dict(
    workload: Workload, site: Site, costs: Costs, steps: Sequence[Prediction]
) -> dict[str, Any]:
    """Returns everything for `--json`; times are seconds."""
    return {
        "workload": workload.name,
        "source": workload.source,
        "gradient_bytes": workload.num_bytes,
        "site": asdict(site),
        "costs": asdict(costs),
        "variants": [
            {
                "variant": one.variant.name,
                "step_s": one.step_s,
                "efficiency": one.efficiency,
                "hidden_s": one.hidden_s,
                "exposed_s": one.exposed_s,
                "bound_s": one.bound_s,
                "wire_bytes": one.wire_bytes,
                "buckets": one.buckets,
                "variables": one.variant.variables,
            }
            for one in steps
        ],
    }


def _uneven(site: Site) -> list[str]:
    """Returns what is not alike, for the head of a table."""
    lines = [
        f"  host {slow.host} is slow: {slow.compute:g} times to compute, {slow.link:g} to send"
        for slow in site.slow
    ]
    if site.has_uplinks:
        lines.append(f"  racks of {site.rack}, over-subscribed {site.oversubscription:g} times")
    return lines


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _rate(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:g} Gb/s"
