"""`lightcc.bench --device cuda` where there is no GPU: what is refused, and what counts."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

from lightcc import _core
from lightcc.bench import cli, gpus, worker
from lightcc.bench.variants import COLLECTIVES

if TYPE_CHECKING:
    import pytest


def test_carriers_of_gpu_tensors_are_told_apart() -> None:
    library = object.__new__(worker.Lightcc)
    counted = {"staged_buckets": 1, "nccl_buckets": 5, "nccl_two_level_buckets": 2}
    library.hvd = SimpleNamespace(stats=lambda: counted)
    assert library.carriers() == {"host staged": 1, "NCCL": 3, "two levels": 2}


def test_variants_of_gpus_say_what_they_need() -> None:
    names = ("lightcc+nccl", "2d+nccl", "nccl")
    variants = [COLLECTIVES[name] for name in names]
    assert {variant.device for variant in variants} == {"cuda"}
    assert COLLECTIVES["lightcc"].device == ""
    assert [v.has_nccl_between_hosts for v in variants] == [True, False, True]
    assert [v.uses_tcp for v in variants] == [False, True, False]


GPU = {"name": "A GPU", "objection": ""}


def use_gpus(monkeypatch: pytest.MonkeyPatch, *found: dict[str, str]) -> None:
    monkeypatch.setattr(_core, "find_gpus", lambda: {"gpus": list(found)})


def test_a_machine_without_a_gpu_is_told_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find() -> None:
        msg = "no GPU, because the CUDA driver cannot be opened: x"
        raise NotImplementedError(msg)

    monkeypatch.setattr(_core, "find_gpus", find)
    assert cli.main(["allreduce", "--device", "cuda"]) == 1
    expected = "lightcc.bench: --device cuda: no GPU, because the CUDA driver cannot be opened: x\n"
    assert capsys.readouterr().err == expected
    use_gpus(monkeypatch, GPU, GPU | {"objection": "it is too old"})
    assert cli.main(["allreduce", "--device", "cuda"]) == 1
    assert "GPU 1 (A GPU) is of no use: it is too old" in capsys.readouterr().err


def test_a_torch_without_cuda_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_gpus(monkeypatch, GPU)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.main(["allreduce", "--device", "cuda"]) == 1
    told = capsys.readouterr().err
    assert "--device cuda: tensors of a GPU are torch's, but torch " in told


def test_torchs_nccl_wants_a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"torch": "", "nccl": ""}

    def run(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 0, json.dumps(said) + "\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert gpus.why_no_nccl(2, 2) == ""
    assert "a GPU for each of 3 ranks, and there are 2" in gpus.why_no_nccl(2, 3)
    said["nccl"] = "torch 2 has no NCCL"
    assert gpus.why_no_nccl(2, 2) == "torch 2 has no NCCL"
