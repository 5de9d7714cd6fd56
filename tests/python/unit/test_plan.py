"""Predicted steps follow from what is computed, sent and waited for (also test_simulator.py)."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import lightcc as hvd
from lightcc.bench.layer_table import read_table
from lightcc.plan.__main__ import main
from lightcc.plan.costs import Costs, CostsError
from lightcc.plan.simulator import Prediction, predict
from lightcc.plan.site import Site, Variant
from lightcc.plan.ways import ways
from lightcc.plan.workload import Gradient, Workload, from_table, from_timeline
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from pathlib import Path

FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
MEBI = 1 << 20
ONE = Workload("one", "test", 1.0, (Gradient(0.5, 100 * 10**6),))
ARGUMENTS = ["--model", "resnet50", "--hosts", "4", "--gpus", "8", "--link", "25g"]


def site(hosts: int, gpus: int, gbps: float = 1.0) -> Site:
    return Site(hosts, gpus, gbps * 1e9, gbps * 1e9)


def step(workload: Workload, variant: Variant, where: Site, costs: Costs = FREE) -> Prediction:
    return predict(workload, variant, where, costs)


def many(count: int, num_bytes: int = MEBI) -> Workload:
    """Gradients that are ready one after another, within a second."""
    gradients = [Gradient((i + 1) / count, num_bytes) for i in range(count)]
    return Workload("many", "test", 1.0, tuple(gradients))


def test_one_rank_computes_and_nothing_else() -> None:
    alone = step(ONE, Variant("2d"), site(1, 1), Costs())
    assert (alone.step_s, alone.efficiency, alone.wire_bytes) == (1.0, 1.0, 0.0)


def test_a_flat_grid_sends_what_crosses_and_a_ring_once() -> None:
    flat = Variant("flat", two_level=False)
    # Rows of 4 and 2: what is left of a rank's data after the row crosses to the other host.
    assert step(ONE, flat, site(2, 4)).wire_bytes == pytest.approx(4 * 2 * 1 / 2 * 1 / 4 * 100e6)
    ring = Variant("ring", two_level=False, ring=True)
    assert step(ONE, ring, site(4, 8)).wire_bytes == pytest.approx(2 * 31 / 32 * 100e6)


@pytest.mark.parametrize(
    ("kind", "hosts", "share"),
    [
        ("topk", 2, 0.01 * 6 / 4),
        ("int8", 2, (1 + 2 / 128) / 4),
        ("int4", 2, (0.5 + 2 / 128) / 4),
        ("int4", 8, 2 * 7 / 8 * (0.5 + 2 / 128) / 4),
        ("topk", 1000, 999 / 1000 * (0.06 + 4) / 4),
    ],
)
def test_compression_sends_what_the_algorithms_say(kind: str, hosts: int, share: float) -> None:
    found = step(ONE, Variant(kind, compression=kind), site(hosts, 4))
    headers = 64 * (hosts - 1) if kind == "topk" else 0
    assert found.wire_bytes == pytest.approx(share * 100e6 + headers)


def test_small_tensors_are_not_compressed() -> None:
    small = many(10, MEBI - 4)
    dense = step(small, Variant("2d"), site(2, 4))
    assert step(small, Variant("t", compression="topk"), site(2, 4)).wire_bytes == dense.wire_bytes


def test_fusion_saves_fixed_costs_and_keeps_to_its_threshold() -> None:
    costs = dataclasses.replace(FREE, latency_s=0.01)
    fused = step(many(100), Variant("2d"), site(2, 2), costs)
    alone = step(many(100), Variant("2d", fusion="none"), site(2, 2), costs)
    assert alone.buckets == 100
    assert fused.buckets < 100
    assert fused.step_s < alone.step_s
    at_once = Workload("at once", "test", 1.0, tuple(Gradient(1.0, MEBI) for _ in range(200)))
    sizes = {"auto_fusion": 4, "horovod": 2, "none": 200}  # 64 and 128 MiB are the limits.
    found = {kind: step(at_once, Variant(kind, fusion=kind), site(2, 2)).buckets for kind in sizes}
    assert found == sizes


def test_what_is_not_tcp_goes_at_the_links_rate() -> None:
    slow = Site(2, 4, 10e9, 1e9)
    tcp, harp = (step(ONE, Variant("2d", line_rate=harp), slow) for harp in (False, True))
    assert tcp.step_s == pytest.approx(0.5 + 0.8)
    assert harp.step_s == 1.0  # 0.08 s of communication hide behind the rest of the step.


def test_a_workload_of_the_table_has_all_gradients_in_order() -> None:
    training = read_table()["resnet50"]
    workload = from_table(training)
    ready = [gradient.ready_s for gradient in workload.gradients]
    assert workload.num_bytes == training.gradient_bytes
    assert ready == sorted(ready)
    assert ready[-1] == pytest.approx(training.step_s)


def test_ways_of_sharding_are_those_computed_by_hand() -> None:
    # A billion parameters, 10 s of computing, 4 GB/s within a host, and 1 GB/s between the two.
    quarters = tuple(Gradient(10.0, 10**9) for _ in range(4))
    workload = Workload("billion", "test", 10.0, quarters)
    costs = dataclasses.replace(FREE, host_s_per_byte=0.25e-9)
    found = ways(workload, site(2, 4, 8.0), costs, module=10**6)
    code8, code4 = 1 + 2 / 128, 0.5 + 2 / 128
    # GB of a rank, GB that a host sends; seconds beside computing and what all reduce in memory.
    expected = {
        "DDP": (16, 4, 0),
        "DDP, int8": (16 + 1, code8, 0),
        "DDP, int4": (16 + 1, code4, 0),
        "HSDP": (4.008, 4, 1),
        "HSDP, int8": (5.008, code8, 1),
        "HSDP, int4": (5.008, code4, 1),
        "FSDP2": (2.008, 6, 0.5),
        "FSDP2, int8/int8": (3.008, 1.5 * code8, 0.5),
        "FSDP2, int8/int4": (3.008, code8 + code4 / 2, 0.5),
        "FSDP2, int8/int4, kept": (4.008, (code8 + code4) / 2, 0.5),
        "FSDP2, int4/int4, resident": (7.008, code4, 0.5),
    }
    assert {way.name for way in found} == set(expected)
    for way in found:
        memory, sent, more = expected[way.name]
        assert way.memory_bytes == pytest.approx(memory * 1e9), way
        assert way.sent_bytes == pytest.approx(sent * 1e9), way
        # Chunks of DDP and HSDP are reduced in memory while others cross.
        shortest = 10 + sent + more + (0 if way.name[0] in "DH" else 1)
        assert shortest <= way.step_s <= shortest + 1 + 1e-9, way


def test_the_command_says_which_way_of_sharding_fits(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--parameters", "7e8", "--hosts", "2", "--gpus", "8", "--link", "25g", "--memory"]
    compute = ["--compute", "0.2"]
    assert main([*asked, "8", *compute]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^DDP +11.2 GB +no +2\.80 GB ", text, re.MULTILINE)
    assert text.endswith('  fsdp.replicate(model, mesh["replicate"], gradients="int4")\n')
    assert main([*asked, "1", *compute]) == 0
    assert capsys.readouterr().out.endswith("fits is FSDP2:\n  fully_shard()\n")
    assert main([*asked, "0.1", *compute]) == 0
    assert "nothing fits" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*asked, "8"])
    assert "--parameters needs --compute" in capsys.readouterr().err


def train(path: str) -> None:
    hvd.init()
    hvd.start_timeline(path) if hvd.rank() == 0 else None
    hvd.broadcast(np.zeros(9), 0, name="weights")
    hvd.broadcast_object("settings", 0)
    for step in range(7):
        handles = []
        for i in range(3):
            time.sleep(0.01)
            handles.append(hvd.allreduce_async(np.ones(1000 * (i + 1), np.float32), name=f"g{i}"))
        for handle in handles:
            hvd.synchronize(handle)
        if step == 3:
            hvd.allreduce(np.zeros(1), name="accuracy")
    hvd.shutdown()


@pytest.mark.multiproc
def test_a_workload_is_read_from_a_timeline(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    spawn_ranks(train, 2, str(file), env={"HOROVOD_TIMELINE": "DYNAMIC"})
    workload = from_timeline(file)
    assert [gradient.num_bytes for gradient in workload.gradients] == [4000, 8000, 12000]
    ready = [gradient.ready_s for gradient in workload.gradients]
    assert 0.01 <= ready[0] < ready[1] < ready[2] == workload.step_s
    assert main(["--trace", str(file), "--hosts", "2", "--gpus", "1", "--link", "1g"]) == 0


def test_the_command_prints_a_table_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--slow-host", "3:1.5:2", "--oversubscription", "4", "--rack", "2", "--where"]
    assert main([*ARGUMENTS, *more, "--tcp", "1g"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "LIGHT_NET=harp" in text
    for part in ("racks of 2, over", "host 3 is slow: 1.5 times", "slow hosts", "2 to send"):
        assert part in text
    assert "LIGHT_TOPK_ALLREDUCE=1" in text or "LIGHT_QUANTIZE_ALLREDUCE" in text
    assert main(ARGUMENTS) == 0
    text = capsys.readouterr().out
    assert "keep the defaults" in text
    assert text.endswith("11 to 19% above published ones (docs/running/plan.md)\n")


def test_the_command_writes_for_programs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "costs.json"
    file.write_text('{"latency_s": 0.001}')
    assert main([*ARGUMENTS, "--json", "--costs", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["costs"]["latency_s"] == 0.001
    file.write_text(json.dumps(found["costs"]))
    assert Costs.read(file) == dataclasses.replace(Costs(), latency_s=0.001)
    assert found["variants"][0]["variant"] == "2d (default)"
    assert all(0 < one["efficiency"] <= 1 for one in found["variants"])


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (["--model", "resnet5"], "there are inception_v3, resnet50"),
        (["--link", "fast"], "'fast' is no rate"),
        (["--hosts", "0"], "'0' is not a number from 1"),
        (["--tcp", "50g"], "more than the link's"),
        (["--oversubscription", "0.5"], "'0.5' is not a number from 1"),
        (["--rack", "0"], "'0' is not a number from 1"),
        (["--compute", "0"], "'0' is not a number of seconds"),
        (["--slow-host", "3"], "'3' is not HOST:COMPUTE or HOST:COMPUTE:LINK"),
        (["--slow-host", "3:fast"], "'fast' is not a number from 1"),
        (["--slow-host", "4:2"], "--slow-host 4: there are hosts 0 to 3"),
        (["--costs", "/no/such/file"], "cannot be read"),
    ],
)
def test_the_command_says_what_is_wrong(
    changed: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([*ARGUMENTS, *changed])
    except SystemExit as left:
        code = int(left.code or 0)
    assert code in (1, 2)
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "expected an object"),
        ("{", "cannot be read"),
        ('{"step": 1}', "'step' is no cost; there are latency_s"),
        ('{"latency_s": "1"}', "latency_s is '1'; expected a number from 0"),
        ('{"shared_rate": 0}', "shared_rate is 0; expected a number from 0"),
    ],
)
def test_costs_are_checked(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(text)
    with pytest.raises(CostsError, match=problem):
        Costs.read(file)
