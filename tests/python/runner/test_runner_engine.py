"""The launcher with ranks that use the engine: they meet, and the right rank is blamed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import run_to_end

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.multiproc

PATIENCE_S = 120.0  # Ranks that import torch on a busy machine take a while.
EXAMPLES = Path(__file__).parents[3] / "examples"

TRAIN = """
import os, signal, sys
import numpy as np
import lightcc as hvd
hvd.init()
for step in range(20):
    if step == 5 and hvd.rank() == 1 and sys.argv[1] == "raise":
        raise ArithmeticError("bad loss")
    if step == 5 and hvd.rank() == 1 and sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 5 and hvd.rank() == 1 and sys.argv[1] == "exit":
        os._exit(7)
    total = hvd.allreduce(np.ones(4, np.float32), op=hvd.Sum, name="x")
    assert (total == hvd.size()).all()
print("rank", hvd.rank(), "of", hvd.size(), "local", hvd.local_rank())
"""


def launch(*argv: str) -> subprocess.CompletedProcess[bytes]:
    return run_to_end(
        [sys.executable, "-m", "lightcc.runner", *argv], text=False, timeout=PATIENCE_S
    )


def test_launched_ranks_meet_and_reduce() -> None:
    result = launch("-np", "3", sys.executable, "-c", TRAIN, "well")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        f"[{r}]<stdout>: rank {r} of 3 local {r}".encode() for r in range(3)
    ]


@pytest.mark.netns
def test_ranks_meet_where_loopback_has_ipv6_alone() -> None:
    only_ipv6 = 'ip link set lo up && ip address del 127.0.0.1/8 dev lo && exec "$@"'
    launcher = [sys.executable, "-m", "lightcc.runner", "-np", "2", "--no-prefix"]
    result = run_to_end(
        [
            "unshare",
            "-n",
            "sh",
            "-c",
            only_ipv6,
            "-",
            *launcher,
            sys.executable,
            "-c",
            TRAIN,
            "well",
        ],
        text=False,
        timeout=PATIENCE_S,
    )
    assert result.stdout.count(b" of 2 local ") == 2, result.stderr


COMPRESSED = """
import torch
import lightcc.torch as hvd
hvd.init()
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
hvd.DistributedOptimizer(optimizer, layer.named_parameters(), hvd.Compression.int8)
"""


def test_rank_0_says_once_what_has_no_effect_on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_CYCLE_TIME", "LIGHT_2D_ALLREDUCE", "LIGHT_TOPK_ALLREDUCE"):
        monkeypatch.setenv(name, "1")
    result = launch("-np", "2", sys.executable, "-c", COMPRESSED)
    for words in (b"HOROVOD_CYCLE_TIME has no effect", b"compression has no effect", b"one block"):
        assert result.stderr.count(words) == 1, result.stderr
    assert result.stderr.count(b"\n") == 3
    assert b"[1]" not in result.stderr


TORCH = """
import torch
import torch.distributed as dist
dist.init_process_group("lightcc")
total = torch.ones(2)
dist.all_reduce(total)
print(dist.get_rank(), dist.get_world_size(), total.tolist())
dist.destroy_process_group()
"""


def test_launched_ranks_have_what_torch_distributed_asks_for() -> None:
    pytest.importorskip("torch")
    result = launch("-np", "2", "--no-prefix", sys.executable, "-c", TORCH)
    assert sorted(result.stdout.splitlines()) == [b"0 2 [2.0, 2.0]", b"1 2 [2.0, 2.0]"], (
        result.stderr
    )


CHILD = """
import subprocess, sys
import numpy as np
import lightcc as hvd

if sys.argv[1] == "child":
    try:
        hvd.init()
    except ValueError as error:
        print(error)
    sys.exit()
hvd.init()
child = [sys.executable, "-c", sys.orig_argv[2], "child"]
if hvd.rank() == 0:
    print(subprocess.run(child, check=True, capture_output=True, text=True).stdout, end="")
print("sum", hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
hvd.shutdown()
"""


def test_a_child_of_a_rank_that_calls_init_is_told_so() -> None:
    result = launch("-np", "2", "--no-prefix", sys.executable, "-c", CHILD, "parent")
    told, *sums = sorted(result.stdout.decode().splitlines(), key=lambda it: it.startswith("sum"))
    assert "which is a rank and has started it; start it without the variables" in told
    assert sums == ["sum 2.0", "sum 2.0"]


def test_without_a_launcher_a_script_is_one_rank() -> None:
    result = run_to_end([sys.executable, "-c", TRAIN, "well"], text=False, timeout=PATIENCE_S)
    assert result.stdout == b"rank 0 of 1 local 0\n", result.stderr


def test_the_rank_that_raises_is_blamed_not_those_that_lose_it() -> None:
    result = launch("-np", "3", sys.executable, "-c", TRAIN, "raise")
    assert result.returncode == 1
    last = result.stderr.splitlines()
    blame = next(line for line in last if b"failed first" in line)
    assert b"rank 1 on localhost: exit code 1" in blame
    words = [line for line in last if line.startswith(b"[")]
    assert words[-1] == b"[1]<stderr>: ArithmeticError: bad loss"  # The last that ranks said.
    assert b"PeerFailedError: rank 1 ended with ArithmeticError: bad loss" in result.stderr


@pytest.mark.parametrize(
    ("how", "code", "blame", "told"),
    [
        ("die", 137, b"killed by SIGKILL", rb"by signal 9 \(Killed\)"),
        ("exit", 7, b"exit code 7", b"with exit code 7, without exit handlers"),
    ],
)
def test_how_a_rank_ended_is_told(how: str, code: int, blame: bytes, told: bytes) -> None:
    result = launch("-np", "3", sys.executable, "-c", TRAIN, how)
    assert result.returncode == code
    last = result.stderr.splitlines()[-1]
    assert last.startswith(b"lightccrun: failed first: rank 1 on localhost: " + blame)
    told = rb"PeerFailedError: rank 1 \(process \d+\) ended unexpectedly: " + told
    assert re.search(told, result.stderr), result.stderr


@pytest.mark.extra
@pytest.mark.parametrize("ranks", ["1", "3"])
def test_the_example_learns_and_its_replicas_are_identical(ranks: str) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which ships the data, is not installed")
    result = launch("-np", ranks, sys.executable, str(EXAMPLES / "numpy_training.py"), "5")
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert float(first.rpartition(b" ")[2]) > 0.85
    assert b"all ranks hold the same weights, bit for bit" in second
