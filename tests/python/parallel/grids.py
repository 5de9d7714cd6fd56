"""How many ranks the parallel tests run, and on which hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pytest

from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


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


ONE = Grid(1)
TWO = Grid(2)
THREE = Grid(3)
FOUR = Grid(4)
TWO_HOSTS = Grid(4, [0, 0, 1, 1])
UNEVEN_HOSTS = Grid(3, [0, 1, 1])
ALL = [ONE, TWO, THREE, FOUR, TWO_HOSTS, UNEVEN_HOSTS]

every_grid = pytest.mark.parametrize("grid", ALL, ids=str)
several_ranks = pytest.mark.parametrize("grid", ALL[1:], ids=str)
