"""The public surface: exactly `__all__`, all of it documented, all of it cheap to import."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
import types

import pytest

import lightcc as hvd

SUBMODULES = {module.name for module in pkgutil.iter_modules(hvd.__path__)}
DOCUMENTED = sorted(set(hvd.__all__) - {"__version__"})


def test_all_is_exactly_what_the_package_defines() -> None:
    defined = {
        name
        for name, value in vars(hvd).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    defined -= {"annotations"}
    assert sorted([*defined, "__version__", "elastic"]) == sorted(hvd.__all__) == dir(hvd)


def test_what_is_printed_says_what_it_is() -> None:
    top_k = "values='fp32', fp16=False, warmup_steps=0, momentum_correction=False, exact=False"
    assert repr(hvd.Compression.topk(0.1)) == f"TopKCompressor(ratio=0.1, {top_k})"
    assert "'ProcessSet' = global_process_set)" in str(inspect.signature(hvd.barrier))
    hvd.init()
    lines = repr(hvd.stats()).splitlines()
    assert lines[0] == "Statistics("
    assert "steps" not in "".join(lines)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_name_has_a_docstring(name: str) -> None:
    value = getattr(hvd, name)
    if isinstance(value, hvd.ReduceOp | hvd.ProcessSet):  # Constants: their class is documented.
        value = type(value)
    assert inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value)
    text = inspect.getdoc(value) or ""
    summary = text.split("\n\n", maxsplit=1)[0]
    assert summary[:1].isupper()
    assert summary.rstrip()[-1] in ".:"
    assert value.__doc__, "inherited, not its own"


@pytest.mark.parametrize(
    "name", [n for n in DOCUMENTED if inspect.isfunction(getattr(hvd, n)) and "async" not in n]
)
def test_docstring_describes_every_parameter(name: str) -> None:
    function = getattr(hvd, name)
    text = inspect.getdoc(function) or ""
    missing = [p for p in inspect.signature(function).parameters if f"\n    {p}: " not in text]
    assert not missing


@pytest.mark.parametrize("name", ["", "._ops.functions", ".process_sets", "._ops.reductions"])
def test_examples_in_docstrings_are_right(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"lightcc{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_import_loads_no_framework_and_not_numpy() -> None:
    code = (
        "import sys, lightcc; "
        "print(sorted({'numpy', 'torch', 'tensorflow', 'keras'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_signatures_are_horovods() -> None:
    reduce = "tensor average name {}op prescale_factor postscale_factor process_set"
    scatter = "tensor name {}op process_set prescale_factor postscale_factor"
    expected = {
        "init": "comm process_sets",
        "allreduce": reduce.format("compression "),
        "allreduce_": reduce.format(""),
        "allreduce_async": reduce.format(""),
        "allreduce_async_": reduce.format(""),
        "grouped_allreduce": reduce.replace("tensor", "tensors", 1).format("compression "),
        "grouped_allreduce_": reduce.replace("tensor", "tensors", 1).format(""),
        "allgather": "tensor name process_set compression",  # The last one is ours.
        "broadcast": "tensor root_rank name process_set",
        "alltoall": "tensor splits name process_set",
        "reducescatter": scatter.format("compression "),
        "reducescatter_async": scatter.format(""),
        "grouped_reducescatter": scatter.replace("tensor", "tensors", 1).format("compression "),
        "broadcast_object": "obj root_rank name process_set",
        "join": "device",
        "barrier": "process_set",
    }
    for name, parameters in expected.items():
        assert " ".join(inspect.signature(getattr(hvd, name)).parameters) == parameters, name


def test_reduce_ops_have_horovods_numbers() -> None:
    ops = (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)
    assert [int(op) for op in ops] == [0, 1, 2, 3, 4, 5]
