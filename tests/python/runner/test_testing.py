"""lightcc.testing itself: results, errors, hangs and signals of ranks that touch no engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import is_running, run_to_end

from lightcc.testing import RankFailedError, RankProcesses, mark, spawn_ranks

pytestmark = pytest.mark.multiproc


def standing() -> tuple[int, ...]:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    return tuple(int(os.environ[f"LIGHT_{name}"]) for name in names)


def variable(name: str) -> str | None:
    return os.environ.get(name)


def scaled_rank(factor: int, *, offset: int = 1) -> int:
    return int(os.environ["LIGHT_RANK"]) * factor + offset


def fail_on(rank: int) -> int:
    if int(os.environ["LIGHT_RANK"]) == rank:
        msg = "bad loss"
        raise ZeroDivisionError(msg)
    return rank


class UnpicklableError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail_unpicklably() -> None:
    raise UnpicklableError(1, 2)


def hang_here() -> None:
    mark("hanging")
    time.sleep(600)


def hang_with_child() -> None:
    child = subprocess.Popen(["sleep", "600"])
    Path(os.environ["CHILD_FILE"]).write_text(f"{child.pid}\n")
    hang_here()


def leave() -> None:
    sys.stdout.write("leaving\n")
    sys.stdout.flush()
    os._exit(7)


def test_results_come_back_in_rank_order() -> None:
    assert spawn_ranks(scaled_rank, 3, 10) == [1, 11, 21]


def test_emulated_hosts_decide_local_and_cross_ranks() -> None:
    assert spawn_ranks(standing, 3, hosts=["a", "b", "a"]) == [
        (0, 3, 0, 2, 0, 2),
        (1, 3, 0, 1, 1, 2),
        (2, 3, 1, 2, 0, 1),
    ]
    assert spawn_ranks(variable, 2, "LIGHT_HOST_ID", hosts=[0, 1]) == ["host-0", "host-1"]


def test_variables_are_for_all_ranks_or_for_each() -> None:
    assert spawn_ranks(variable, 2, "X_TEST", env={"X_TEST": "1"}) == ["1", "1"]
    assert spawn_ranks(variable, 2, "X_TEST", env=[{"X_TEST": "1"}, {}]) == ["1", None]
    with pytest.raises(ValueError, match="need 2 entries"):
        spawn_ranks(variable, 2, "X_TEST", env=[{}])


def test_a_raising_rank_is_named_with_its_traceback_and_how_to_run_it_again() -> None:
    with pytest.raises(RankFailedError) as caught:
        spawn_ranks(fail_on, 2, 1)
    assert caught.value.rank == 1
    assert isinstance(caught.value.results[1].error, ZeroDivisionError)
    text = str(caught.value)
    assert text.startswith("rank 1 raised ZeroDivisionError: bad loss")
    assert "in fail_on" in text
    assert "run it again: python -m pytest" in text
    assert "test_a_raising_rank_is_named" in text


def test_an_exception_that_cannot_travel_arrives_as_its_text() -> None:
    with pytest.raises(RankFailedError, match="UnpicklableError: 1 and 2") as caught:
        spawn_ranks(fail_unpicklably, 1)
    assert isinstance(caught.value.results[0].error, RuntimeError)


def test_a_rank_that_leaves_without_a_result_is_a_failure_with_its_output() -> None:
    with pytest.raises(RankFailedError, match="rank 0 ended with exit code 7") as caught:
        spawn_ranks(leave, 1)
    assert "leaving" in str(caught.value)


def test_a_hanging_rank_shows_where_it_hangs() -> None:
    with pytest.raises(RankFailedError, match="rank 0 did not end in time") as caught:
        spawn_ranks(hang_here, 1, timeout_s=3)
    assert "in hang_here" in str(caught.value)


def test_killed_and_stopped_ranks_are_told_apart() -> None:
    with RankProcesses(hang_here, 3) as processes:
        processes.wait_mark("hanging")
        processes.stop(2)
        processes.kill(1)
        assert processes.wait(30, ranks=[1])[0].exit_code == -signal.SIGKILL
        assert is_running(processes.pids[0])
        late = processes.wait(0.1, ranks=[2, 0])
        assert [(result.rank, result.timed_out) for result in late] == [(2, True), (0, True)]
        pids = processes.pids
    assert not any(is_running(pid) for pid in pids)


def test_leaving_the_block_ends_ranks_and_their_children(tmp_path: Path) -> None:
    file = tmp_path / "child"
    with RankProcesses(hang_with_child, 1, env={"CHILD_FILE": str(file)}) as processes:
        processes.wait_mark("hanging")
        pids = [*processes.pids, int(file.read_text())]
        assert all(is_running(pid) for pid in pids)
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_waiting_for_a_mark_of_a_dead_rank_fails_at_once() -> None:
    with (
        RankProcesses(leave, 2) as processes,
        pytest.raises(RankFailedError, match=r"rank [01] did not reach 'hanging'"),
    ):
        processes.wait_mark("hanging", timeout_s=60)


def test_functions_that_cannot_be_imported_are_refused() -> None:
    def inner() -> None: ...

    with pytest.raises(ValueError, match="top level"):
        spawn_ranks(inner, 1)
    with pytest.raises(ValueError, match="top level"):
        spawn_ranks(lambda: None, 1)


def test_a_script_can_spawn_its_own_functions(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from lightcc.testing import spawn_ranks\n"
        "def answer(x):\n    return x + 1\n"
        "if __name__ == '__main__':\n    print(spawn_ranks(answer, 2, 41))\n"
    )
    result = run_to_end([sys.executable, str(script)], text=False, timeout=60)
    assert result.stdout == b"[42, 42]\n", result.stderr
