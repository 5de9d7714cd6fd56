"""One rank of one library: connects to the benchmark, then measures what it is told.

Started by path, perhaps in another virtual environment, perhaps by an MPI launcher, so it imports
nothing but the standard library, numpy and the library it measures. Between requests it waits in a
socket read: a waiting library must not disturb the one that is being measured. Requests and
answers are lines of JSON.

Each timed iteration follows a barrier over shared memory that does not use the library, so that no
library's own barrier flatters or harms its figures. Results are checked against sums of small
integers, which are exact, on request and outside the timed part. Where a compression
loses parts of the sums, all ranks must have the same bits.

A request may name another file that measures with the library, as `measure/train.py` of the
sources does.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import mmap
import os
import socket
import sys
import time
import zlib
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]

BUCKET_BYTES = 25 << 20  # DistributedDataParallel's default.
_BARRIER_S = 300.0
_LINE = 64  # Bytes; one cache line per rank.


class Library(Protocol):
    """A library under test, initialised."""

    rank: int
    size: int
    version: str

    def prepare(self, case: dict[str, Any], ins: list[Any], outs: list[Any]) -> Callable[[], Any]:
        """Returns a call of `case` on `ins`; it returns the output or None if that is in `outs`."""

    def sent_bytes(self) -> int:
        """Returns what this rank sent over the network so far; 0 if the library does not say."""

    def close(self) -> None:
        """Leaves the job."""


def hvd_call(hvd: Any, case: dict[str, Any], ins: list[Any]) -> Callable[[], Any]:
    """Returns the call of `case`."""
    x = ins[0]
    if case["mode"] == "async":

        def all_async() -> None:
            handles = [
                hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"gradient.{index}")
                for index, tensor in enumerate(ins)
            ]
            for handle in handles:
                hvd.synchronize(handle)

        return all_async
    calls: dict[str, Callable[[], Any]] = {
        "allreduce": lambda: (hvd.allreduce_ if case["inplace"] else hvd.allreduce)(
            x, op=hvd.Sum, name="bench"
        ),
        "allgather": lambda: hvd.allgather(x, name="bench"),
        "broadcast": lambda: hvd.broadcast_(x, root_rank=0, name="bench"),
        "alltoall": lambda: hvd.alltoall(x, name="bench"),
        "reducescatter": lambda: hvd.reducescatter(x, op=hvd.Sum, name="bench"),
    }
    return calls[case["collective"]]


class Lightcc:
    """lightcc, through its public interface."""

    def __init__(self) -> None:
        hvd: Any = importlib.import_module("lightcc")
        hvd.init()
        self.hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.version = f"lightcc {hvd.__version__}"

    def prepare(self, case: dict[str, Any], ins: list[Any], outs: list[Any]) -> Callable[[], Any]:
        """Returns the call of `case`."""
        del outs  # lightcc makes its outputs.
        return hvd_call(self.hvd, case, ins)

    def sent_bytes(self) -> int:
        """Returns what this rank's transport sent so far, also within its host."""
        return int(self.hvd.stats()["network_bytes_sent"])

    def close(self) -> None:
        """Leaves the job."""
        self.hvd.shutdown()


class Gloo:
    """gloo, by torch.distributed."""

    def __init__(self) -> None:
        torch: Any = importlib.import_module("torch")
        dist: Any = importlib.import_module("torch.distributed")
        torch.set_num_threads(1)
        self.torch, self.dist = torch, dist
        self.rank, self.size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
        dist.init_process_group(
            "gloo",
            init_method=f"file://{os.environ['BENCH_STORE']}",
            rank=self.rank,
            world_size=self.size,
        )
        self.version = f"torch {torch.__version__} gloo"

    def prepare(self, case: dict[str, Any], ins: list[Any], outs: list[Any]) -> Callable[[], Any]:
        """Returns the call of `case`."""
        dist = self.dist
        tensors = [self.torch.as_tensor(array) for array in ins]  # Over the same memory.
        results = [self.torch.as_tensor(array) for array in outs]
        if case["mode"] in ("async", "bucket25"):

            def all_async() -> None:
                works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
                for work in works:
                    work.wait()

            return all_async
        x, y = tensors[0], results[0]

        def out_of_place() -> None:
            y.copy_(x)
            dist.all_reduce(y)

        calls: dict[str, Callable[[], Any]] = {
            "allreduce": (lambda: dist.all_reduce(x)) if case["inplace"] else out_of_place,
            "allgather": lambda: dist.all_gather_into_tensor(y, x),
            "broadcast": lambda: dist.broadcast(x, src=0),
            "alltoall": lambda: dist.all_to_all_single(y, x),
            "reducescatter": lambda: dist.reduce_scatter_tensor(y, x),
        }
        return calls[case["collective"]]

    def sent_bytes(self) -> int:
        """Returns 0: torch does not say."""
        return 0

    def close(self) -> None:
        """Leaves the job."""
        self.dist.destroy_process_group()


class Mpi:
    """Any MPI, through mpi4py."""

    def __init__(self) -> None:
        self._mpi: Any = importlib.import_module("mpi4py.MPI")
        self._comm: Any = self._mpi.COMM_WORLD
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.version = " ".join(self._mpi.Get_library_version().splitlines()[0].split()).rstrip(
            "\0 ,"
        )

    def prepare(self, case: dict[str, Any], ins: list[Any], outs: list[Any]) -> Callable[[], Any]:
        """Returns the call of `case`."""
        mpi, comm = self._mpi, self._comm
        if case["mode"] == "iallreduce":
            return lambda: mpi.Request.Waitall(
                [comm.Iallreduce(mpi.IN_PLACE, array) for array in ins]
            )
        if case["mode"] == "loop":

            def loop() -> None:
                for array in ins:
                    comm.Allreduce(mpi.IN_PLACE, array)

            return loop
        x, y = ins[0], outs[0]
        source = mpi.IN_PLACE if case["inplace"] else x
        target = x if case["inplace"] else y
        calls: dict[str, Callable[[], Any]] = {
            "allreduce": lambda: comm.Allreduce(source, target),
            "allgather": lambda: comm.Allgather(x, y),
            "broadcast": lambda: comm.Bcast(x, 0),
            "alltoall": lambda: comm.Alltoall(x, y),
            "reducescatter": lambda: comm.Reduce_scatter_block(x, y),
        }
        return calls[case["collective"]]

    def sent_bytes(self) -> int:
        """Returns 0: MPI does not say."""
        return 0

    def close(self) -> None:
        """Leaves the job."""
        self._mpi.Finalize()


#: By backend.
LIBRARIES: dict[str, Callable[[], Library]] = {"lightcc": Lightcc, "gloo": Gloo, "mpi": Mpi}


class Prepared:
    """The buffers and the call of one case."""

    def __init__(self, library: Library, case: dict[str, Any]) -> None:
        self._library = library
        self._case = case
        counts, size = case["counts"], library.size
        if case["collective"] == "allgather":
            in_counts, out_counts = [counts[0] // size], counts
        elif case["collective"] == "reducescatter":
            in_counts, out_counts = counts, [counts[0] // size]
        else:
            in_counts, out_counts = counts, [0] if case["inplace"] else counts
        self._sizes = in_counts
        self._inputs, self._called_on = _layout(in_counts, case["mode"])
        self._outputs = [np.ones(count, np.float32) for count in out_counts]
        if case["collective"] == "memcpy":
            target, source = self._outputs[0], self._inputs[0]
            self.call: Callable[[], Any] = lambda: np.copyto(target, source)
        else:
            self.call = library.prepare(case, self._called_on, self._outputs)

    def count_errors(self) -> tuple[int, int]:
        """Runs once on known data; returns the number of wrong elements and a sum of all bits.

        Where the case has a `ratio`, no element is wrong, but all ranks must have the same sum.
        """
        if self._case["collective"] == "memcpy":
            return 0, 0
        for count, tensor in zip(self._sizes, self._inputs, strict=True):
            tensor[...] = _pattern(count, self._library.rank)
        output = self.call()
        if output is None or self._case["mode"]:
            given = self._inputs if self._case["inplace"] else self._outputs
        else:
            given = [output]
        results = [np.asarray(tensor) for tensor in given]
        if self._case.get("ratio") is not None:
            return 0, digest(results)
        errors = 0
        for count, result in zip(self._sizes, results, strict=True):
            expected = self._expected(count)
            same_size = result.size == expected.size
            errors += int((result != expected).sum()) if same_size else expected.size
        return errors, 0

    def _expected(self, count: int) -> Array:
        rank, size, collective = self._library.rank, self._library.size, self._case["collective"]
        of = [_pattern(count, peer) for peer in range(size)]
        if collective == "broadcast":
            return of[0]
        if collective == "allgather":
            return np.concatenate(of)
        share = slice(rank * (count // size), (rank + 1) * (count // size))
        if collective == "alltoall":
            return np.concatenate([values[share] for values in of])
        total = reduce(np.add, of)
        return total[share] if collective == "reducescatter" else total

    def clear(self) -> None:
        """Zeroes the inputs: sums of zeros do not grow over thousands of in-place iterations."""
        for tensor in self._inputs:
            tensor[...] = 0


def digest(arrays: list[Array]) -> int:
    """Returns a checksum of all bits, by which ranks can be compared."""
    value = 0
    for array in arrays:
        value = zlib.crc32(array.reshape(-1).view(np.uint8).data, value)
    return value


def _pattern(count: int, rank: int) -> Array:
    return np.tile(np.arange(5, dtype=np.float32) + np.float32(rank + 1), count // 5 + 1)[:count]


def _layout(counts: list[int], mode: str) -> tuple[list[Array], list[Array]]:
    """Returns the tensors and what is handed to the library: them, or flat buffers they lie in."""
    if mode != "bucket25":
        tensors = [np.ones(count, np.float32) for count in counts]
        return tensors, tensors
    limit = BUCKET_BYTES // 4
    groups: list[list[int]] = [[]]
    for count in counts:
        if groups[-1] and sum(groups[-1]) + count > limit:
            groups.append([])
        groups[-1].append(count)
    buffers = [np.ones(sum(group), np.float32) for group in groups]
    views: list[Array] = []
    for buffer, group in zip(buffers, groups, strict=True):
        edges = np.cumsum([0, *group]).tolist()
        views += [buffer[first:last] for first, last in pairwise(edges)]
    return views, buffers


class SpinBarrier:
    """A counter per rank in a file that all ranks map; nobody sleeps in it."""

    def __init__(self, path: Path, rank: int, size: int) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size * _LINE)
        self._counters = memoryview(self._map).cast("q")
        self._rank, self._size, self._round = rank, size, 0

    def wait(self) -> None:
        """Returns when every rank has come."""
        self._round += 1
        step = _LINE // 8
        counters, here = self._counters, self._round
        counters[self._rank * step] = here
        deadline = time.monotonic() + _BARRIER_S
        for peer in range(self._size):
            while counters[peer * step] < here:
                os.sched_yield()
                if time.monotonic() > deadline:
                    msg = f"rank {peer} did not come to the barrier"
                    raise RuntimeError(msg)


class Worker:
    """Answers requests until the parent closes the connection."""

    def __init__(self, library: Library, connection: socket.socket, barrier: SpinBarrier) -> None:
        self._library = library
        self._lines = connection.makefile("rwb")
        self._barrier = barrier
        self._case: dict[str, Any] = {}
        self._prepared: Prepared | None = None

    def serve(self) -> None:
        """Says who it is, then answers each line with a line."""
        self._answer({"rank": self._library.rank, "version": self._library.version})
        for line in self._lines:
            self._answer(self._try(json.loads(line)))

    def _try(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._measure(request)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is its result.
            return {"failed": f"{type(error).__name__}: {error}"}

    def _answer(self, answer: dict[str, Any]) -> None:
        self._lines.write(json.dumps(answer).encode() + b"\n")
        self._lines.flush()

    def _measure(self, request: dict[str, Any]) -> dict[str, Any]:
        before = self._library.sent_bytes()
        if "program" in request:
            self._prepared = None
            program = _load(Path(request["program"]))
            answer: dict[str, Any] = program.measure(self._library, request["plan"], self._barrier)
        else:
            answer = self._time(request)
        return answer | {"sent": self._library.sent_bytes() - before}

    def _time(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._prepared is None or request["case"] != self._case:
            self._prepared = None  # Frees the old buffers before the new ones are made.
            self._prepared = Prepared(self._library, request["case"])
            self._case = request["case"]
        prepared = self._prepared
        self._barrier.wait()
        errors, checksum = prepared.count_errors() if request["check"] else (0, 0)
        if request["check"]:
            prepared.clear()
        for _ in range(request["warmup"]):
            self._barrier.wait()
            prepared.call()
        times = []
        for _ in range(request["iterations"]):
            self._barrier.wait()
            start = time.perf_counter()
            prepared.call()
            times.append(time.perf_counter() - start)
        return {"times": times, "errors": errors, "digest": checksum}


def _load(path: Path) -> Any:
    """Returns the module of a file; this interpreter may not find it by name."""
    spec = importlib.util.spec_from_file_location(f"lightcc_bench_{path.stem}", path)
    if spec is None or spec.loader is None:
        msg = f"{path} is no module"
        raise ImportError(msg)
    module = sys.modules.get(spec.name)
    if module is None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module


def main() -> None:
    """`worker.py LIBRARY SOCKET BARRIER_FILE`."""
    name, address, barrier_file = sys.argv[1:]
    gc.disable()
    library = LIBRARIES[name]()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        barrier = SpinBarrier(Path(barrier_file), library.rank, library.size)
        Worker(library, connection, barrier).serve()
    library.close()


if __name__ == "__main__":
    main()
