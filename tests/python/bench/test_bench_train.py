"""Emulated training: the table of layers, schedules, and runs between hosts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import train
import train_report
import train_steps as steps
import train_stream
from processes import run_to_end
from train_report import Steps

from lightcc.bench.layer_table import TableError, read_table
from lightcc.bench.models import MODELS, gradients
from lightcc.fusion.choice import PLANNED

if TYPE_CHECKING:
    from pathlib import Path


# -- The table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "giga_macs"),
    [("resnet50", 4.09), ("resnet101", 7.80), ("vgg16", 15.47), ("inception_v3", 5.71)],
)
def test_models_have_their_known_multiply_adds(name: str, giga_macs: float) -> None:
    # torchvision's figures; Inception's is without the auxiliary classifier, 0.1% of it.
    macs = sum(layer.macs for layer in MODELS[name]())
    assert macs / 1e9 == pytest.approx(giga_macs, rel=0.002)


def test_tables_hold_every_gradient_and_share_a_step_between_the_passes() -> None:
    table = read_table()
    names = ["inception_v3", "resnet50", "resnet101", "vgg16", "transformer_xl"]
    names += ["bert_large", "gpt2", "gpt3_xl", "llama2_7b", "llama3_8b"]
    assert list(table) == names
    for name, training in table.items():
        counts = [count for layer in training.layers for count in layer.counts]
        assert counts[::-1] == gradients(name)
        assert training.forward_s == pytest.approx(training.step_s / 3, rel=1e-3)


def test_published_figures_are_those_of_the_articles() -> None:
    table = read_table()
    found = {
        name: [table[name].published_efficiency(what) for what in ("horovod_tcp", "lightcc_harp")]
        for name in ("vgg16", "resnet50")
    }
    assert found["vgg16"] == pytest.approx([0.21, 0.88], abs=0.01)
    assert found["resnet50"] == pytest.approx([0.4427, 0.8987], abs=0.0001)
    assert table["resnet101"].published_efficiency("horovod_tcp") is None
    assert table["resnet101"].implied_tcp_rate() is None


def test_the_implied_rate_explains_the_published_step() -> None:
    vgg16 = read_table()["vgg16"]
    rates = vgg16.implied_tcp_rate()
    assert rates is not None
    ring_bits = 8 * 2 * 15 / 16 * 553_430_176
    published_step_s = 16 * 128 / 847
    assert vgg16.forward_s + ring_bits / rates[0] == pytest.approx(published_step_s)
    assert vgg16.step_s + ring_bits / rates[1] == pytest.approx(published_step_s)


LAYER = {"backward_us": 1.0, "gradients": [5], "macs": 1}
MODEL: dict[str, Any] = {
    "batch": 1,
    "per_s": 100.0,
    "gpu": "none",
    "link": "1g",
    "source": "a test",
    "gpus": 2,
    "published": {},
    "layers": [LAYER],
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"layers": [{**LAYER, "gradients": [0]}]}, "a layer without elements"),
        ({"layers": [{**LAYER, "backward_us": 1e6}]}, "longer than its step"),
        ({"layers": [{**LAYER, "backward_us": -1}]}, "longer than its step, or less than no"),
        ({"layers": [{"gradients": [1]}]}, "KeyError: 'backward_us'"),
        ({"link": "fast"}, "'fast' is no rate"),
        ({"layers": 7}, "TypeError"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"models": {"m": MODEL | change}}), encoding="utf-8")
    with pytest.raises(TableError, match=r"table\.json is no table of layers") as caught:
        read_table(file)
    assert expected in str(caught.value)


# -- Schedules ------------------------------------------------------------------------------------


def test_fusion_joins_neighbours_up_to_the_threshold() -> None:
    assert steps.fuse([3, 3, 4, 1, 20, 1, 9], 10) == [[0, 1, 2], [3], [4], [5, 6]]
    assert steps.fuse([1, 1], 0) == [[0], [1]]
    assert steps.fuse([], 10) == []


def test_ddp_buckets_close_when_they_have_reached_their_size() -> None:
    megabyte = (1 << 20) // 4
    counts = [megabyte // 2, megabyte // 2, 24 * megabyte, megabyte, 100 * megabyte, 1]
    assert steps.ddp_buckets(counts) == [2, 2, 1, 1]
    assert sum(steps.ddp_buckets(gradients("resnet50"))) == 161


class AddsOne:
    """A rank of gloo that is alone, and reduces wrongly."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.torch = self.dist = self

    def from_numpy(self, array: Any) -> Any:
        return array

    def all_reduce(self, array: Any, **_: Any) -> AddsOne:
        array += 1
        return self

    def wait(self) -> None: ...

    def sent_bytes(self) -> int:
        return 0


def test_a_schedule_that_reduces_wrongly_is_noticed() -> None:
    layers = [{"backward_s": 0.003, "gradients": counts} for counts in ([10], [600_000])]
    plan = {"model": "m", "schedule": "ddp", "ratio": None, "forward_s": 0.002, "layers": layers}
    plan |= {"cycle_s": 0.0001, "fusion_bytes": 400, "steps": 2, "warmup": 1, "check": True}
    assert steps.Training(AddsOne(), plan).count_errors()[0] == 600_010


# -- Report ---------------------------------------------------------------------------------------


def test_efficiency_is_what_communication_leaves_of_a_step() -> None:
    measured = [
        Steps("none", "lightcc", 25e9, None, [1.0, 1.1, 0.9], [0.0]),
        Steps("2d", "lightcc", 25e9, 1.9, [2.0, 2.0], [0.5, 0.7], calls=4, wire_bytes=400),
        Steps("2d+topk", "lightcc", 25e9, note="does not have it"),
    ]
    run = {"hosts": 2, "ranks_per_host": 4, "time_scale": 10.0}
    none, two, topk = train_report.make_rows(read_table()["vgg16"], measured, run)
    assert (none.efficiency, two.efficiency, topk.efficiency) == (1.0, 0.5, None)
    assert (two.wire_bytes, two.ranks) == (100, 8)
    assert two.cpu_s == pytest.approx(0.6)
    assert train_report.table_line(two).endswith("1900.0   -5.0%")
    assert train_report.table_line(topk).endswith("does not have it")
    heading = train_report.heading(read_table()["vgg16"], 25e9)
    assert "Horovod, TCP 21.1%, LightCC, HARP 88.7%" in heading


# -- The command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--models", "lenet"], "'lenet' is no model; there are inception_v3"),
        (["--variants", "nccl"], "unknown variant 'nccl': choose from none, horovod"),
        (["--horovod-fusion", "big"], "'big' is not a size"),
        (["--costs", "/nonexistent"], "/nonexistent cannot be read"),
        (["--layers", "/nonexistent"], "/nonexistent is no table of layers"),
        (["--hosts", "1"], "a link needs at least 2 hosts"),
    ],
)
def test_mistakes_end_with_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], expected: str
) -> None:
    with pytest.raises(SystemExit) as leaving:
        train.main(argv)
    assert leaving.value.code == 2
    assert expected in capsys.readouterr().err


def small_table(directory: Path) -> Path:
    """A model of 4 MB in five gradients, of which nothing is published."""
    layers = [
        {"backward_us": 5000.0, "gradients": counts}
        for counts in ([900_000, 64], [50_000], [40_000, 7])
    ]
    model = MODEL | {"per_s": 50.0, "link": "2g", "gpus": 4, "layers": layers}
    file = directory / "layers.json"
    file.write_text(json.dumps({"models": {"small": model}}), encoding="utf-8")
    return file


def run_train(directory: Path, *argv: str) -> dict[str, dict[str, Any]]:
    """Returns the rows of a run on the small model, by variant."""
    out = directory / "out.json"
    result = run_to_end(
        [
            *(sys.executable, train.__file__, "--models", "small"),
            *("--layers", str(small_table(directory)), "--dir", str(directory)),
            *("--ranks-per-host", "2", "--time-scale", "2", "--steps", "2", "--warmup", "1"),
            *("--rounds", "2", "--json", str(out), *argv),
        ],
        timeout=100,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return {row["variant"]: row for row in rows if row["kind"] == "training"}


def check_steps(rows: dict[str, dict[str, Any]], gradient_bytes: int) -> None:
    for name, row in rows.items():
        assert (row["errors"], row["steps"], row["note"]) == (0, 4, ""), row
        assert row["step_s"] >= row["compute_s"] == pytest.approx(0.04)
        assert row["gradient_bytes"] == gradient_bytes
        assert row["cpu_s"] > 0, name


def test_gradients_are_named_by_the_quarter_of_their_layer() -> None:
    names = train_stream.names_of("m", [[1, 2], [3], [4], [5], [6, 7], [8], [9], [10]])
    assert [name.split(".")[1] for name in names] == ["q3"] * 3 + ["q2"] * 2 + ["q1"] * 3 + [
        "q0"
    ] * 2
    assert len(set(names)) == 10


@pytest.mark.multiproc
def test_steps_between_nominal_hosts_reduce_every_gradient_in_each_plan(tmp_path: Path) -> None:
    schedules = {"piecewise_fusion": "1;3", "scopewise_fusion": "small.q3;small.q0"}
    names = [
        f"2d:LIGHT_FUSION_STRATEGY={strategy}:LIGHT_FUSION_SCHEDULE={schedules.get(strategy, '')}"
        for strategy in PLANNED
    ]
    rows = run_train(tmp_path, "--tcp-rate", "--variants", ",".join(["none", "2d", *names]))
    assert list(rows) == ["none", "2d", *names]
    check_steps(rows, 3_960_284)
    assert rows["none"]["efficiency"] == 1.0
    assert rows["none"]["wire_bytes"] == 0
    assert 1.0 < rows["2d"]["wire_bytes"] / 3_960_284 < 1.1


@pytest.mark.netns
@pytest.mark.multiproc
def test_steps_on_shaped_links_are_measured_beside_gloo(tmp_path: Path) -> None:
    (tmp_path / "gloo").symlink_to(sys.prefix)
    rows = run_train(tmp_path, "--variants", "none,horovod,horovod@tcp,ddp,2d")
    assert list(rows) == ["none", "horovod", "horovod@tcp", "ddp", "2d"]
    check_steps(rows, 3_960_284)
    sent = {name: row["wire_bytes"] / 3_960_284 for name, row in rows.items()}
    # A ring of four ranks sends 1.5 times the gradients out of each host, two levels once.
    assert 1.0 < sent["2d"] < 1.1
    assert 1.5 < sent["ddp"] < 1.7
    assert 1.5 < sent["horovod"] < 1.8
    assert rows["horovod@tcp"]["link_bps"] == rows["2d"]["link_bps"] == 2e9
