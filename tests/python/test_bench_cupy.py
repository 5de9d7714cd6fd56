"""`lightcc.bench` on arrays of CuPy, for which a module over the fake driver stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

from lightcc.bench.cases import model_case, size_case
from lightcc.bench.variants import COLLECTIVES
from lightcc.bench.workers import WorkerGroup

SITE = str(Path(__file__).parent / "cupy_site")

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has processes that are started find them."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKE_CUDA.parent))
    monkeypatch.setenv("LIGHTCC_FAKE_CUDA", "devices=2")
    monkeypatch.setenv("LIGHT_NCCL_LIBRARY", str(FAKE_CUDA.parent / "libnccl.so.2"))


def answers_to(group: WorkerGroup, case: dict[str, Any]) -> list[tuple[int, str]]:
    """Returns wrong elements, and what carried the arrays, of each rank."""
    request = {"case": case, "warmup": 1, "iterations": 2, "check": True}
    answers = group.ask(request)
    assert [len(answer["times"]) for answer in answers] == [2, 2]
    return [(answer["errors"], answer["plane"]) for answer in answers]


@pytest.mark.parametrize(("variant", "plane"), [("cupy+nccl", "NCCL"), ("cupy", "host staged")])
def test_every_collective_is_right_and_says_what_carried_it(
    monkeypatch: pytest.MonkeyPatch, variant: str, plane: str
) -> None:
    monkeypatch.syspath_prepend(SITE)
    cases = [
        ("allreduce", "float32", "sum", False),
        ("allreduce", "float64", "average", True),
        ("allgather", "float32", "none", False),
        ("broadcast", "int64", "none", False),
        ("alltoall", "float32", "none", False),
        ("reducescatter", "float16", "sum", False),
        ("memcpy", "float32", "none", False),
    ]
    with WorkerGroup(COLLECTIVES[variant], 2, device="cuda") as group:
        for collective, dtype, op, inplace in cases:
            case = vars(size_case(collective, 4096, 2, dtype=dtype, op=op, inplace=inplace))
            case |= {"collective": collective, "op": op, "mode": "", "ratio": None}
            expected = "" if collective == "memcpy" else plane
            assert answers_to(group, case) == [(0, expected)] * 2, case
        case = vars(model_case("vgg16", dtype="float32", op="sum"))
        case |= {"counts": [5, 1000, 7], "mode": "async", "ratio": None}
        assert answers_to(group, case) == [(0, plane)] * 2


def test_the_command_needs_no_torch_for_arrays_of_cupy(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    without_torch = tmp_path / "torch.py"
    without_torch.write_text("raise ImportError('there is no torch')\n")
    quick = ["--sizes", "4K", "--rounds", "1", "--iterations", "2", "--json", str(file)]
    argv = ["allreduce", "--device", "cuda", "--variants", "cupy+nccl,cupy", *quick]
    done = subprocess.run(
        [sys.executable, "-m", "lightcc.bench", *argv],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{SITE}:{tmp_path}"},
    )
    assert done.returncode == 0, done.stderr
    machine, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert machine["without_nccl"] == "all variants have arrays of CuPy"
    assert [(row["library"], row["device"], row["plane"], row["errors"]) for row in rows] == [
        ("cupy+nccl", "cuda", "NCCL", 0),
        ("cupy", "cuda", "host staged", 0),
        ("memcpy", "cuda", "", 0),
    ]
