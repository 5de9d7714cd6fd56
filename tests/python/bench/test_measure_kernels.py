"""`measure/kernels.py`: its rows and its exit code, and every measurement on the fake driver."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import kernels
import pytest
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

from lightcc import _core


@pytest.mark.parametrize("wrong", ["", "merge"])
def test_rows_are_compared_with_the_faster_copy_and_wrong_results_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    def measure(_device: int, what: str, *_: object) -> list[dict[str, Any]]:
        names = ["copy by kernel", "copy by driver"] if what == "copies" else [what]
        seconds = {"copy by kernel": [4e-6, 1e-6, 2e-6], "copy by driver": [4e-6]}
        usual = {"bytes": 8000, "fits_cache": False, "has_gaps": what == "topk"}
        return [
            usual | {"name": n, "seconds": seconds.get(n, [4e-6]), "errors": int(n == wrong)}
            for n in names
        ]

    monkeypatch.setattr(_core, "measure_gpu", measure)
    assert kernels.main(["--sizes", "1M"]) == bool(wrong)
    rows = {tuple(line.split()[:2]): line for line in capsys.readouterr().out.splitlines()}
    assert rows["1M", "merge"].split()[6:] == ["2", "50%", str(int(bool(wrong)))]
    assert rows["1M", "topk"].endswith("the host was too slow")


def test_what_cannot_be_measured_is_a_row_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: object) -> list[dict[str, Any]]:
        msg = "no GPU, because the CUDA driver cannot be opened: x"
        raise NotImplementedError(msg)

    monkeypatch.setattr(_core, "measure_gpu", measure)
    assert kernels.main([]) == 1
    assert capsys.readouterr().out.count("not measured: no GPU, because the CUDA driver") == 14


@needs_fake_cuda
def test_every_measurement_has_right_results_on_the_fake_driver() -> None:
    quick = ["--device", "1", "--rounds", "1", "--launches", "1", "--sizes", "20000"]
    done = subprocess.run(
        [sys.executable, kernels.__file__, *quick],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=os.environ
        | {"LD_LIBRARY_PATH": str(FAKE_CUDA.parent), "LIGHTCC_FAKE_CUDA": "devices=2"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, *rows = done.stdout.splitlines()
    names = ["compile kernels", "compile again", "load kernels", "launch", "call to launch"]
    names += ["job to kernel end", "kernel end to host"]
    names += ["copy by kernel", "copy by driver", "exact step", "select pass", "select step"]
    names += ["merge", "copy by kernel", "copy by driver", "pack", "unpack"]
    assert [row[11:29].strip() for row in rows] == names
