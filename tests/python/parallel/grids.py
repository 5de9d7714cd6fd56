"""How many ranks the parallel tests run, on which hosts, and what in one start of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pytest

import lightcc as hvd
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


T = TypeVar("T")


def each_in_turn(programs: Sequence[Callable[[], object]]) -> None:
    """Runs programs one after the other in one world; a traceback names the one that failed."""
    hvd.init()
    for program in programs:
        program()
    hvd.barrier()  # A rank that leaves ends what others still do.


class Grid(NamedTuple):
    """A number of ranks; and the emulated host of each, where they are not all on one."""

    ranks: int
    hosts: list[int] | None = None

    def __str__(self) -> str:
        return f"{self.ranks}" if self.hosts is None else "hosts" + "".join(map(str, self.hosts))

    def run(
        self, program: Callable[..., T], *args: object, env: dict[str, str] | None = None
    ) -> list[T]:
        """Runs `program(*args)` on every rank and returns what they returned."""
        return spawn_ranks(program, self.ranks, *args, env=env, hosts=self.hosts, timeout_s=90)

    def run_all(
        self, programs: Sequence[Callable[[], object]], env: dict[str, str] | None = None
    ) -> None:
        """Runs all `programs` in one world."""
        self.run(each_in_turn, programs, env=env)


ONE = Grid(1)
TWO = Grid(2)
THREE = Grid(3)
FOUR = Grid(4)
TWO_APART = Grid(2, [0, 1])
TWO_HOSTS = Grid(4, [0, 0, 1, 1])
UNEVEN_HOSTS = Grid(3, [0, 1, 1])

#: The C++ tests have other numbers of ranks. Two hosts alike run on two levels, others flat.
every_grid = pytest.mark.parametrize("grid", [ONE, THREE, TWO_HOSTS, UNEVEN_HOSTS], ids=str)
several_ranks = pytest.mark.parametrize("grid", [THREE, TWO_HOSTS], ids=str)
