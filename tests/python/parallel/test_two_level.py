"""Two-level operations: the right bits on every kind of grid; flat ones where there is none."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from arrays import FLOATS, check_same, pattern, summed
from faults import Seen, check_death, reduce_until_error, repeat_until_error
from grids import TWO_HOSTS, Grid
from test_exchanges import EXCHANGES
from test_reductions import FLOAT32, REDUCTIONS

import lightcc as hvd
from lightcc.testing import RankProcesses

pytestmark = pytest.mark.multiproc

TWO_LEVEL = {"LIGHT_2D_ALLREDUCE": "1"}
AS_TWO_BY_TWO = {**TWO_LEVEL, "LIGHT_INTRA_SIZE": "2"}
HOSTS_OF_THREE = Grid(6, [0, 1, 0, 1, 0, 1])
HOSTS_OF_TWO = Grid(4, [0, 1, 0, 1])
#: The levels that four ranks have where all of them go between hosts.
FLAT = [[0, 1], [2, 3]]
ONE_HOST = Grid(4)

#: Each with the variables that make it a grid, and the blocks of that grid: a square one within a
#: host, and one over TCP that is neither square nor in order of ranks. The C++ tests have others.
GRIDS = [
    pytest.param(ONE_HOST, AS_TWO_BY_TWO, [[0, 1], [2, 3]], id="one_host_as_two_by_two"),
    pytest.param(HOSTS_OF_THREE, {}, [[0, 2, 4], [1, 3, 5]], id="interleaved_hosts_of_three"),
]
every_grid = pytest.mark.parametrize(("grid", "env", "blocks"), GRIDS)

Blocks = list[list[int]]


@every_grid
def test_results_are_those_of_flat_operations_where_nothing_rounds(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run_all([*REDUCTIONS, *EXCHANGES], env=env)


def random_numbers(dtype: np.dtype[Any], rank: int, count: int = 50_021) -> Any:
    return np.random.default_rng(100 + rank).normal(size=count).astype(dtype)


def sum_by_blocks(dtype: np.dtype[Any], blocks: Blocks, count: int = 50_021) -> Any:
    """Each block in rank order, then the blocks in order; rounded after each level."""
    sums = [summed([random_numbers(dtype, rank, count) for rank in block]) for block in blocks]
    return summed(sums)


def check_bits(blocks: Blocks) -> list[str]:
    hvd.init()
    digests = []
    for dtype in FLOATS:
        mine, expected = random_numbers(dtype, hvd.rank()), sum_by_blocks(dtype, blocks)
        check_same(hvd.allreduce(mine, op=hvd.Sum), expected, dtype.name)
        share = hvd.reducescatter(mine, op=hvd.Sum)
        check_same(share, np.array_split(expected, hvd.size())[hvd.rank()], dtype.name)
        digests.append(hashlib.sha256(expected.tobytes()).hexdigest())
    return digests


@every_grid
def test_each_level_adds_in_rank_order_and_rounds_once(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    results = grid.run(check_bits, blocks, env=env)
    assert all(result == results[0] for result in results)


def test_two_levels_that_are_switched_off_are_one() -> None:
    HOSTS_OF_TWO.run(check_bits, FLAT, env={"LIGHT_2D_ALLREDUCE": "0"})


def check_threshold() -> None:
    hvd.init()
    for count, expected in ((1000, [[0, 2], [1, 3]]), (1001, FLAT)):
        result = hvd.allreduce(random_numbers(FLOAT32, hvd.rank(), count), op=hvd.Sum)
        check_same(result, sum_by_blocks(FLOAT32, expected, count), count)


def test_buckets_above_the_threshold_are_flat() -> None:
    HOSTS_OF_TWO.run(check_threshold, env={"LIGHT_HIERARCHICAL_THRESHOLD": "4000"})


def other_operations_run_beside_two_level_ones() -> None:
    me, size = hvd.rank(), hvd.size()
    everyone = [pattern(np.dtype("int32"), (5000,), rank) for rank in range(size)]
    for round_ in range(5):
        handles = [
            hvd.allreduce_async(everyone[me], op=hvd.Sum, name=f"sum{round_}"),
            hvd.allgather_async(everyone[me], name=f"gather{round_}"),
            hvd.broadcast_async(everyone[me], round_ % size, name=f"broadcast{round_}"),
            hvd.allreduce_async(everyone[me][:17], op=hvd.Max, name=f"max{round_}"),
            hvd.reducescatter_async(everyone[me], op=hvd.Sum, name=f"scatter{round_}"),
        ]
        total, gathered, sent, largest, part = (hvd.synchronize(handle) for handle in handles)
        check_same(total, summed(everyone))
        check_same(gathered, np.concatenate(everyone))
        check_same(sent, everyone[round_ % size])
        check_same(largest, np.max([x[:17] for x in everyone], axis=0))
        check_same(part, np.array_split(summed(everyone), size)[me])


def test_lanes_change_nothing() -> None:
    TWO_HOSTS.run_all([other_operations_run_beside_two_level_ones], env={"LIGHT_NUM_STREAMS": "3"})


def work_in_sets() -> None:
    sets = [hvd.ProcessSet(ranks) for ranks in ([0, 2], [0, 1], [0, 1, 2], [1, 3])]
    hvd.init(process_sets=sets)
    for round_ in range(3):
        for process_set in [*sets, hvd.global_process_set]:
            if not process_set.included():
                continue
            members = process_set.ranks or list(range(hvd.size()))
            inputs = {rank: np.full((50 + rank, 2), rank + round_, np.int64) for rank in members}
            mine = inputs[hvd.rank()]
            total = hvd.allreduce(mine[:50], op=hvd.Sum, process_set=process_set)
            check_same(total, summed([x[:50] for x in inputs.values()]))
            gathered = hvd.allgather(mine, process_set=process_set)
            check_same(gathered, np.concatenate(list(inputs.values())))
            root = members[round_ % len(members)]
            scaled = hvd.broadcast(gathered * mine[0, 0], root, process_set=process_set)
            check_same(scaled, gathered * inputs[root][0, 0])
            part = hvd.reducescatter(gathered, op=hvd.Sum, process_set=process_set)
            position = members.index(hvd.rank())
            check_same(part, np.array_split(gathered * len(members), len(members))[position])


def test_process_sets_have_grids_of_their_own_or_none() -> None:
    TWO_HOSTS.run(work_in_sets)


def bits_of_a_set(ranks: list[int], blocks: Blocks) -> None:
    process_set = hvd.ProcessSet(ranks)
    hvd.init(process_sets=[process_set])
    if process_set.included():
        result = hvd.allreduce(
            random_numbers(FLOAT32, hvd.rank()), op=hvd.Sum, process_set=process_set
        )
        check_same(result, sum_by_blocks(FLOAT32, blocks))
    hvd.barrier()  # A rank that left would end the operations of the others.


def test_a_set_of_equal_parts_of_uneven_hosts_has_a_grid() -> None:
    uneven = Grid(5, [0, 0, 0, 1, 1])
    uneven.run(bits_of_a_set, [0, 2, 3, 4], [[0, 2], [3, 4]])


def lines_with(text: str, grid: Grid, env: dict[str, str], program: Any, *args: Any) -> list[str]:
    """Runs `program`, which must succeed, and returns the lines of all ranks that hold `text`."""
    with RankProcesses(program, grid.ranks, *args, env=env, hosts=grid.hosts) as ranks:
        results = ranks.wait(60)
    for result in results:
        assert result.ok, result.describe()
    lines = [line for result in results for line in result.output.splitlines()]
    return [line for line in lines if text in line]


def test_where_there_is_no_grid_allreduces_are_flat_and_say_why_once() -> None:
    lines = lines_with("flat", Grid(3, [0, 1, 1]), TWO_LEVEL, check_bits, [[0, 1, 2]])
    assert len(lines) == 1, lines
    why = "1 on the host of rank 0, 2 on the host of rank 1"
    assert f"the hosts have different numbers of ranks: {why}" in lines[0]


def adasum_of_what_is_equal() -> None:
    hvd.init()
    same = pattern(FLOAT32, (40,)) + np.float32(1)
    for _ in range(3):
        check_same(hvd.allreduce(same, op=hvd.Adasum), same)


def test_adasum_is_flat_and_says_so_once() -> None:
    lines = lines_with("Adasum", TWO_HOSTS, TWO_LEVEL, adasum_of_what_is_equal)
    assert len(lines) == 1, lines
    assert "run flat" in lines[0]
    assert lines_with("Adasum", TWO_HOSTS, {}, adasum_of_what_is_equal) == []


def exchange_until_error(elements: int) -> Seen:
    """Scatters, gathers and broadcasts again and again, and checks it, until that fails."""
    hvd.init()
    n = hvd.size()
    x = np.arange(elements * n, dtype=np.float32) % 1000

    def step(count: int) -> None:
        part = hvd.reducescatter(x, op=hvd.Sum)
        check_same(hvd.allgather(part), x * n)
        check_same(hvd.broadcast(x * (hvd.rank() + 1), count % n), x * (count % n + 1))

    return repeat_until_error(step)


@pytest.mark.parametrize(
    ("grid", "env", "victim", "program", "elements"),
    [
        (ONE_HOST, AS_TWO_BY_TWO, 3, reduce_until_error, 2_000_000),
        (TWO_HOSTS, {}, 3, exchange_until_error, 300_000),
    ],
)
def test_death_during_two_level_operations_reaches_every_rank(
    grid: Grid, env: dict[str, str], victim: int, program: Any, elements: int
) -> None:
    check_death(grid, victim, program, elements, **env)
