"""The benchmark's calls of Horovod, on lightcc.torch, which takes the same ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lightcc
import lightcc.torch as hvd
from lightcc.bench import horovod_peer, worker
from lightcc.bench.cases import model_case, size_case


def library() -> Any:
    horovod = object.__new__(horovod_peer.Horovod)
    horovod.hvd, horovod.torch = hvd, torch
    horovod.rank, horovod.size = hvd.rank(), hvd.size()
    return horovod


def described(case: Any, mode: str = "") -> dict[str, Any]:
    known: dict[str, Any] = vars(case)
    return known | {"counts": list(case.counts), "mode": mode, "ratio": None}


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    "collective", ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"]
)
def test_every_collective_is_called(collective: str, inplace: bool) -> None:
    inplace = inplace and collective == "allreduce"
    case = size_case(
        collective,
        4096,
        1,
        dtype="float32",
        op="sum",
        inplace=inplace,
    )
    prepared = worker.Prepared(library(), described(case))
    assert prepared.count_errors()[0] == 0


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("op", ["sum", "average", "min", "max", "prod"])
def test_models_are_reduced_by_every_operation(op: str) -> None:
    case = model_case("resnet50", dtype="float32", op=op)
    prepared = worker.Prepared(library(), described(case, "async"))
    assert prepared.count_errors()[0] == 0


def test_what_is_lightcc_is_refused() -> None:
    with pytest.raises(RuntimeError, match="is lightcc"):
        horovod_peer.check_real(lightcc)
