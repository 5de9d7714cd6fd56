"""Predictions as text, and for programs."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lightcc._figures import duration, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc.plan.costs import Costs
    from lightcc.plan.simulator import Prediction
    from lightcc.plan.site import Site, Variant
    from lightcc.plan.ways import LocalWay, Way
    from lightcc.plan.workload import Workload

    Columns = Sequence[tuple[str, str, Callable[[Any], str]]]

__all__ = ["as_dict", "local", "shards", "text"]

_ACCURACY = (
    "computed, not measured: efficiencies were 11 to 19% above published ones "
    "(docs/running/plan.md)"
)
_ENOUGH = 0.97  # So near the best variant, no variable is worth setting.
_FIGURES = ["step_s", "efficiency", "hidden_s", "exposed_s", "bound_s", "wire_bytes", "buckets"]
# A column of a table: its title, its format, and what is in it.
_STEPS = (
    ("variant", "<17", lambda it: it.variant.name),
    ("step", ">8", lambda it: duration(it.step_s)),
    ("bound", ">8", lambda it: duration(it.bound_s)),
    ("efficiency", ">10", lambda it: f"{it.efficiency:.1%}"),
    ("hidden", ">8", lambda it: duration(it.hidden_s)),
    ("exposed", ">8", lambda it: duration(it.exposed_s)),
    ("sent/host", ">10", lambda it: size(it.wire_bytes)),
)
_WAY = ("way", "<26", lambda it: it.name)
_SENT = ("sent/host", ">9", lambda it: size(it.sent_bytes))
_LOCAL = (
    _WAY,
    ("dense step", ">10", lambda it: duration(it.dense_s) if it.dense_s else "-"),
    ("local step", ">10", lambda it: duration(it.local_s) if it.local_s else "-"),
    _SENT,
    ("training", ">9", lambda it: f"{it.training_s / 3600:.3g} h"),
    ("loss", ">6", lambda it: f"{it.loss:>+5.1f}%"),
)


def text(
    workload: Workload, site: Site, steps: Sequence[Prediction], where: dict[str, float] | None
) -> str:
    """Returns a table for a terminal, and what to set; `where`: and what would be saved."""
    more = []
    if where is not None:
        more += [f"{steps[0].variant.name} would be shorter by, if this took no time:"]
        more += [f"  {name:<12} {duration(max(gain, 0.0)):>9}" for name, gain in where.items()]
        more += [""]
    return _page(workload, site, _STEPS, steps, [*more, *_advice(steps), "", _ACCURACY])


def shards(workload: Workload, site: Site, found: Sequence[Way], memory_bytes: float) -> str:
    """Returns ways of sharding as a table, and the line that sets the fastest that fits."""
    fitting = [way for way in found if way.memory_bytes <= memory_bytes]
    more = ["nothing fits: take more ranks"]
    if fitting:
        best = min(fitting, key=lambda way: way.step_s)
        more = [f"the fastest that fits is {best.name}:", f"  {best.line}"]
    columns = (
        _WAY,
        ("a rank", ">8", lambda it: size(it.memory_bytes)),
        (" fits", "<5", lambda it: " yes" if it in fitting else " no"),
        _SENT,
        ("step", ">8", lambda it: duration(it.step_s)),
    )
    return _page(workload, site, columns, found, more)


def local(workload: Workload, site: Site, found: Sequence[LocalWay]) -> str:
    """Returns ways of training for some time as a table, and the line that sets the fastest."""
    best = min(found, key=lambda way: way.training_s)
    losses = "losses are those of a small transformer (docs/convergence.md)"
    more = [losses, f"the fastest is {best.name}:", f"  {best.line}"]
    return _page(workload, site, _LOCAL, found, more)


def _page(
    workload: Workload, site: Site, columns: Columns, rows: Sequence[Any], more: Sequence[str]
) -> str:
    """Returns what a table is about, the table, and more lines."""
    tcp = f", TCP {_rate(site.tcp_bps)}" if site.tcp_bps < site.link_bps else ""
    lines = [
        f"{workload.name}: {size(workload.num_bytes)} of gradients, "
        f"{duration(workload.step_s)} of computing",
        *textwrap.wrap(workload.source, 98, initial_indent="  ", subsequent_indent="  "),
        f"{_counted(site.hosts, 'host')} of {_counted(site.gpus, 'rank')}, "
        f"{_rate(site.link_bps)} each{tcp}",
    ]
    lines += [
        f"  host {slow.host} is slow: {slow.compute:g} times to compute, {slow.link:g} to send"
        for slow in site.slow
    ]
    if site.has_uplinks:
        lines.append(f"  racks of {site.rack}, over-subscribed {site.oversubscription:g} times")
    lines += ["", " ".join(f"{title:{form}}" for title, form, _ in columns)]
    lines += [" ".join(f"{cell(row):{form}}" for _, form, cell in columns) for row in rows]
    return "\n".join([*lines, "", *more]) + "\n"


def _advice(steps: Sequence[Prediction]) -> list[str]:
    """Returns the best variant of each kind, where it is worth a variable."""
    default_s = steps[0].step_s
    best: dict[str, Prediction] = {}
    for one in (one for one in steps if not one.variant.ring):
        kind = _kind(one.variant)
        if one.step_s < (best[kind].step_s if kind in best else default_s * _ENOUGH):
            best[kind] = one
    lines = []
    for kind, one in best.items():
        lines.append(f"{default_s / one.step_s:.2f} times as fast as the default, {kind}:")
        variables = one.variant.variables.items()
        lines.append("  " + " ".join(f"{name}={value}" for name, value in variables))
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
                "variant": it.variant.name,
                **{figure: getattr(it, figure) for figure in _FIGURES},
                "variables": it.variant.variables,
            }
            for it in steps
        ],
    }


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _rate(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:g} Gb/s"
