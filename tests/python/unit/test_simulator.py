"""Simulated steps: closed forms at few hosts, formulas of bytes, bounds, and what disturbs."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lightcc import _core
from lightcc.bench.layer_table import read_table
from lightcc.plan.buckets import min_sent
from lightcc.plan.costs import Costs
from lightcc.plan.levels import make_levels
from lightcc.plan.sequencer import CostLine, tree_delays
from lightcc.plan.simulator import predict, where_time_goes
from lightcc.plan.site import Site, SlowHost, Variant
from lightcc.plan.workload import Gradient, Workload, from_table

if TYPE_CHECKING:
    from collections.abc import Callable

FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
MEGA = 10**6
ONE = Workload("one", "test", 1.0, (Gradient(0.5, 400 * MEGA),))
DENSE = Variant("2d")
VARIANTS = (
    DENSE,
    Variant("flat", two_level=False),
    Variant("ring", two_level=False, ring=True),
    Variant("none", fusion="none"),
    Variant("int8", compression="int8"),
    Variant("topk", compression="topk"),
)


def site(hosts: int, gpus: int = 1, gbps: float = 10.0) -> Site:
    return Site(hosts, gpus, gbps * 1e9, gbps * 1e9)


def wire_s(num_bytes: float, gbps: float = 10.0) -> float:
    return 8 * num_bytes / (gbps * 1e9)


def of_size(num_bytes: int) -> Workload:
    """A step that has one gradient, and computes next to nothing."""
    return Workload("size", "test", 1e-9, (Gradient(0.0, num_bytes),))


# -- Levels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [1, 2, 3, 7, 8, 16, 17, 31, 100, 1009])
def test_levels_reach_everybody_and_every_share_is_owned(members: int) -> None:
    widths = _core.grid_widths(members)
    assert math.prod(widths) >= members
    levels = make_levels(members, widths)
    knows = np.arange(members, dtype=np.float64)
    for level in levels:
        knows = level.latest(knows)
        assert (level.sizes <= level.width).all()
        assert level.peers.sum() == (level.sizes * (level.sizes - 1)).sum()
    assert (knows == members - 1).all()  # The last one's news has come to all.


@pytest.mark.parametrize(
    ("members", "num_bytes", "widths"),
    [(2, 0, [2]), (4, 0, [2, 2]), (4, 1 << 20, [4]), (16, 0, [2] * 4), (64, 1 << 20, [4, 4, 4])],
)
def test_grids_that_divide_send_as_little_as_possible(
    members: int, num_bytes: int, widths: list[int]
) -> None:
    assert _core.grid_widths(members, num_bytes) == widths
    sent, data = np.zeros(members), 1.0
    for level in make_levels(members, widths):
        sent += 2 * level.shares * data
        data /= level.width
    assert sent == pytest.approx(2 * (members - 1) / members)


@pytest.mark.parametrize("members", [17, 31, 1009])
def test_other_grids_send_as_little_together(members: int) -> None:
    sent, data = np.zeros(members), 1.0
    widths = _core.grid_widths(members)
    for level in make_levels(members, widths):
        sent += 2 * level.shares * data
        data /= level.width
    assert sent.sum() == pytest.approx(2 * (members - 1))
    assert sent.max() > sent.min()  # Members of shorter rows own several shares.


def test_what_crosses_between_parts_is_what_peers_elsewhere_get() -> None:
    [level] = make_levels(6, [6])
    parts = np.array([0, 0, 0, 0, 1, 1])
    assert level.outside(parts, whole=True).tolist() == [4 * 2, 2 * 4]
    assert level.outside(parts, whole=False) == pytest.approx([8 / 6, 8 / 6])
    [level] = make_levels(4, [4])
    assert level.outside(np.arange(4), whole=True) == pytest.approx(level.peers)


# -- Closed forms ---------------------------------------------------------------------------------


def test_tcp_reaches_less_with_several_peers() -> None:
    costs = dataclasses.replace(FREE, shared_rate=0.8)
    for hosts, share in ((2, 1.0), (4, 0.8), (16, 0.8)):
        found = predict(ONE, DENSE, site(hosts, gbps=1), costs).step_s - 0.5
        assert found == pytest.approx(10 * wire_s(2 * (hosts - 1) / hosts * 400 * MEGA) / share)
    harp = dataclasses.replace(DENSE, line_rate=True)
    assert predict(ONE, harp, site(16), costs) == predict(ONE, harp, site(16), FREE)


@pytest.mark.parametrize("hosts", [2, 4, 16, 64])
def test_with_free_messages_a_step_takes_what_the_link_takes(hosts: int) -> None:
    found = predict(ONE, DENSE, site(hosts), FREE)
    share = 2 * (hosts - 1) / hosts * 400 * MEGA
    assert found.wire_bytes == pytest.approx(share)
    assert found.step_s == pytest.approx(max(1.0, 0.5 + wire_s(share)))


@pytest.mark.parametrize(("hosts", "rows"), [(2, [2]), (4, [2] * 2), (16, [2] * 4), (7, [7])])
def test_a_small_all_reduce_takes_a_latency_and_its_messages_for_each_level(
    hosts: int, rows: list[int]
) -> None:
    # 8 KiB: more than goes inline, and little enough that levels flood.
    costs = dataclasses.replace(FREE, latency_s=1e-3, message_s=1e-5)
    up, down = tree_delays(hosts, costs)
    # Nobody waits for the last to hear of it: that host's row gets its news from it.
    flood = sum(costs.latency_s + 2 * (row - 1) * costs.message_s for row in rows)
    found = predict(of_size(8192), DENSE, site(hosts, gbps=1e6), costs).step_s
    assert found == pytest.approx(up.max() + down.max() + flood, rel=2e-2)
    inline = predict(of_size(512), DENSE, site(hosts, gbps=1e6), costs).step_s
    assert inline == pytest.approx(up.max() + down.max())


def test_a_report_passes_the_levels_of_a_tree_of_eight_children() -> None:
    costs = dataclasses.replace(FREE, latency_s=1.0)
    up, down = tree_delays(74, costs)
    assert up[[0, 1, 8, 9, 72, 73]].tolist() == [0, 1, 1, 2, 2, 3]
    assert (up == down).all()
    costs = dataclasses.replace(FREE, message_s=1.0)
    up, down = tree_delays(10, costs)
    assert up[[1, 9]].tolist() == [9, 9 + 2]  # Eight siblings are heard one after another.
    assert down[[1, 8, 9]].tolist() == [2, 9, 4]


def test_ranks_of_a_host_share_its_link_and_messages() -> None:
    costs = dataclasses.replace(FREE, tcp_s_per_byte=1e-8)
    one, eight = (predict(ONE, DENSE, site(2, gpus, 1e6), costs) for gpus in (1, 8))
    assert one.wire_bytes == pytest.approx(eight.wire_bytes)
    assert (one.step_s - 0.5) == pytest.approx(8 * (eight.step_s - 0.5), rel=0.05)
    in_memory = predict(ONE, DENSE, site(1, 8), dataclasses.replace(FREE, host_s_per_byte=2e-9))
    assert in_memory.step_s == pytest.approx(0.5 + 0.8)


def test_a_line_is_learnt_from_buckets() -> None:
    line = CostLine()
    assert line.seconds(1e6) == 0
    for num_bytes in (1e5, 1e6, 1e7):
        line.add(num_bytes, 0.001 + num_bytes * 1e-9)
    assert line.seconds(5e6) == pytest.approx(0.006)


# -- Formulas and bounds --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["", "int8", "int4", "topk"])
@pytest.mark.parametrize("hosts", [2, 4, 16])
@pytest.mark.parametrize("gpus", [1, 8])
def test_hosts_send_what_the_formulas_say(kind: str, hosts: int, gpus: int) -> None:
    variant = Variant("it", compression=kind)
    sizes = [16 << 20, 32 << 20, 64 << 20]
    gradients = tuple(Gradient(0.1 * i, size) for i, size in enumerate(sizes))
    found = predict(Workload("three", "test", 1.0, gradients), variant, site(hosts, gpus), FREE)
    formula = sum(min_sent(size, variant, site(hosts, gpus)) for size in sizes)
    headers = 3 * 16 * gpus * (hosts - 1) if kind == "topk" else 0
    assert found.wire_bytes == pytest.approx(formula + headers)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize(("hosts", "gpus"), [(2, 1), (3, 8), (16, 1), (31, 1)])
def test_no_step_is_below_the_bound_or_slower_on_faster_links(
    variant: Variant, hosts: int, gpus: int
) -> None:
    workload = from_table(read_table()["resnet50"])
    steps = [
        predict(workload, variant, site(hosts, gpus, gbps), Costs())
        for gbps in (0.5, 2.5, 10.0, 100.0)
    ]
    for step in steps:
        assert step.step_s >= step.bound_s >= workload.step_s
        assert step.exposed_s + step.hidden_s >= step.busy_s - 1e-9
    for slower, faster in pairwise(steps):
        # Buckets are cut by when links are free, so a step may lose a bucket's fixed cost.
        assert faster.step_s <= slower.step_s * 1.01


def best_end(workload: Workload, cost_s: Callable[[float], float], notice_s: float) -> float:
    """Returns when the last bucket ends if all that comes is known, and runs are cut for the best.

    With gradients ready at r[1] <= ... <= r[L], and S[j] the bytes of the first j, that is f[L]:
    f[0] = 0, f[j] = min over i < j of max(f[i], r[j] + notice) + cost(S[j] - S[i]).
    """
    end = [0.0]
    for j, last in enumerate(workload.gradients):
        ready, num_bytes, best = last.ready_s + notice_s, 0, math.inf
        for i in range(j, -1, -1):
            num_bytes += workload.gradients[i].num_bytes
            if num_bytes > 64 << 20 and i < j:
                break
            best = min(best, max(end[i], ready) + cost_s(num_bytes))
        end.append(best)
    return end[-1]


@pytest.mark.parametrize("hosts", [2, 64])
@pytest.mark.parametrize("latency_us", [10, 400])
def test_the_default_fusion_comes_close_to_the_best_plan(hosts: int, latency_us: int) -> None:
    costs = dataclasses.replace(Costs(), latency_s=latency_us * 1e-6)
    where = site(hosts, gbps=50)
    up, down = tree_delays(hosts, costs)
    notice = float(up.max() + down.max())
    sizes = [1 << power for power in range(15, 28)]
    times = [predict(of_size(size), DENSE, where, costs).step_s - notice for size in sizes]

    def cost_s(num_bytes: float) -> float:
        return float(np.interp(num_bytes, sizes, times))

    for count, num_bytes, backward_s in (
        (200, 131_072, 5e-2),
        (160, 393_216, 0.2),
        (3, MEGA, 1e-3),
    ):
        ready = [backward_s * (i + 1) / count for i in range(count)]
        workload = Workload("even", "test", 1e-9, tuple(Gradient(at, num_bytes) for at in ready))
        best = best_end(workload, cost_s, notice)
        found = predict(workload, DENSE, where, costs)
        # Who does not know what comes may have closed a bucket just before the last gradient came.
        assert 0.98 * best <= found.step_s <= 1.05 * best + 2 * cost_s(0) + 2 * notice + 0.5e-3


# -- What disturbs --------------------------------------------------------------------------------


def test_a_host_that_computes_slowly_keeps_all_waiting() -> None:
    slow = dataclasses.replace(site(16), slow=(SlowHost(5, compute=1.5),))
    found = predict(ONE, DENSE, slow, FREE)
    share = 2 * 15 / 16 * 400 * MEGA
    assert found.step_s == pytest.approx(max(1.5, 0.75 + wire_s(share)))
    assert found.efficiency == pytest.approx(1 / found.step_s)


@pytest.mark.parametrize("hosts", [2, 4, 16, 31])
def test_a_slow_link_keeps_all_waiting(hosts: int) -> None:
    slow = dataclasses.replace(site(hosts), slow=(SlowHost(1, link=4.0),))
    found = predict(ONE, DENSE, slow, FREE)
    even = predict(ONE, DENSE, site(hosts), FREE)
    assert found.wire_bytes == pytest.approx(even.wire_bytes)
    least = 0.5 + wire_s(4 * 2 * (hosts - 1) / hosts * 400 * MEGA)
    assert least * 0.999 <= found.step_s <= 1.02 * least
    where = where_time_goes(ONE, DENSE, slow, FREE)
    assert where["slow hosts"] == pytest.approx(found.step_s - even.step_s)
    assert where["links"] == pytest.approx(found.step_s - 1.0, rel=1e-3)
    assert where["latency"] == where["processors"] == where["up-links"] == 0.0


def test_uplinks_carry_what_leaves_a_rack() -> None:
    def seconds(rack: int, times: float) -> float:
        where = dataclasses.replace(site(16), rack=rack, oversubscription=times)
        return predict(ONE, DENSE, where, FREE).step_s - 0.5

    even = wire_s(2 * 15 / 16 * 400 * MEGA)
    assert seconds(16, 100.0) == pytest.approx(even)  # One rack has no up-link to share.
    assert seconds(4, 1.0) == pytest.approx(even)
    # Rows of four are a rack each: three quarters of a quarter leave it, both ways.
    assert seconds(4, 100.0) == pytest.approx(100 * wire_s(2 * 3 / 16 * 400 * MEGA), rel=0.05)
    assert seconds(4, 4.0) < seconds(2, 4.0)
