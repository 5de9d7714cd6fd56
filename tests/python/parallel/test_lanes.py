"""Lanes: many buckets of many process sets in flight, whatever the order they are submitted in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import check_same
from grids import FOUR, TWO_HOSTS, Grid

import lightcc as hvd

pytestmark = pytest.mark.multiproc

#: Beside the global set: every rank is in five or six of the eight.
MEMBERS = ([0, 1], [1, 2], [2, 3], [0, 3], [0, 1, 2], [1, 2, 3], [0, 2])
OPERATIONS_PER_SET = 120
#: Mostly small; some of several chunks, so that lanes stay busy for a while.
COUNTS = (1, 7, 64, 1000, 333, 5, 20_000, 17, 128, 70_000)


class Operation:
    """The i-th operation of a set: what it is follows from `i` alone, alike on every rank."""

    def __init__(self, process_set: hvd.ProcessSet, i: int) -> None:
        self.process_set = process_set
        self._i = i
        self._members = process_set.ranks or []
        self._root = self._members[i % len(self._members)]
        self._count = COUNTS[i % len(COUNTS)]

    def _input(self, rank: int) -> Any:
        return np.arange(self._count, dtype=np.int64) * (rank + 1) + self._i

    def submit(self) -> Any:
        x, name, where = self._input(hvd.rank()), f"operation.{self._i}", self.process_set
        match self._i % 5:
            case 0:
                return hvd.allgather_async(x[:16], name=name, process_set=where)
            case 1:
                return hvd.broadcast_async(x, self._root, name=name, process_set=where)
            case _:
                return hvd.allreduce_async(x, op=hvd.Sum, name=name, process_set=where)

    def check(self, result: Any) -> None:
        match self._i % 5:
            case 0:
                expected = np.concatenate([self._input(rank)[:16] for rank in self._members])
            case 1:
                expected = self._input(self._root)
            case _:
                expected = np.sum([self._input(rank) for rank in self._members], axis=0)
        check_same(result, expected, f"{self.process_set}, operation {self._i}")


def eight_sets_in_random_order(seed: int) -> int:
    sets = [hvd.ProcessSet(ranks) for ranks in MEMBERS]
    hvd.init(process_sets=sets)
    mine = [s for s in (hvd.global_process_set, *sets) if s.included()]
    operations = [Operation(s, i) for s in mine for i in range(OPERATIONS_PER_SET)]
    order = np.random.default_rng([seed, hvd.rank()]).permutation(len(operations))
    pending = [(operations[k], operations[k].submit()) for k in order]
    for operation, handle in pending:
        operation.check(hvd.synchronize(handle))
    hvd.barrier()
    return sum(operation.process_set.rank() == 0 for operation in operations)


# Over TCP operations can overtake each other.
@pytest.mark.parametrize(("grid", "lanes"), [(FOUR, "1"), (TWO_HOSTS, "3")], ids=str)
def test_operations_of_overlapping_sets_are_right_in_any_order(grid: Grid, lanes: str) -> None:
    counted = grid.run(eight_sets_in_random_order, 2024, env={"LIGHT_NUM_STREAMS": lanes})
    assert sum(counted) == (len(MEMBERS) + 1) * OPERATIONS_PER_SET
