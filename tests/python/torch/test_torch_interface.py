"""Horovod's interface for torch: names, signatures, documentation, and what an import loads."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lightcc.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

HOROVOD = json.loads((Path(__file__).parent / "horovod_torch_api.json").read_text())

#: Names of Horovod that lightcc does not have yet.
NOT_YET: set[str] = set()
#: Modules of Horovod whose signatures are compared.
MODULES = ["compression", "functions", "mpi_ops", "optimizer", "sync_batch_norm"]
#: Parameters that lightcc has after Horovod's.
ADDED = {
    "allgather": ", compression=Compression.none",
    "grouped_allgather": ", compression=Compression.none",
    "allgather_object": ", process_set=global_process_set",
    # All of them by keyword only.
    "DistributedOptimizer": (
        ", fusion_type=None, auto_fusion_threshold=None, piecewise_fusion_schedule=None, "
        "scopewise_fusion_schedule=None"
    ),
}


def spelled(default: Any) -> str:
    names = {
        id(hvd.global_process_set): "global_process_set",
        id(hvd.Compression.none): "Compression.none",
        id(hvd.Average): "Average",
    }
    return names.get(id(default), repr(default))


def signature(function: Callable[..., Any]) -> str:
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        star = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
        given = parameter.default is not inspect.Parameter.empty
        parts.append(f"{star}{parameter.name}" + f"={spelled(parameter.default)}" * given)
    return ", ".join(parts)


@pytest.mark.parametrize("module", MODULES)
def test_signatures_are_horovods(module: str) -> None:
    ours = importlib.import_module(f"lightcc.torch.{module}")
    assert HOROVOD[module]
    for name, expected in HOROVOD[module].items():
        function: Any = ours
        for part in name.split("."):
            function = getattr(function, part)
        assert signature(function) == expected + ADDED.get(name, ""), name


def test_names_are_horovods() -> None:
    assert set(HOROVOD["names"]) - set(hvd.__all__) == NOT_YET
    assert set(HOROVOD["names"]) - set(dir(hvd)) == NOT_YET
    assert hvd.mpi_ops.allreduce is hvd.allreduce
    assert dir(hvd) == sorted(hvd.__all__)
    for frontend in (hvd, hvd.mpi_ops):
        assert set(dir(frontend)) >= set(frontend.__all__)
        assert len(frontend.__all__) == len(set(frontend.__all__))


def test_everything_public_is_documented() -> None:
    for name in hvd.__all__:
        value = getattr(hvd, name)
        text = inspect.getdoc(value) or ""
        if inspect.isfunction(value) or inspect.isclass(value):
            assert text[:1].isupper(), name
        if inspect.isfunction(value) and "async" not in name:
            missing = [p for p in inspect.signature(value).parameters if f"\n    {p}: " not in text]
            assert not missing, (name, missing)


@pytest.mark.parametrize("name", ["", ".functions", ".reductions"])
def test_examples_in_docstrings_are_right(name: str) -> None:
    hvd.init()
    result = doctest.testmod(importlib.import_module(f"lightcc.torch{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_lightcc_takes_torch_tensors_without_importing_torch_itself() -> None:
    code = (
        "import sys, numpy, lightcc as hvd; hvd.init(); hvd.allreduce(numpy.ones(1)); "
        "assert 'torch' not in sys.modules; "
        "import torch; print(hvd.allreduce(torch.ones(2))); "
        "assert 'lightcc.torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "tensor([1., 1.])"


def test_without_torch_the_exchange_table_cannot_be_chosen() -> None:
    code = "from lightcc import _core; _core.use_torch_exchange(True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ValueError: torch has not been imported." in done.stderr
