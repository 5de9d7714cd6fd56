"""Which rank this process is, from the environment; and what cannot be told from it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lightcc._discovery import Epoch, check_not_child, discover, mark, pmix

if TYPE_CHECKING:
    from pathlib import Path

JOB = {
    "LIGHT_RANK": "1",
    "LIGHT_SIZE": "4",
    "LIGHT_RENDEZVOUS": "10.0.0.1:4000",
    "LIGHT_SECRET": "s3cret",
}


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in JOB.items() if key != name}


def test_no_variables_is_one_process() -> None:
    assert discover(environment={}) == Epoch()


def test_lightccrun_variables_are_taken() -> None:
    assert discover(environment=JOB) == Epoch(1, 4, "10.0.0.1:4000", "s3cret")


def test_ipv6_rendezvous_is_taken() -> None:
    job = discover(environment=JOB | {"LIGHT_RENDEZVOUS": "[::1]:5"})
    assert job.rendezvous == "[::1]:5"


@pytest.mark.parametrize(
    ("marked_by", "changed", "is_refused"),
    [
        (os.getppid(), {}, True),
        (os.getpid(), {}, False),  # It has left its world, and makes another one.
        (os.getppid(), {"LIGHT_RENDEZVOUS": "10.0.0.1:5000"}, False),  # A job within the job.
        (2**22 + 1, {}, False),  # There is no such process.
    ],
    ids=["child", "itself", "job within", "parent gone"],
)
def test_a_child_of_a_rank_is_told_so(
    marked_by: int, changed: dict[str, str], *, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LIGHTCC_RANK_OF", "")  # Restores it afterwards.
    mark(is_rank=True)
    pid, _, position = os.environ["LIGHTCC_RANK_OF"].partition(" ")
    assert pid == str(os.getpid())
    monkeypatch.setenv("LIGHTCC_RANK_OF", f"{marked_by} {position}")
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    if is_refused:
        with pytest.raises(ValueError, match=r"which is a rank .* \(LIGHT_RANK, LIGHT_REND"):
            check_not_child()
    else:
        check_not_child()
    mark(is_rank=False)
    check_not_child()


def test_job_of_one_rank_needs_no_store() -> None:
    assert discover(environment={"LIGHT_RANK": "0", "LIGHT_SIZE": "1"}) == Epoch()


def test_own_variables_win_over_horovods() -> None:
    assert discover(environment=JOB | {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "8"}).size == 4


def test_horovod_variables_count_when_there_is_a_store() -> None:
    environment = {
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "3",
        "LIGHT_RENDEZVOUS": "h:1",
        "LIGHT_SECRET": "x",
    }
    assert discover(environment=environment) == Epoch(2, 3, "h:1", "x")


def test_horovod_variables_without_a_store_train_alone_with_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="HOROVOD_SIZE is '3'.*lightccrun"):
        job = discover(environment={"HOROVOD_RANK": "2", "HOROVOD_SIZE": "3"})
    assert job == Epoch()


def test_secret_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("from file\n")
    job = discover(environment=without("LIGHT_SECRET") | {"LIGHT_SECRET_FILE": str(path)})
    assert job.secret == "from file"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"LIGHT_RANK": "4"}, r'LIGHT_RANK="4": expected an integer from 0 to 3'),
        ({"LIGHT_RANK": "-1"}, r'LIGHT_RANK="-1": expected an integer from 0 to 3'),
        ({"LIGHT_RANK": "one"}, r'LIGHT_RANK="one": expected an integer from 0 to 3'),
        ({"LIGHT_RANK": "1_0"}, r'LIGHT_RANK="1_0": expected'),
        ({"LIGHT_SIZE": "0"}, r'LIGHT_SIZE="0": expected an integer >= 1'),
        ({"LIGHT_SIZE": ""}, r'LIGHT_SIZE="": expected an integer >= 1'),
        ({"LIGHT_RENDEZVOUS": "host"}, r'LIGHT_RENDEZVOUS="host": expected host:port'),
        ({"LIGHT_RENDEZVOUS": ":80"}, r'LIGHT_RENDEZVOUS=":80": expected host:port'),
        ({"LIGHT_RENDEZVOUS": "h:70000"}, r'LIGHT_RENDEZVOUS="h:70000": expected host:port'),
        ({"LIGHT_RENDEZVOUS": ""}, r"LIGHT_RENDEZVOUS is not set: expected host:port"),
        ({"LIGHT_SECRET": " "}, r"LIGHT_SECRET is not set and LIGHT_SECRET_FILE names no file"),
    ],
)
def test_bad_value_is_named_with_what_is_allowed(change: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        discover(environment=JOB | change)


@pytest.mark.parametrize("name", ["LIGHT_RANK", "LIGHT_SIZE", "LIGHT_RENDEZVOUS", "LIGHT_SECRET"])
def test_missing_value_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is not set"):
        discover(environment=without(name))


def test_unreadable_secret_file_is_named(tmp_path: Path) -> None:
    environment = without("LIGHT_SECRET") | {"LIGHT_SECRET_FILE": str(tmp_path / "none")}
    with pytest.raises(ValueError, match=r"LIGHT_SECRET_FILE=.*none.*No such file"):
        discover(environment=environment)


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "SLURM_JOB_NUM_NODES"])
def test_a_process_beside_srun_that_trains_alone_is_warned(name: str) -> None:
    with pytest.warns(RuntimeWarning, match="trains alone; start it with srun"):
        assert discover(environment={"SLURM_JOB_ID": "7", name: "2"}) == Epoch()


def test_a_process_of_an_allocation_for_one_task_is_not_warned() -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}
    assert discover(environment=variables) == Epoch()


def test_pmix_without_its_library_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pmix, "_LIBRARIES", ("libno-such-pmix.so",))
    variables = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PMIX_NAMESPACE": "slurm.1.0"}
    with pytest.raises(ValueError, match=r"libno-such-pmix.so.* was not found .*--mpi=pmi2"):
        discover(environment=variables)


def test_comm_renumbers_its_ranks() -> None:
    job = discover([3, 1], environment=JOB)
    assert (job.rank, job.size) == (1, 2)
    assert job.group != discover([1, 3], environment=JOB).group != "all"


def test_comm_of_this_rank_alone_is_one_process() -> None:
    assert discover([1], environment=JOB) == Epoch()


@pytest.mark.parametrize("comm", [[], [1, 1], [1, 4], [-1, 1]])
def test_impossible_comm_is_an_error(comm: list[int]) -> None:
    with pytest.raises(ValueError, match=r"comm is \[.*\]: expected different ranks from 0 to 3"):
        discover(comm, environment=JOB)


def test_comm_without_this_rank_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"leaves out this process: rank 1 of 4"):
        discover([0, 2], environment=JOB)
