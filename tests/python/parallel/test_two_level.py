"""Two-level operations: the right bits on every kind of grid; flat ones where there is none."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrays import FLOATS, check_same, pattern, summed
from faults import (
    Seen,
    check_death,
    reduce_until_error,
    repeat_until_error,
)
from grids import Grid
from test_exchanges import alltoall_everything, broadcast_everything, gather_everything, objects
from test_reductions import (
    allreduce_big,
    allreduce_everything,
    factors,
    grouped_reducescatters,
    groups,
    integer_averages,
    reducescatter_everything,
)

import lightcc as hvd
from lightcc.testing import RankProcesses, spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.multiproc

TWO_LEVEL = {"LIGHT_2D_ALLREDUCE": "1"}
AS_TWO_BY_TWO = {**TWO_LEVEL, "LIGHT_INTRA_SIZE": "2"}
TWO_HOSTS = Grid(4, [0, 0, 1, 1])
INTERLEAVED = Grid(4, [0, 1, 0, 1])
THREE_HOSTS = Grid(6, [0, 0, 1, 1, 2, 2])
HOSTS_OF_THREE = Grid(6, [0, 1, 0, 1, 0, 1])
ONE_HOST = Grid(4)

#: Each with the variables that make it a grid, and the blocks of that grid. Quick tests have two
#: square ones, over TCP and within a host, and one that is neither square nor in order of ranks.
GRIDS = [
    pytest.param(TWO_HOSTS, {}, [[0, 1], [2, 3]], id="two_hosts"),
    pytest.param(
        *(INTERLEAVED, TWO_LEVEL, [[0, 2], [1, 3]]), id="interleaved_hosts", marks=pytest.mark.slow
    ),
    pytest.param(ONE_HOST, AS_TWO_BY_TWO, [[0, 1], [2, 3]], id="one_host_as_two_by_two"),
    pytest.param(
        *(THREE_HOSTS, TWO_LEVEL, [[0, 1], [2, 3], [4, 5]]),
        id="three_hosts",
        marks=pytest.mark.slow,
    ),
    pytest.param(HOSTS_OF_THREE, {}, [[0, 2, 4], [1, 3, 5]], id="interleaved_hosts_of_three"),
]
every_grid = pytest.mark.parametrize(("grid", "env", "blocks"), GRIDS)
few_grids = pytest.mark.parametrize(("grid", "env", "blocks"), [GRIDS[0], GRIDS[2]])

Blocks = list[list[int]]


@every_grid
@pytest.mark.parametrize(
    "program",
    [
        allreduce_everything,
        factors,
        integer_averages,
        groups,
        reducescatter_everything,
        grouped_reducescatters,
        gather_everything,
        broadcast_everything,
        alltoall_everything,
        objects,
    ],
    ids=lambda program: program.__name__,
)
def test_results_are_those_of_flat_operations_where_nothing_rounds(
    grid: Grid, env: dict[str, str], blocks: Blocks, program: Callable[[], None]
) -> None:
    del blocks
    grid.run(program, env=env)


@few_grids
@pytest.mark.parametrize("chunk", ["0", "64K"])
def test_many_elements_in_few_or_many_chunks_have_the_exact_result(
    grid: Grid, env: dict[str, str], blocks: Blocks, chunk: str
) -> None:
    del blocks
    grid.run(allreduce_big, env={**env, "LIGHT_2D_CHUNK": chunk})


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
        result = hvd.allreduce(random_numbers(dtype, hvd.rank()), op=hvd.Sum, name=dtype.name)
        check_same(result, sum_by_blocks(dtype, blocks), dtype.name)
        digests.append(hashlib.sha256(result.tobytes()).hexdigest())
    return digests


@every_grid
def test_each_level_adds_in_rank_order_and_rounds_once(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    results = grid.run(check_bits, blocks, env=env)
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize(
    ("grid", "env"),
    [
        pytest.param(TWO_HOSTS, {"LIGHT_2D_ALLREDUCE": "0"}, id="switched_off"),
        pytest.param(ONE_HOST, {"LIGHT_INTRA_SIZE": "2"}, id="one_host_that_is_not_asked"),
        pytest.param(ONE_HOST, TWO_LEVEL, id="one_block"),
        pytest.param(TWO_HOSTS, {"LIGHT_INTRA_SIZE": "1"}, id="blocks_of_one"),
    ],
)
def test_a_flat_allreduce_adds_all_ranks_in_order(grid: Grid, env: dict[str, str]) -> None:
    grid.run(check_bits, [[0, 1, 2, 3]], env=env)


def check_threshold(blocks: Blocks) -> None:
    hvd.init()
    dtype = np.dtype("float32")
    for count, expected in ((1000, blocks), (1001, [[0, 1, 2, 3]])):
        result = hvd.allreduce(random_numbers(dtype, hvd.rank(), count), op=hvd.Sum)
        check_same(result, sum_by_blocks(dtype, expected, count), count)


@few_grids
def test_buckets_above_the_threshold_are_flat(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    grid.run(check_threshold, blocks, env={**env, "LIGHT_HIERARCHICAL_THRESHOLD": "4000"})


def bits_of_a_reducescatter(blocks: Blocks) -> None:
    hvd.init()
    for dtype in FLOATS:
        mine = random_numbers(dtype, hvd.rank())
        whole = hvd.allreduce(mine, op=hvd.Sum, name="whole")
        part = hvd.reducescatter(mine, op=hvd.Sum, name="part")
        check_same(whole, sum_by_blocks(dtype, blocks), dtype.name)
        check_same(part, np.array_split(whole, hvd.size())[hvd.rank()], dtype.name)


@every_grid
def test_a_reducescatter_has_the_bits_of_an_allreduce(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    grid.run(bits_of_a_reducescatter, blocks, env=env)


def exchange_much(rows_of_each: list[int]) -> None:
    """Many chunks, some of them empty on some ranks."""
    hvd.init()
    me = hvd.rank()
    dtype = np.dtype("float32")
    parts = [pattern(dtype, (rows, 3), rank) for rank, rows in enumerate(rows_of_each)]
    check_same(hvd.allgather(parts[me], name="gather"), np.concatenate(parts))
    total = sum(rows_of_each)
    inputs = [pattern(dtype, (total, 3), rank) for rank in range(hvd.size())]
    part = hvd.reducescatter(inputs[me], op=hvd.Sum, name="scatter")
    check_same(part, np.array_split(summed(inputs), hvd.size())[me])
    for root in range(hvd.size()):
        check_same(hvd.broadcast(inputs[me], root, name=f"from{root}"), inputs[root])


@every_grid
@pytest.mark.parametrize("chunk", ["0", "64K"])
def test_uneven_exchanges_of_many_chunks_have_the_exact_result(
    grid: Grid, env: dict[str, str], blocks: Blocks, chunk: str
) -> None:
    del blocks
    rows_of_each = [70_001, 0, 12_345, 1, 33_333, 7][: grid.ranks]
    grid.run(exchange_much, rows_of_each, env={**env, "LIGHT_2D_CHUNK": chunk})


def exchanges_in_sets() -> None:
    sets = [hvd.ProcessSet(ranks) for ranks in ([0, 2], [0, 1], [0, 1, 2], [1, 3])]
    hvd.init(process_sets=sets)
    for round_ in range(3):
        for process_set in [*sets, hvd.global_process_set]:
            if not process_set.included():
                continue
            members = process_set.ranks or list(range(hvd.size()))
            inputs = {rank: np.full((50 + rank, 2), rank + round_, np.int64) for rank in members}
            mine = inputs[hvd.rank()]
            gathered = hvd.allgather(mine, process_set=process_set)
            check_same(gathered, np.concatenate(list(inputs.values())))
            root = members[round_ % len(members)]
            scaled = hvd.broadcast(gathered * mine[0, 0], root, process_set=process_set)
            check_same(scaled, gathered * inputs[root][0, 0])
            part = hvd.reducescatter(gathered, op=hvd.Sum, process_set=process_set)
            position = members.index(hvd.rank())
            check_same(part, np.array_split(gathered * len(members), len(members))[position])


@few_grids
def test_exchanges_of_process_sets_have_grids_of_their_own_or_none(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run(exchanges_in_sets, env=env)


def network_bytes_of_exchanges() -> dict[str, int]:
    hvd.init()
    x = np.ones(3 << 16, np.float32)
    share = x[: x.size // hvd.size()]
    calls: dict[str, Callable[[], Any]] = {
        "reducescatter": lambda: hvd.reducescatter(x, op=hvd.Sum, name="s"),
        "allgather": lambda: hvd.allgather(share, name="g"),
        "broadcast": lambda: hvd.broadcast(x, 0, name="b"),
    }
    sent = {}
    for name, call in calls.items():
        call()
        hvd.barrier()
        before = hvd.stats()["network_bytes_sent"]
        call()
        hvd.barrier()
        sent[name] = hvd.stats()["network_bytes_sent"] - before
    return sent


@every_grid
def test_every_byte_crosses_to_a_block_once(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    m, n = len(blocks), len(blocks[0])
    size_bytes = 3 << 18
    share = (m - 1) / m * size_bytes / n
    results = grid.run(network_bytes_of_exchanges, env=env)
    for sent in results:
        assert share <= sent["reducescatter"] <= 1.02 * share + 4096
        assert share <= sent["allgather"] <= 1.02 * share + 4096
    in_all = sum(sent["broadcast"] for sent in results)
    assert (m - 1) * size_bytes <= in_all <= 1.02 * (m - 1) * size_bytes + 8192 * grid.ranks


def network_bytes_of_a_megabyte() -> int:
    hvd.init()
    x = np.ones(1 << 18, np.float32)
    hvd.allreduce(x, op=hvd.Sum, name="first")
    hvd.barrier()
    before = hvd.stats()["network_bytes_sent"]
    hvd.allreduce(x, op=hvd.Sum, name="second")
    hvd.barrier()
    return int(hvd.stats()["network_bytes_sent"] - before)


@every_grid
def test_a_rank_sends_its_part_of_its_blocks_share(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    m, n = len(blocks), len(blocks[0])
    formula = 2 * (m - 1) / m * (1 << 20) / n
    for sent in grid.run(network_bytes_of_a_megabyte, env=env):
        assert formula <= sent <= 1.02 * formula + 4096


def mix_of_operations() -> None:
    hvd.init()
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
    hvd.barrier()


@few_grids
@pytest.mark.parametrize("lanes", ["1", "3"])
def test_other_operations_run_beside_two_level_ones(
    grid: Grid, env: dict[str, str], blocks: Blocks, lanes: str
) -> None:
    del blocks
    grid.run(mix_of_operations, env={**env, "LIGHT_NUM_STREAMS": lanes})


def ranks_that_run_out_of_data() -> None:
    hvd.init()
    for step in range(4):
        if step <= hvd.rank():
            total = hvd.allreduce(np.ones(30_000, np.float16), op=hvd.Sum, name=f"step{step}")
            check_same(total, np.full(30_000, hvd.size() - step, np.float16), step)
    hvd.join()
    check_same(hvd.allreduce(np.ones(5, np.int8), op=hvd.Sum), np.full(5, hvd.size(), np.int8))


@few_grids
def test_joined_ranks_give_zeros(grid: Grid, env: dict[str, str], blocks: Blocks) -> None:
    del blocks
    grid.run(ranks_that_run_out_of_data, env=env)


def sums_in_sets() -> None:
    sets = [hvd.ProcessSet(ranks) for ranks in ([0, 2], [0, 1], [0, 1, 2], [1, 3])]
    hvd.init(process_sets=sets)
    handles: list[tuple[Any, Any]] = []
    for round_ in range(10):
        for process_set in [*sets, hvd.global_process_set]:
            if not process_set.included():
                continue
            members = process_set.ranks or list(range(hvd.size()))
            inputs = {rank: np.full(3000, rank + round_, np.int64) for rank in members}
            handle = hvd.allreduce_async(
                inputs[hvd.rank()],
                op=hvd.Sum,
                name=f"{process_set.process_set_id}.{round_}",
                process_set=process_set,
            )
            handles.append((handle, summed(list(inputs.values()))))
    for handle, expected in handles:
        check_same(hvd.synchronize(handle), expected)
    hvd.barrier()  # A rank that leaves ends what sets without it still do.


@few_grids
def test_process_sets_have_grids_of_their_own_or_none(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run(sums_in_sets, env=env)


def bits_of_a_set(ranks: list[int], blocks: Blocks) -> None:
    process_set = hvd.ProcessSet(ranks)
    hvd.init(process_sets=[process_set])
    if process_set.included():
        dtype = np.dtype("float32")
        result = hvd.allreduce(
            random_numbers(dtype, hvd.rank()), op=hvd.Sum, process_set=process_set
        )
        check_same(result, sum_by_blocks(dtype, blocks))
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


@pytest.mark.parametrize(
    ("grid", "env", "why"),
    [
        pytest.param(
            Grid(3, [0, 1, 1]),
            TWO_LEVEL,
            "the hosts have different numbers of ranks: 1 on the host of rank 0, 2 on the host of "
            "rank 1",
            id="uneven_hosts",
        ),
        pytest.param(
            Grid(3),
            AS_TWO_BY_TWO,
            "LIGHT_INTRA_SIZE=2 does not divide the 3 on the host of rank 0",
            id="size_that_does_not_divide",
        ),
    ],
)
def test_where_there_is_no_grid_allreduces_are_flat_and_say_why_once(
    grid: Grid, env: dict[str, str], why: str
) -> None:
    lines = lines_with("flat", grid, env, check_bits, [[0, 1, 2]])
    assert len(lines) == 1, lines
    assert why in lines[0]


def adasum_of_what_is_equal() -> None:
    hvd.init()
    same = pattern(np.dtype("float32"), (40,)) + np.float32(1)
    for _ in range(3):
        check_same(hvd.allreduce(same, op=hvd.Adasum), same)


def test_adasum_is_flat_and_says_so_once() -> None:
    lines = lines_with("Adasum", TWO_HOSTS, TWO_LEVEL, adasum_of_what_is_equal)
    assert len(lines) == 1, lines
    assert "run flat" in lines[0]
    assert lines_with("Adasum", TWO_HOSTS, {}, adasum_of_what_is_equal) == []


def error_of_init() -> str:
    with pytest.raises(ValueError, match="LIGHT_INTRA_SIZE") as caught:
        hvd.init()
    return str(caught.value)


def test_ranks_that_disagree_about_the_grid_are_named() -> None:
    sizes = ("2", "2", "4", "2")
    envs = [{**TWO_LEVEL, "LIGHT_INTRA_SIZE": size} for size in sizes]
    for text in spawn_ranks(error_of_init, 4, env=envs):
        assert "rank 0 has LIGHT_INTRA_SIZE=2, but rank 2 has LIGHT_INTRA_SIZE=4" in text


@pytest.mark.parametrize("victim", range(4))
@few_grids
def test_death_during_a_two_level_allreduce_reaches_every_rank(
    grid: Grid, env: dict[str, str], blocks: Blocks, victim: int
) -> None:
    del blocks
    check_death(grid, victim, reduce_until_error, 2_000_000, **env)


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


@pytest.mark.parametrize("victim", [0, 3])
@few_grids
def test_death_during_two_level_exchanges_reaches_every_rank(
    grid: Grid, env: dict[str, str], blocks: Blocks, victim: int
) -> None:
    del blocks
    check_death(grid, victim, exchange_until_error, 300_000, **env)
