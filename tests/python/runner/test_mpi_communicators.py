"""`init(comm=...)` with communicators of mpi4py, under every mpirun."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from launchers import MPI_HOME, MPI_PACKAGES, mpi, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, pytest.mark.extra]

# Each rank writes into a file of its own: launchers may cut one rank's line by another's.
BEGIN = """
import sys
from pathlib import Path
import numpy as np
from mpi4py import MPI
import lightcc as hvd

world = MPI.COMM_WORLD
me = world.Get_rank()

def report(text):
    Path(sys.argv[1], str(me)).open("a").write(f"{me}: {text}\\n")

def total(**options):
    return float(hvd.allreduce(np.full(1, float(me)), op=hvd.Sum, **options)[0])
"""


RunRanks = Callable[[str, int, str], list[str]]


@pytest.fixture(name="run_ranks")
def runner_of_ranks(tmp_path: Path) -> RunRanks:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    folder = tmp_path / "reports"
    folder.mkdir()

    def run_ranks(package: str, ranks: int, text: str) -> list[str]:
        script = tmp_path / "train.py"
        script.write_text(BEGIN + text)
        command = [*mpi(package), "-n", str(ranks), sys.executable, str(script), str(folder)]
        # Where mpi4py finds the library that belongs to the launcher.
        run(*command, variables={"LD_LIBRARY_PATH": str(MPI_HOME / package / "lib")})
        return sorted(line for path in folder.iterdir() for line in path.read_text().splitlines())

    return run_ranks


@pytest.mark.parametrize("package", MPI_PACKAGES)
def test_a_communicator_is_the_world(package: str, run_ranks: RunRanks) -> None:
    lines = run_ranks(
        package,
        3,
        """
# Ranks in reverse order, and two worlds beside one another.
backwards = world.Split(0, -me)
hvd.init(comm=backwards)
assert (hvd.rank(), hvd.size()) == (2 - me, 3)
assert hvd.global_process_set.mpi_comm == backwards
assert backwards.allreduce(me) == 3 and total() == 3.0  # Both libraries take turns.
hvd.shutdown()
assert hvd.global_process_set.mpi_comm is None
half = world.Split(me // 2, me)
for _ in range(2):
    hvd.init(comm=half)
    report(f"{hvd.rank()} of {hvd.size()}: {total()}")
    hvd.shutdown()
hvd.init()  # As without a communicator.
assert (hvd.rank(), hvd.size()) == (me, 3)
""",
    )
    assert lines == sorted(["0: 0 of 2: 1.0", "1: 1 of 2: 1.0", "2: 0 of 1: 2.0"] * 2)


def test_process_sets_of_communicators(run_ranks: RunRanks) -> None:
    lines = run_ranks(
        "mpich-5.0.2",
        3,
        """
parity = world.Split(me % 2, me)
sets = [hvd.ProcessSet(parity), hvd.ProcessSet([0, 1])]
hvd.init(comm=world, process_sets=sets)
report([(it.process_set_id, it.ranks) for it in sets])
assert sets[0].mpi_comm == parity
assert total(process_set=sets[0]) == (1.0 if me == 1 else 2.0)
hvd.barrier()
hvd.shutdown()
# A list of communicators: the world, and process sets.
hvd.init(comm=[world, parity])
assert total() == 3.0
hvd.shutdown()

def refused(*sets, comm=world):
    try:
        hvd.init(comm=comm, process_sets=sets)
    except ValueError as error:
        return str(error)
    raise AssertionError(sets)

text = refused(hvd.ProcessSet(world.Dup()))
assert "duplicate process set: entry 0" in text and "ranks [0, 1, 2]" in text, text
text = refused(hvd.ProcessSet(parity), hvd.ProcessSet([0, 2]))
assert "entry 1 of the process sets of rank 0" in text, text
text = refused(*[hvd.ProcessSet([0])] * (1 if me else 2))
assert "[2, 1, 1] process sets" in text, text
nobody = MPI.COMM_NULL if me == 1 else parity
text = refused(hvd.ProcessSet(nobody))
assert "rank 1 has no ranks, or is MPI.COMM_NULL" in text, text
text = refused(hvd.ProcessSet([7]))
assert "found [7]" in text, text
text = refused(hvd.ProcessSet(parity), comm=None)
assert "is registered by init(comm=" in text, text
assert "comm is MPI.COMM_NULL" in refused(comm=MPI.COMM_NULL)
assert not hvd.is_initialized()
""",
    )
    assert lines == [
        "0: [(1, [0, 2]), (3, [0, 1])]",
        "1: [(2, [1]), (3, [0, 1])]",
        "2: [(1, [0, 2]), (3, [0, 1])]",
    ]
