"""The benchmark: sizes, shapes, and that it notices wrong results and missing peers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from iproute import ip
from processes import run_to_end

from lightcc.bench import cases, cli, cluster, worker
from lightcc.bench.cases import SizeError, parse_size, parse_sizes, size_case, size_text
from lightcc.bench.cluster import Cluster, NominalHosts, parse_rate
from lightcc.bench.measure import Effort, WireMeter, differing, run_case
from lightcc.bench.models import gradients
from lightcc.bench.peers import PeerError, find
from lightcc.bench.variants import COLLECTIVES, VariantError, parse_variants
from lightcc.bench.workers import WorkerGroup

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import numpy as np


# -- Sizes and models -----------------------------------------------------------------------------


def test_sizes_take_binary_suffixes_and_ranges_grow_by_the_factor() -> None:
    texts = ("1", "4K", "4KiB", "1.5M", "2G", "8b")
    assert [parse_size(text) for text in texts] == [1, 4096, 4096, 3 << 19, 2 << 30, 8]
    assert parse_sizes("4K:100K") == [4096, 16384, 65536]
    assert parse_sizes("4K,1M") == [4096, 1 << 20]
    with pytest.raises(SizeError, match="ends before"):
        parse_sizes("1M:4K")
    written = [size_text(size) for size in (4096, 1 << 20, 3 << 30, 1000, 0)]
    assert written == ["4K", "1M", "3G", "1000", "0"]


@pytest.mark.parametrize("text", ["", "K", "-4K", "4X", "0", "4 K", "1e9", "9999999G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SizeError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("name", "tensors", "elements"),
    [
        ("resnet50", 161, 25_557_032),
        ("resnet101", 314, 44_549_160),
        ("vgg16", 32, 138_357_544),
        ("inception_v3", 292, 27_161_264),
        ("gpt2", 148, 124_439_808),
        ("gpt3_xl", 292, 1_315_723_264),
        ("bert_large", 391, 335_141_888),
        ("llama2_7b", 291, 6_738_415_616),
        ("llama3_8b", 291, 8_030_261_248),
        ("transformer_xl", 215, 285_170_506),
    ],
)
def test_models_have_their_known_parameters(name: str, tensors: int, elements: int) -> None:
    counts = gradients(name)
    assert (len(counts), sum(counts)) == (tensors, elements)


def test_gradients_come_last_layer_first() -> None:
    assert gradients("resnet50")[:2] == [1000, 2048 * 1000]
    assert gradients("vgg16")[-1] == 64 * 3 * 9


def test_counts_that_ranks_share_are_multiples_of_them() -> None:
    for collective in ("allgather", "alltoall", "reducescatter"):
        case = size_case(collective, 1000, 3, inplace=True)
        assert case.counts == (249,)
        assert not case.inplace
    assert size_case("allreduce", 1, 3, inplace=True).counts == (1,)


def test_bus_bandwidth_factors_are_those_of_nccl_tests() -> None:
    def factor(collective: str) -> float:
        case = size_case(collective, 4096, 4, inplace=False)
        return case.bus_factor(4)

    assert factor("allreduce") == 1.5
    assert factor("broadcast") == 1.0
    assert {factor(name) for name in ("allgather", "alltoall", "reducescatter")} == {0.75}


# -- The worker's own check -----------------------------------------------------------------------


class OneRank:
    """A library of one rank whose allreduce can be told to be wrong."""

    rank = 0
    size = 1
    version = "one rank"

    def __init__(self, wrong: int = 0) -> None:
        self._wrong = wrong

    def prepare(
        self,
        case: dict[str, Any],
        ins: list[np.ndarray[Any, Any]],
        outs: list[np.ndarray[Any, Any]],
    ) -> Callable[[], Any]:
        del case, outs

        def call() -> None:
            ins[0][: self._wrong] += 1

        return call

    def sent_bytes(self) -> int:
        return 0

    def close(self) -> None: ...


def describe(counts: list[int], mode: str = "") -> dict[str, Any]:
    return {"collective": "allreduce", "counts": counts, "inplace": True, "mode": mode}


def test_wrong_elements_are_counted() -> None:
    assert worker.Prepared(OneRank(), describe([100])).count_errors() == (0, 0)
    assert worker.Prepared(OneRank(wrong=7), describe([100])).count_errors() == (7, 0)


def test_lossy_results_are_compared_between_ranks_not_with_sums() -> None:
    lossy = describe([100]) | {"ratio": 0.01}
    right, wrong = (worker.Prepared(OneRank(wrong=bad), lossy).count_errors() for bad in (0, 7))
    assert (right[0], wrong[0]) == (0, 0)
    assert right[1] != wrong[1]
    assert differing([{"digest": right[1]}, {"digest": wrong[1]}, {"digest": right[1]}]) == 1


def test_flat_layouts_hold_the_tensors_in_order() -> None:
    for mode, buffers in (("bucket25", 3), ("loop", 4)):
        counts = [5, worker.BUCKET_BYTES // 4, 10, 20]
        views, handed = worker._layout(counts, mode)
        assert [view.size for view in views] == counts
        assert len(handed) == buffers
        views[3][...] = 9
        assert (handed[-1][-20:] == 9).all()


# -- The command ----------------------------------------------------------------------------------


def test_a_missing_peer_is_told_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"setup-peers --dir .* openmpi"):
        find("openmpi", tmp_path)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["allreduce", "--sizes", "4Q"], "'4Q' is not a size"),
        (["allreduce", "--peer", "nccl"], "'nccl' is no peer; there are gloo"),
        (["allreduce", "--model", "lenet"], "'lenet' is no model"),
        (["broadcast", "--model", "vgg16"], "--model is for allreduce"),
        (["allreduce", "-np", "0"], "'0' is not a number"),
        (["setup-peers", "x"], "'x' is no peer to install"),
        (["setup-peers", "horovod"], "'horovod' is no peer to install; there are gloo"),
        (["--sizes", "4Q"], "'4Q' is not a size"),
        (
            ["cluster", "--variants", "3d"],
            "unknown variant '3d': choose from lightcc, harp, 2d, flat",
        ),
        (["cluster", "--variants", "2d:x"], "'2d:x' is not NAME:VARIABLE=VALUE"),
        (["allgather", "--variants", "2d+topk"], "2d+topk is for allreduce"),
        (["-np", "3", "--hosts", "2"], "--hosts 2 does not divide the 3 ranks"),
        (["cluster", "--tcp-rate", "--variants", "2d,harp"], "--tcp-rate limits lightcc's TCP"),
        (["cluster", "--delay", "25"], "'25' is no delay: expected above 0 to 10s (one way)"),
        (["cluster", "--delay", "11s"], "'11s' is no delay"),
    ],
)
def test_mistakes_end_with_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], expected: str
) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(argv)
    assert leaving.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--tcp-rate"], ["--hosts", "1"]])
def test_a_delay_needs_hosts_with_links(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert cli.main(["cluster", "--delay", "25ms", *words]) == 1
    assert "--hosts: a delay (--delay) is that of links" in capsys.readouterr().err


def run_bench(*argv: str) -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, "-m", "lightcc.bench", *argv], timeout=100)


@pytest.mark.multiproc
def test_collectives_are_measured_and_right() -> None:
    with WorkerGroup(COLLECTIVES["lightcc"], 3) as group:
        for collective in cases.COLLECTIVES:
            for size in (12, 1024):
                case = size_case(collective, size, 3, inplace=False)
                samples = run_case(case, [group], Effort(rounds=2, iterations=3))[0]
                assert (samples.errors, len(samples.times_s), samples.note) == (0, 6, ""), case


@pytest.mark.multiproc
def test_every_gradient_of_a_model_is_reduced_also_where_a_peer_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "result.jsonl"
    result = run_bench(
        *("allreduce", "--model", "resnet50", "--rounds", "1", "--json", str(file)),
        *("--iterations", "1", "--peer", "gloo", "--dir", str(tmp_path)),
    )
    assert result.returncode == 1
    assert "gloo cannot be measured" in result.stderr
    assert "setup-peers" in result.stderr
    machine, row, *_ = [json.loads(line) for line in file.read_text().splitlines()]
    assert machine["cpu"]
    assert (row["library"], row["tensors"], row["errors"]) == ("lightcc", 161, 0)
    assert " lightcc " in result.stdout


def test_rates_take_decimal_suffixes() -> None:
    assert [parse_rate(text) for text in ("200m", "2.5G", "1gbit")] == [2e8, 2.5e9, 1e9]


@pytest.mark.parametrize("text", ["", "1", "1k", "-1g", "0.5m", "500g", "1gb/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no rate: expected 1m to 400g"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("collective", "minimum"),
    [("allreduce", 4096), ("allgather", 2048), ("broadcast", 4096), ("alltoall", 4096)],
)
def test_least_bytes_of_a_host_are_those_of_two_levels(collective: str, minimum: int) -> None:
    case = size_case(collective, 4096, 4, inplace=True)
    assert case.min_bytes_of_host(4, 2) == minimum
    assert case.min_bytes_of_host(4, 1) == 0


@pytest.mark.parametrize(
    ("variant", "ranks", "sent"),
    [
        ("2d", 4, 4096),
        ("lightcc", 4, 4096),
        ("flat", 4, 8192),
        ("flat:LIGHT_NUM_STREAMS=2", 32, 2 * 31 / 32 * 4096),
        ("gloo", 4, 6144),
        ("mpich", 4, None),
    ],
)
def test_formulas_are_those_of_each_algorithm(variant: str, ranks: int, sent: float) -> None:
    case = size_case("allreduce", 4096, ranks, inplace=True)
    assert case.bytes_of_host(variant, ranks, 2) == sent
    assert case.bytes_of_host(variant, ranks, 1) is None


def test_topk_sends_values_and_indices_of_what_it_keeps_to_every_other_host() -> None:
    case = size_case("allreduce", 4 << 20, 6, inplace=True)
    assert case.bytes_of_host("2d+topk", 6, 3, ratio=0.01) == pytest.approx(1048576 * 0.01 * 6 * 2)
    small = size_case("allreduce", 1000, 4, inplace=True)
    assert small.bytes_of_host("2d+topk", 4, 2, ratio=0.01) == 1000  # Below the threshold: dense.


def test_variants_add_variables_to_those_that_they_have() -> None:
    plain, two = parse_variants("gloo,2d:LIGHT_NUM_STREAMS=2:LIGHT_INTRA_SIZE=2", COLLECTIVES)
    assert (plain.library, plain.environment) == ("gloo", ())
    assert two.label == "2d:LIGHT_NUM_STREAMS=2:LIGHT_INTRA_SIZE=2"
    assert dict(two.environment) == {
        "LIGHT_2D_ALLREDUCE": "1",
        "LIGHT_NUM_STREAMS": "2",
        "LIGHT_INTRA_SIZE": "2",
    }
    with pytest.raises(VariantError, match="unknown variant"):
        parse_variants("2d,", COLLECTIVES)


def test_lossy_variants_alone_have_a_ratio() -> None:
    chosen = parse_variants("2d,2d+topk,2d+topk:LIGHT_TOPK_RATIO=0.5", COLLECTIVES)
    assert [variant.ratio for variant in chosen] == [None, 0.01, 0.5]


def test_nominal_hosts_divide_a_link_among_their_ranks_and_take_no_peer(tmp_path: Path) -> None:
    hosts = NominalHosts(2, 8e9)
    environments = [hosts.environment(rank, 4) for rank in range(4)]
    assert {environment["LIGHT_TCP_RATE"] for environment in environments} == {"500000000"}
    ids = [environment["LIGHT_HOST_ID"] for environment in environments]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    (tmp_path / "gloo").symlink_to(sys.prefix)
    with pytest.raises(PeerError, match="gloo does not know LIGHT_TCP_RATE"):
        WorkerGroup(COLLECTIVES["gloo"], 4, tmp_path, hosts)


def test_without_interfaces_ranks_tell_what_their_host_sent() -> None:
    with WireMeter(NominalHosts(2, 1e9)) as meter:
        meter.note([{"sent": sent} for sent in (1, 2, 30, 4)])
    assert meter.bytes == 34


@pytest.mark.netns
def test_links_can_be_given_another_rate() -> None:
    with Cluster(2, 1e9) as hosts:
        hosts.set_rate(2e8)
        assert hosts.describe().endswith("0.2 Gb/s each way")
        for name, interface in ((hosts.names[1], "eth0"), (hosts.switch, "port1")):
            shown = run_to_end(["tc", "-n", name, "qdisc", "show", "dev", interface], check=True)
            assert "rate 200Mbit" in shown.stdout


def namespaces_of(pid: int) -> list[str]:
    return [path.name for path in Path("/run/netns").glob(f"lightcc-bench-{pid}-*")]


def processes_in(namespace: str) -> list[int]:
    return [int(pid) for pid in ip("netns", "pids", namespace).split()]


@pytest.mark.netns
@pytest.mark.multiproc
@pytest.mark.parametrize("delay", [(), ("--delay", "5ms")], ids=["tc", "delay"])
def test_a_signal_ends_the_benchmark_and_leaves_nothing_behind(delay: tuple[str, ...]) -> None:
    forever = (*delay, "--variants", "2d", "--sizes", "1M", "--iterations", "1000000")
    bench = subprocess.Popen(
        [sys.executable, "-u", "-m", "lightcc.bench", "cluster", *forever],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert bench.stdout is not None
    # The head of the table: all ranks are there, and measure.
    assert any(line.startswith("# 2 hosts") for line in bench.stdout)
    ranks = [pid for name in namespaces_of(bench.pid) for pid in processes_in(name)]
    assert len(ranks) >= 4
    bench.send_signal(signal.SIGTERM)
    try:
        _, said = bench.communicate(timeout=60)
    finally:
        bench.kill()
    assert bench.returncode == -signal.SIGTERM, said
    assert "ended by SIGTERM" in said
    assert namespaces_of(bench.pid) == []
    assert [pid for pid in ranks if Path("/proc", str(pid)).exists()] == []


@pytest.mark.netns
@pytest.mark.parametrize("delay", [None, 0.005])
def test_hosts_that_are_half_made_are_removed(
    monkeypatch: pytest.MonkeyPatch, delay: float | None
) -> None:
    call, calls_left = cluster._call, 0

    def interrupted_call(*command: str) -> None:
        nonlocal calls_left
        call(*command)
        calls_left -= 1
        if calls_left == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "_call", interrupted_call)
    for calls in (1, 2, 3, 8):
        calls_left = calls
        with pytest.raises(KeyboardInterrupt), Cluster(2, 1e9, delay=delay):
            pass
        assert namespaces_of(os.getpid()) == []


@pytest.mark.multiproc
def test_without_root_links_are_limited_by_the_ranks(tmp_path: Path) -> None:
    result = run_bench(
        *("cluster", "--tcp-rate", "--link", "1g", "--sizes", "1M", "--rounds", "1"),
        *("--iterations", "2", "--json", str(tmp_path / "out.json")),
    )
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()]
    sent = {row["library"]: row["wire_bytes"] for row in rows if row.get("wire_bytes")}
    # Two levels send what must leave the host; the flat exchange also sends within it.
    assert (1 << 20) < sent["2d"] < 1.1 * (1 << 20)
    assert sent["flat"] > 2.9 * (1 << 20)
    assert sum(row.get("errors", 0) for row in rows) == 0


@pytest.mark.netns
@pytest.mark.multiproc
def test_between_hosts_the_bytes_on_the_wire_are_counted(tmp_path: Path) -> None:
    result = run_bench(
        *("allreduce", "--inplace", "-np", "2", "--hosts", "2", "--link", "1g", "--sizes", "1M"),
        *("--rounds", "1", "--iterations", "2", "--json", str(tmp_path / "out.json")),
    )
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()]
    (row,) = [row for row in rows if row.get("library") == "lightcc"]
    assert row["errors"] == 0
    # A megabyte has to leave each host; headers and what the ranks say about it come on top.
    assert (1 << 20) < row["wire_bytes"] < 1.1 * (1 << 20)
    assert 0 < row["bound_share"] < 1
    assert " bound\n" in result.stdout
