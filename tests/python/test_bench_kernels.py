"""`lightcc.bench kernels` on the fake driver, and what its rows are computed from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

from lightcc import _core
from lightcc.bench import cli, kernel_report, kernels
from lightcc.bench.models import gradients

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = [sys.executable, "-m", "lightcc.bench", "kernels"]
GPU = {"name": "A GPU", "objection": ""}


def measured(name: str, num_bytes: int, *seconds: float, **fields: Any) -> dict[str, Any]:
    """Returns what `_core.measure_gpu()` does of one measurement."""
    usual = {"elements": 10, "errors": 0, "fits_cache": False, "has_gaps": False}
    return usual | {"name": name, "bytes": num_bytes, "seconds": list(seconds)} | fields


# -- Rows -----------------------------------------------------------------------------------------


def test_shares_are_of_the_faster_copy() -> None:
    copies = [
        measured("copy by kernel", 8000, 4e-6, 1e-6, 2e-6),
        measured("copy by driver", 8000, 4e-6, 4e-6, 4e-6),
    ]
    ceiling = kernel_report.ceiling_of(copies)
    assert ceiling == pytest.approx(8000 / 2e-6)
    row = kernel_report.make_row("1M", measured("merge", 4000, 2e-6), ceiling)
    assert [row.gbs, row.share] == pytest.approx([2.0, 0.5])
    assert row.bar is None
    first = kernel_report.make_row("1M", copies[0], ceiling)
    assert [first.median_us, first.min_us] == pytest.approx([2.0, 1.0])


@pytest.mark.parametrize(
    ("name", "seconds", "bar", "is_met"),
    [
        ("select pass", 1.42e-6, 0.7, True),
        ("select pass", 1.44e-6, 0.7, False),
        ("pack", 1.24e-6, 0.8, True),
        ("unpack", 1.26e-6, 0.8, False),
        ("select step", 1e-6, None, False),
    ],
)
def test_bars_are_shares_of_copies(
    name: str, seconds: float, bar: float | None, *, is_met: bool
) -> None:
    row = kernel_report.make_row("64M", measured(name, 1000, seconds), 1e9)
    assert (row.bar, row.is_met) == (bar, is_met)


def test_without_a_ceiling_there_is_no_bar() -> None:
    row = kernel_report.make_row("64M", measured("pack", 1000, 1e-6), None)
    assert row.gbs == pytest.approx(1.0)
    assert (row.share, row.bar) == (None, None)
    row = kernel_report.make_row("", measured("launch", 0, 2e-6), None)
    assert row.median_us == pytest.approx(2.0)
    assert row.gbs is None


def test_the_last_line_counts_bars() -> None:
    rows = [
        kernel_report.make_row("1M", measured("select pass", 1000, 1e-6), 1e9),
        kernel_report.make_row("64M", measured("select pass", 1000, 2e-6, errors=3), 1e9),
        kernel_report.make_row("64M", measured("merge", 1000, 1e-6), 1e9),
    ]
    assert kernel_report.summary(rows) == "# wrong bytes: 3\n# bars met: 1 of 2\n"


def test_lines_say_what_a_figure_cannot() -> None:
    noted = measured("pack", 1000, 1e-6, fits_cache=True, has_gaps=True)
    line = kernel_report.table_line(kernel_report.make_row("1M", noted, 1e9))
    assert line.split()[:2] == ["1M", "pack"]
    assert "80% met" in line
    assert line.endswith("stays in the cache, the host was too slow")
    failed = kernel_report.failed_row("64M", "topk", "not measured: no memory")
    words = kernel_report.table_line(failed).split(maxsplit=2)
    assert words == ["64M", "topk", "not measured: no memory"]
    columns = len(kernel_report.table_header())
    assert len(kernel_report.table_line(kernel_report.make_row("", noted, None))) > columns


# -- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--sizes", "many"], "--sizes: 'many' is not a size"),
        (["--sizes", "4G"], "--sizes: 4G is more than 2147483647 elements"),
        (["--launches", "33"], "--launches: '33' is more than 32"),
        (["--rounds", "0"], "--rounds: '0' is not a number"),
        (["--device", "-1"], "--device: "),
        (["--device", "gpu0"], "--device: 'gpu0' is not the number of a GPU, from 0"),
        (["--device", "1"], "--device 1: the GPUs here are 0 to 0"),
        (["--dtype", "float16"], "unrecognized arguments: --dtype"),
    ],
)
def test_wrong_flags_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    expected: str,
) -> None:
    monkeypatch.setattr(_core, "find_gpus", lambda: {"gpus": [GPU]})
    with pytest.raises(SystemExit, match="2"):
        cli.main(["kernels", *flags])
    assert expected in capsys.readouterr().err


def test_a_machine_without_a_gpu_is_told_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find() -> None:
        msg = "no GPU, because the CUDA driver cannot be opened: x"
        raise NotImplementedError(msg)

    monkeypatch.setattr(_core, "find_gpus", find)
    assert cli.main(["kernels"]) == 1
    expected = "lightcc.bench: kernels: no GPU, because the CUDA driver cannot be opened: x\n"
    assert capsys.readouterr().err == expected
    gpus_here = {"gpus": [GPU | {"objection": "it is too old"}, GPU], "driver_version": 12080}
    monkeypatch.setattr(_core, "find_gpus", lambda: gpus_here)
    assert cli.main(["kernels"]) == 1
    expected = "lightcc.bench: kernels: GPU 0 (A GPU) is of no use: it is too old\n"
    assert capsys.readouterr().err == expected


def test_the_drivers_cache_is_empty_for_the_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in ("/a/folder", None):
        monkeypatch.delenv("CUDA_CACHE_PATH", raising=False)
        if before is not None:
            monkeypatch.setenv("CUDA_CACHE_PATH", before)
        with kernels.empty_compile_cache():
            folder = os.environ["CUDA_CACHE_PATH"]
            assert os.listdir(folder) == []
        assert not os.path.exists(folder)
        assert os.environ.get("CUDA_CACHE_PATH") == before


def test_what_cannot_be_measured_is_a_row_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_device: int, what: str, *_: object) -> list[dict[str, Any]]:
        if what == "copies":
            msg = "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
            raise RuntimeError(msg)
        return [measured(what, 1000, 1e-6)]

    monkeypatch.setattr(_core, "find_gpus", lambda: {"gpus": [GPU], "driver_version": 12080})
    monkeypatch.setattr(_core, "measure_gpu", measure)
    assert cli.main(["kernels", "--sizes", "1M"]) == 1
    out = capsys.readouterr().out
    assert out.count("not measured: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY") == 2
    assert out.endswith("# wrong bytes: 0\n# bars met: 0 of 0\n")


def test_wrong_results_fail_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_device: int, what: str, *_: object) -> list[dict[str, Any]]:
        name = "copy by kernel" if what == "copies" else what
        return [measured(name, 1000, 1e-6, errors=int(what == "merge"))]

    monkeypatch.setattr(_core, "find_gpus", lambda: {"gpus": [GPU], "driver_version": 12080})
    monkeypatch.setattr(_core, "measure_gpu", measure)
    assert cli.main(["kernels", "--sizes", "1M"]) == 1
    assert "# wrong bytes: 1\n" in capsys.readouterr().out
    measure_rightly = measured("copy by kernel", 1000, 1e-6)
    monkeypatch.setattr(_core, "measure_gpu", lambda *_: [measure_rightly])
    assert cli.main(["kernels", "--sizes", "1M"]) == 0


# -- On the fake driver ---------------------------------------------------------------------------


@needs_fake_cuda
def test_every_kind_of_row_is_measured_with_right_results(tmp_path: Path) -> None:
    file = tmp_path / "kernels.jsonl"
    quick = ["--rounds", "1", "--launches", "1", "--sizes", "20000"]
    variables = {
        "LD_LIBRARY_PATH": str(FAKE_CUDA.parent),
        "LIGHTCC_FAKE_CUDA": "devices=2",
    }
    done = subprocess.run(
        [*COMMAND, "--device", "1", "--json", str(file), *quick],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    machine, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert (machine["kind"], machine["gpu"]) == ("machine", "Simulated GPU")
    assert machine["driver_version"] == 12080
    names = [(row["size"], row["name"]) for row in rows]
    of_size = ["copy by kernel", "copy by driver", "exact step", "select pass", "select step"]
    of_size += ["merge"]
    assert names == [
        ("", "compile kernels"),
        ("", "compile again"),
        ("", "load kernels"),
        ("", "launch"),
        ("", "call to launch"),
        ("", "job to kernel end"),
        ("", "kernel end to host"),
        *[("20000", name) for name in of_size],
        ("resnet50", "copy by kernel"),
        ("resnet50", "copy by driver"),
        ("resnet50", "pack"),
        ("resnet50", "unpack"),
    ]
    assert not any(row["errors"] for row in rows)
    barred = [row for row in rows if row["bar"] is not None]
    assert [row["name"] for row in barred] == ["select pass", "pack", "unpack"]
    assert rows[-1]["elements"] == sum(gradients("resnet50"))
    assert all(row["share"] is not None for row in rows if row["bytes"])
    *_, wrong, last = done.stdout.splitlines()
    assert wrong == "# wrong bytes: 0"
    assert last.startswith("# bars met: ")
    assert last.endswith(" of 3")
