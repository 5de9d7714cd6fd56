"""Ranks that Spark starts, on a real Spark of two executors.

Skipped where pyspark is not installed; `make test-all` installs it.
"""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import run_to_end

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyspark

import lightcc.spark
from lightcc.runner.call import CallError
from lightcc.spark.task import slot_of_task

# Spark leaves sockets open.
pytestmark = [pytest.mark.slow, pytest.mark.multiproc, pytest.mark.filterwarnings("default")]
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "running" / "spark.md"
PATIENCE_S = 220.0


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    """Two executors of two cores each."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = pyspark.SparkConf().setMaster("local-cluster[2,2,512]").setAppName("lightcc")
    conf.set("spark.ui.enabled", "false").set("spark.executor.memory", "512m")
    conf.set("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    conf.set("spark.scheduler.barrier.maxConcurrentTasksCheck.interval", "1s")
    made = pyspark.SparkContext(conf=conf)
    made.parallelize(range(4), 4).count()  # Waits for both executors.
    yield made
    made.stop()
    del os.environ["PYSPARK_PYTHON"]


@pytest.mark.usefixtures("context")
def test_ranks_of_two_executors_make_one_world() -> None:
    def standing(base: float, name: str) -> tuple[Any, ...]:
        import numpy as np

        import lightcc as hvd

        hvd.init()
        sys.stdout.write(f"rank {hvd.rank()}\n")
        sys.stderr.write(f"of {hvd.size()}\n")
        total = hvd.allreduce(np.full(3, base ** hvd.rank()), op=hvd.Sum).tolist()
        names = ("LIGHT_RANK", "HOROVOD_LOCAL_RANK", "LIGHT_CROSS_SIZE")
        return (*(os.environ[it] for it in names), total, os.environ[name])

    out, err = io.StringIO(), io.StringIO()
    found = lightcc.spark.run(
        standing, (10.0,), {"name": "EXTRA"}, 4, env={"EXTRA": "5"}, stdout=out, stderr=err
    )
    assert found == [(str(it), str(it), "1", [1111.0] * 3, "5") for it in range(4)]
    assert out.getvalue().splitlines() == [f"[{it}]<stdout>:rank {it}" for it in range(4)]
    assert [f"[{it}]<stderr>:of 4" for it in range(4)] == [
        line for line in err.getvalue().splitlines() if ":of" in line
    ]


@pytest.mark.usefixtures("context")
def test_the_rank_to_blame_is_named_and_its_error_is_the_cause() -> None:
    def fail() -> None:
        import numpy as np

        import lightcc as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise LookupError("of rank 1")
        hvd.allreduce(np.ones(3), name="never")

    with pytest.raises(CallError, match=r"rank 1 on .*: LookupError: of rank 1") as caught:
        lightcc.spark.run(fail, num_proc=2)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.usefixtures("context")
def test_a_process_that_dies_is_named_with_its_exit_code() -> None:
    with pytest.raises(CallError, match=r"rank 0 on .*: exit code 7"):
        lightcc.spark.run(lambda: os._exit(7), num_proc=1)


def test_too_few_cores_are_an_error_in_time_and_the_next_job_runs(context: Any) -> None:
    with pytest.raises(
        TimeoutError, match=r"^Timed out waiting for Spark tasks to start\. 9 ranks"
    ):
        lightcc.spark.run(os.getpid, num_proc=9, start_timeout=2)
    assert context.defaultParallelism == 4
    assert len(set(lightcc.spark.run(os.getpid))) == 4


@pytest.mark.usefixtures("context")
def test_arguments_that_are_not_allowed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="num_proc=0: expected at least 1"):
        lightcc.spark.run(os.getpid, num_proc=0)
    with pytest.raises(ValueError, match="start_timeout=-1"):
        lightcc.spark.run(os.getpid, num_proc=1, start_timeout=-1)
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="HOROVOD_SPARK_START_TIMEOUT=soon: expected seconds > 0"):
        lightcc.spark.run(os.getpid, num_proc=1)
    with (
        pytest.warns(RuntimeWarning, match="use_mpi and extra_mpi_args have no effect"),
        pytest.raises(ValueError, match="num_proc=0"),
    ):
        lightcc.spark.run(os.getpid, num_proc=0, use_mpi=True)


def train_steps(steps: int, folder: str, dies_at: int | None) -> tuple[int, float, list[int]]:
    """Sums over all ranks in each step; worker 1 loses its agent in a step, if one is given.

    Returns the steps, the sum and the sizes of the worlds. Later steps wait for a full world.
    """
    import signal
    import time
    from pathlib import Path

    import numpy as np

    import lightcc as hvd

    hvd.init()
    died = Path(folder, "died")

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < steps:
            if state.step == dies_at and os.environ["LIGHT_WORKER"] == "1" and not died.exists():
                died.touch()
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(PATIENCE_S)
            size = int(hvd.allreduce(np.ones(1), op=hvd.Sum, name="size")[0])
            if not state.sizes or state.sizes[-1] != size:
                state.sizes = [*state.sizes, size]
            if dies_at is not None and state.step > dies_at and size < 3:
                time.sleep(0.2)  # Until Spark has started the task anew.
            else:
                state.step += 1
                state.total += float(size)
            state.commit()

    begun: dict[str, Any] = {"step": 0, "total": 0.0, "sizes": []}
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, **begun)
    train(state)
    return state.step, state.total, state.sizes


@pytest.mark.usefixtures("context")
def test_an_elastic_job_returns_what_its_ranks_return(tmp_path: Path) -> None:
    out = io.StringIO()
    found = lightcc.spark.run_elastic(
        train_steps, (5, str(tmp_path)), {"dies_at": None}, num_proc=3, stdout=out
    )
    assert found == [(5, 15.0, [3])] * 3


@pytest.mark.usefixtures("context")
def test_a_task_that_is_lost_is_started_again_and_joins_again(tmp_path: Path) -> None:
    err = io.StringIO()
    found = lightcc.spark.run_elastic(
        train_steps, (8, str(tmp_path), 3), num_proc=3, min_num_proc=2, stderr=err
    )
    assert (tmp_path / "died").exists()
    assert [it[0] for it in found] == [8] * len(found), err.getvalue()
    assert found[0] == found[1]
    sizes = found[0][2]
    assert sizes[0] == 3, err.getvalue()
    assert sizes[-1] == 3, err.getvalue()


@pytest.mark.usefixtures("context")
def test_what_an_elastic_function_raises_is_the_cause() -> None:
    def fail() -> None:
        raise LookupError("of each rank")

    with pytest.raises(CallError, match="LookupError: of each rank") as caught:
        lightcc.spark.run_elastic(fail, num_proc=1, reset_limit=0, stderr=io.StringIO())
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.usefixtures("context")
def test_an_elastic_job_says_which_arguments_and_cores_it_needs() -> None:
    with pytest.raises(ValueError, match=r"min_num_proc 3, num_proc 2, max_num_proc 2: must not"):
        lightcc.spark.run_elastic(os.getpid, num_proc=2, min_num_proc=3)
    with (
        pytest.warns(DeprecationWarning, match="min_np is deprecated, use min_num_proc instead"),
        pytest.raises(ValueError, match="num_proc=0: expected at least 1"),
    ):
        lightcc.spark.run_elastic(os.getpid, num_proc=0, min_np=1)
    with pytest.raises(
        TimeoutError, match=r"^Timed out waiting for Spark tasks to start\. 9 ranks"
    ):
        lightcc.spark.run_elastic(os.getpid, num_proc=9, start_timeout=2, stderr=io.StringIO())


def test_without_a_context_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)
    for run in (lightcc.spark.run, lightcc.spark.run_elastic):
        with pytest.raises(RuntimeError, match="Could not find an active SparkContext"):
            run(os.getpid, num_proc=1)


def test_ranks_of_a_host_are_neighbours_and_task_0_is_rank_0() -> None:
    slots = [slot_of_task(index, ["b", "a", "b", "a", "b"]) for index in range(5)]
    assert [(it.host, it.rank, it.local_rank, it.cross_rank) for it in slots] == [
        ("b", 0, 0, 0),
        ("a", 3, 0, 1),
        ("b", 1, 1, 0),
        ("a", 4, 1, 1),
        ("b", 2, 2, 0),
    ]


@pytest.mark.parametrize(
    ("program", "said"), [("spark_job.py", "[0.5, 0.5]"), ("spark_elastic.py", "[3")]
)
def test_the_programs_of_the_guide_run(tmp_path: Path, program: str, said: str) -> None:
    block = re.search(
        rf'```python title="{program}"\n(.*?)^```$',
        GUIDE.read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )
    assert block is not None
    (tmp_path / program).write_text(block[1])
    done = run_to_end(
        [sys.executable, program],
        cwd=tmp_path,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        timeout=PATIENCE_S,
    )
    assert said in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]
