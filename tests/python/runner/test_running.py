"""`lightcc.run` and `lightcc.notebook.run`: jobs that a program or a notebook starts."""

from __future__ import annotations

import importlib.util
import json
import operator
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from processes import run_to_end

import lightcc
import lightcc.notebook

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.multiproc

PROGRAM = """
import os
import lightcc as hvd

def work(a, b):
    hvd.init()
    total = int(hvd.allreduce(a * hvd.rank() + b, op=hvd.Sum))
    if b < 0 and hvd.rank() == 1:
        raise ValueError("negative")
    return total, os.environ.get("COLOUR"), os.environ["LIGHT_SIZE"]

if __name__ == "__main__":
    import numpy as np
    print(hvd.run(work, (np.float64(10),), {"b": 1}, np=2, environment={"COLOUR": "red"}))
    print(hvd.run(work, (np.float64(0), 1), hosts=["localhost:2"]))
    try:
        hvd.run(work, (np.float64(1), -1), np=2)
    except RuntimeError as error:
        print(error.rank, repr(error.__cause__))
"""


def test_run_returns_what_ranks_return_and_raises_what_they_raise(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_to_end([sys.executable, str(program)], timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "[(12, 'red', '2'), (12, 'red', '2')]",
        "[(2, None, '2'), (2, None, '2')]",
        "1 ValueError('negative')",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "np says how many ranks to start; it is needed without hosts"),
        ({"np": 0}, "np: '0' is not a number of ranks"),
        ({"np": 3, "hosts": "a:1,b:1"}, "np 3 needs 3 slots, but the hosts have 2"),
        ({"hosts": "a b"}, "hosts: 'a b' is not a host"),
        ({"np": 1, "start_timeout": -1}, "start_timeout: '-1' is not a number of seconds"),
    ],
)
def test_run_refuses_what_it_cannot_do(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        lightcc.run(operator.add, (1, 2), **arguments)


def test_functions_of_a_notebook_need_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ImportError, match=r"pip install 'lightcc\[notebook\]'"):
        lightcc.notebook.run(lambda: 1, np=1)


CELLS = [
    "import lightcc.notebook, lightcc as hvd, numpy as np\nfactor = 3",
    """
def work(x):
    hvd.init()
    print("hello from", hvd.rank())
    return factor * hvd.allgather(np.array([hvd.rank() + x])).sum()
""",
    "print(lightcc.notebook.run(work, (10,), np=2))",
    """
def fail():
    hvd.init()
    if hvd.rank() == 1:
        raise ArithmeticError("of the cell")
    hvd.barrier()

try:
    lightcc.notebook.run(fail, np=2)
except RuntimeError as error:
    print("failed:", error.rank, repr(error.__cause__))
""",
]


@pytest.mark.slow  # It needs Jupyter's kernel, which `make test-all` installs.
def test_cells_of_a_real_notebook_run_on_ranks(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    kernel = tmp_path / "kernels" / "own"  # This Python, whatever kernels the machine has.
    kernel.mkdir(parents=True)
    spec = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
    (kernel / "kernel.json").write_text(
        json.dumps(spec | {"display_name": "own", "language": "python"})
    )
    os.environ["JUPYTER_PATH"] = str(tmp_path)
    try:
        nbclient.NotebookClient(notebook, timeout=90, kernel_name="own").execute()
    finally:
        del os.environ["JUPYTER_PATH"]
    outputs = [
        "".join(one.get("text", "") for one in cell.outputs if one.get("name") == "stdout")
        for cell in notebook.cells
    ]
    assert sorted(outputs[2].splitlines()) == [
        "[0]<stdout>: hello from 0",
        "[1]<stdout>: hello from 1",
        "[np.int64(63), np.int64(63)]",
    ]
    assert "failed: 1 ArithmeticError('of the cell')" in outputs[3]
