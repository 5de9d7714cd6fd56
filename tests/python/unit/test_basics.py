"""init() and shutdown() of a process alone, and what can be asked of it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
from processes import run_to_end

import lightcc as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

QUESTIONS: list[Callable[[], object]] = [
    hvd.rank,
    hvd.size,
    hvd.local_rank,
    hvd.local_size,
    hvd.cross_rank,
    hvd.cross_size,
    hvd.is_homogeneous,
    hvd.mpi_threads_supported,
    hvd.stats,
    hvd.process_set_ids,
    hvd.get_process_set_ids_and_ranks,
    hvd.join,
    hvd.barrier,
    lambda: hvd.allreduce(np.zeros(1)),
    lambda: hvd.broadcast_object(1),
]


def test_questions_before_init_say_what_to_do() -> None:
    for ask in QUESTIONS:
        with pytest.raises(
            ValueError, match=r"lightcc has not been initialized; use hvd\.init\(\)\."
        ):
            ask()


def test_names_of_one_framework_say_where_they_are() -> None:
    with pytest.raises(
        AttributeError, match=r"which is in lightcc\.torch, lightcc\.tensorflow and"
    ):
        _ = hvd.DistributedOptimizer  # type: ignore[attr-defined]
    assert not hasattr(hvd, "allreducee")


def test_process_alone_is_a_world_of_one() -> None:
    assert not hvd.is_initialized()
    hvd.init()
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size()) == (0, 1)
    assert (hvd.local_rank(), hvd.local_size()) == (0, 1)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous() is True
    assert hvd.mpi_threads_supported() is False


def test_init_and_shutdown_can_be_repeated() -> None:
    hvd.shutdown()
    for _ in range(3):
        hvd.init()
        hvd.init()
        np.testing.assert_array_equal(hvd.allreduce(np.arange(3)), np.arange(3))
        hvd.shutdown()
        hvd.shutdown()
        assert not hvd.is_initialized()


def test_built_questions_are_answered_before_init() -> None:
    assert hvd.gloo_built() is hvd.gloo_enabled() is hvd.cuda_built() is True
    assert hvd.nccl_built() in {0, *range(22005, 100000)}
    for no in (hvd.mpi_built, hvd.mpi_enabled, hvd.ddl_built, hvd.ccl_built, hvd.rocm_built):
        assert no() is False


@pytest.mark.usefixtures("world")
def test_stats_count_completed_operations() -> None:
    before = hvd.stats()
    hvd.allreduce(np.zeros(256, np.float32))
    after = hvd.stats()
    assert set(after) == {
        "steps",
        "operations",
        "in_flight",
        "last_asked",
        "awaited_ranks",
        "awaited_seconds",
        "slow_ranks",
        "slow_factor",
        "network_retransmits",
        "buckets",
        "inline_allreduces",
        "one_shot_allreduces",
        "staged_buckets",
        "nccl_buckets",
        "nccl_two_level_buckets",
        "nccl_unfinished_buckets",
        "payload_bytes",
        "network_bytes_sent",
        "network_bytes_received",
        "control_frames_sent",
        "sleeps",
        "yields",
        "slow_yields",
        "compressed_tensors",
        "compressed_on_gpu",
        "compressed_dense_bytes",
        "compressed_sent_bytes",
        "compression_passes",
        "compression_kept_ratio",
        "compression",
        "allreduce_costs",
        "fusion",
    }
    assert after["operations"] == before["operations"] + 1


def test_knob_with_a_bad_value_is_named_at_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHT_NUM_STREAMS", "x")
    with pytest.raises(ValueError, match=r"LIGHT_NUM_STREAMS.*x") as caught:
        hvd.init()
    assert len(caught.traceback) == 2  # This line and init() alone.
    assert not hvd.is_initialized()
    monkeypatch.delenv("LIGHT_NUM_STREAMS")
    hvd.init()


def test_unknown_variable_is_warned_about_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LIGHT_NUM_STREAM", "2")
    with pytest.warns(RuntimeWarning, match=r"LIGHT_NUM_STREAM.*LIGHT_NUM_STREAMS"):
        hvd.init()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("HOROVOD_CONTROLLER", "mpi", "negotiates itself, and never over MPI"),
        ("HOROVOD_CPU_OPERATIONS", "ccl", r"carries the data itself.*\(LIGHT_NET\)"),
        ("HOROVOD_CPU_OPERATIONS", "mpi", r"carries the data itself.*\(LIGHT_NET\)"),
    ],
)
def test_programs_that_are_not_there_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.warns(RuntimeWarning, match=f'{name}="{value}" has no effect.*{why}'):
        hvd.init()
    hvd.shutdown()
    monkeypatch.setenv(name, "gloo")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hvd.init()


def test_comm_is_ranks_or_a_communicator() -> None:
    with pytest.raises(TypeError, match="expected ranks, such as"):
        hvd.init(comm="all")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="communicator of mpi4py"):
        hvd.init(comm=3)  # type: ignore[arg-type]


def test_init_reads_the_launchers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHT_RANK", "5")
    monkeypatch.setenv("LIGHT_SIZE", "2")
    with pytest.raises(ValueError, match='LIGHT_RANK="5": expected an integer from 0 to 1'):
        hvd.init()
    assert not hvd.is_initialized()


def test_world_left_open_is_shut_down_at_exit() -> None:
    code = "import lightcc as hvd, numpy as np; hvd.init(); hvd.allreduce_async(np.zeros(9))"
    done = run_to_end([sys.executable, "-c", code], timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


IN_A_FORKED_CHILD = """
import os, lightcc as hvd, numpy as np

def end_child(child, work):
    if child != 0:
        assert os.waitpid(child, 0)[1] == 0
        return
    for call in work:
        try:
            print(call(), flush=True)
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
    raise SystemExit(0)

end_child(os.fork(), [hvd.init, hvd.size])
hvd.init()
handle = hvd.allreduce_async(np.zeros(3))
x = np.zeros(1)
calls = [hvd.rank, hvd.init, lambda: hvd.allreduce(x), hvd.barrier, hvd.join]
end_child(
    os.fork(), [*calls, lambda: hvd.synchronize(handle), hvd.is_initialized, hvd.shutdown]
)
assert hvd.allreduce(np.ones(2)).tolist() == [1, 1]
hvd.synchronize(handle)
"""


def test_a_forked_child_is_told_so_and_one_of_before_init_may_init() -> None:
    # Newer Pythons warn about every fork of a process that has threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", IN_A_FORKED_CHILD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert (lines[:2], lines[-2:]) == (["None", "1"], ["False", "None"])
    assert len(lines) == 10
    for line in lines[2:8]:
        assert line.startswith("ShutDownError")
    for line in lines[2:7]:
        assert line.startswith("ShutDownError lightcc was initialized in the process that forked")
        assert "spawn" in line
