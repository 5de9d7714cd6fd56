"""`lightcc.bench --device cuda`, with a CPU build of torch and the fakes of CUDA and NCCL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_torch import build_guard
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

from lightcc.bench.cases import model_case, size_case
from lightcc.bench.variants import COLLECTIVES
from lightcc.bench.workers import WorkerGroup

pytestmark = [pytest.mark.multiproc, needs_fake_cuda, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parents[1]
SITE = str(HERE / "cuda_site")


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has processes that are started find them."""
    build_guard()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKE_CUDA.parent))
    monkeypatch.setenv("LIGHTCC_FAKE_CUDA", "devices=2")
    monkeypatch.setenv("LIGHT_NCCL_LIBRARY", str(FAKE_CUDA.parent / "libnccl.so.2"))


def test_every_collective_is_right_and_says_what_carried_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.syspath_prepend(SITE)
    by_nccl = [
        *(("allreduce", "float32", op) for op in ("sum", "average", "max", "prod")),
        ("allreduce", "float16", "sum"),
        ("allgather", "float32", "none"),
        ("broadcast", "int64", "none"),
        ("alltoall", "float64", "none"),
        ("reducescatter", "float32", "sum"),
    ]
    expected = dict.fromkeys(by_nccl, "NCCL")
    expected["allreduce", "int32", "average"] = "host staged"
    expected["memcpy", "float32", "none"] = ""
    found = {}
    with WorkerGroup(COLLECTIVES["lightcc+nccl"], 2, device="cuda") as group:
        for collective, dtype, op in expected:
            case = vars(size_case(collective, 4096, 2, dtype=dtype, op=op, inplace=False))
            case |= {"collective": collective, "op": op, "mode": "", "ratio": None}
            request = {"case": case, "warmup": 1, "iterations": 2, "check": True}
            answers = group.ask(request)
            assert [answer["errors"] for answer in answers] == [0, 0], case
            assert [len(answer["times"]) for answer in answers] == [2, 2]
            found[collective, dtype, op] = answers[0]["plane"]
        case = vars(model_case("vgg16", dtype="float32", op="sum"))
        case |= {"counts": [5, 1000, 7], "mode": "async", "ratio": None}
        answers = group.ask({"case": case, "warmup": 0, "iterations": 1, "check": True})
    assert found == expected
    assert [(answer["errors"], answer["plane"]) for answer in answers] == [(0, "NCCL")] * 2


def test_the_command_names_gpus_and_planes(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    quick = ["--sizes", "4K", "--rounds", "1", "--iterations", "2", "--json", str(file)]
    argv = ["allreduce", "--device", "cuda", "--variants", "lightcc+nccl", *quick]
    done = subprocess.run(
        [sys.executable, "-m", "lightcc.bench", *argv],
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{SITE}:{HERE}"},
    )
    assert done.returncode == 0, done.stderr
    machine, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert machine["gpus"] == ["Simulated GPU", "Simulated GPU"]
    assert machine["without_nccl"].endswith("has no NCCL")
    assert [(row["library"], row["device"], row["plane"], row["errors"]) for row in rows] == [
        ("lightcc+nccl", "cuda", "NCCL", 0),
        ("memcpy", "cuda", "", 0),
    ]
    assert "# GPU 1: Simulated GPU\n" in done.stdout
    assert "# torch's NCCL is not beside it: torch " in done.stdout
    assert "        NCCL\n" in done.stdout
