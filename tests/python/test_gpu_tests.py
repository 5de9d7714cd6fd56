"""Tests of GPUs (`make test-gpu`) run on the fakes of CUDA and NCCL, with a CPU build of torch.

So what only somebody with a GPU runs has run before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

HERE = Path(__file__).parent
#: Which tests of each file run here; none of those whose programs and functions other tests run on
#: the fakes: torch/test_examples.py, torch/test_bench_cuda.py, test_bench_kernels.py, and
#: test_gpu_nccl.py and test_gpu_failures.py in parallel/.
CHOSEN: dict[str, list[str]] = {
    "test_failures_on_gpus.py": [],
    "test_gpu_bench.py": ["::test_arrays_of_cupy_give_right_results[allgather]"],
    "test_gpu_examples.py": [],
    "test_gpu_kernels.py": [],
    "test_gpu_operations.py": [""],
    "test_gpu_training.py": [
        "::test_two_processes_on_one_gpu_train_as_with_copies_on_the_host",
        "::test_two_ranks_train_by_nccl[True]",
        "::test_the_host_goes_on_while_the_gpu_is_held",
    ],
    "test_gpus.py": [""],
    "test_nccl_on_gpus.py": [],
    "test_timeline_on_gpus.py": ["::test_gradients_by_nccl"],
}
#: Modules that stand for CuPy and for a torch with CUDA, and what they are made of.
SITES = [str(HERE / "cuda_site"), str(HERE / "cupy_site"), str(HERE)]


def test_every_file_is_listed() -> None:
    files = [file for file in (HERE / "gpu").glob("test_*.py") if "mark.gpu" in file.read_text()]
    assert {file.name for file in files} == set(CHOSEN)


@needs_fake_cuda
@pytest.mark.multiproc
@pytest.mark.parametrize("name", [name for name, chosen in CHOSEN.items() if chosen])
def test_tests_of_gpus_pass_on_fakes(tmp_path: Path, name: str) -> None:
    report = tmp_path / "report.xml"
    tests = [str(HERE / "gpu" / name) + test for test in CHOSEN[name]]
    settings = {
        "LD_LIBRARY_PATH": str(FAKE_CUDA.parent),
        "LIGHTCC_FAKE_CUDA": "devices=1",
        "PYTHONPATH": os.pathsep.join(SITES),
    }
    options = ["-m", "gpu", "-n0", "-p", "no:cacheprovider", "--junitxml", str(report)]
    options += ["-c", str(HERE.parents[1] / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=230,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | settings,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    suite = next(ET.parse(report).iter("testsuite"))
    assert suite.get("skipped") == "0", done.stdout
    assert int(suite.get("tests", "0")) >= len(tests)
