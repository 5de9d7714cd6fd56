"""Groups: how they are made, how they end, and what a rank hears when another is missing."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from groups import start
from processes import run_to_end
from torch.distributed.device_mesh import init_device_mesh

import lightcc.torch as hvd
from lightcc._discovery.torch_store import TorchStoreChannel, prefix_of_start
from lightcc.exceptions import CollectiveTimeoutError, HorovodInternalError, PeerFailedError
from lightcc.testing import RankProcesses, spawn_ranks
from lightcc.torch.distributed import ProcessGroup, monitored_barrier, split_group

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.multiproc


def total(group: Any = None) -> float:
    tensor = torch.full((1,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor, group=group)
    return float(tensor.item())


def groups_of_all_kinds(store: str) -> None:
    rank, _ = start(store)
    assert dist.get_backend() == "lightcc"
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    assert total(halves[rank // 2]) == (3.0 if rank < 2 else 7.0)
    # Two groups of the same ranks may be used in different orders.
    twins = [dist.new_group([0, 1, 2, 3]), dist.new_group([3, 2, 1, 0])]
    tensors = [torch.ones(1), torch.full((1,), 10.0)]
    order = (0, 1) if rank % 2 else (1, 0)
    works = [dist.all_reduce(tensors[i], group=twins[i], async_op=True) for i in order]
    for work in works:
        work.wait()
    assert [t.item() for t in tensors] == [4.0, 40.0]
    if rank in (1, 3):
        pair = dist.new_group([1, 3], use_local_synchronization=True)
        assert total(pair) == 6.0
    alone = dist.new_group([2])
    if rank == 2:
        assert total(alone) == 3.0
    mine, _ = dist.new_subgroups(2)
    assert total(mine) == (3.0 if rank < 2 else 7.0)

    world: Any = dist.group.WORLD
    split = world.split_group([3, 0])
    if rank in (0, 3):
        assert type(split) is ProcessGroup
        assert split.rank() == (0 if rank == 3 else 1)
        tensor = torch.full((1,), float(rank))
        split.broadcast(tensor, 0).wait()  # type: ignore[union-attr]
        assert tensor.item() == 3.0
        split.shutdown()
        with pytest.raises(ValueError, match="has been destroyed"):
            split.broadcast(tensor, 0)
    else:
        assert split is None
    with pytest.raises(ValueError, match="different ranks from 0 to 3"):
        world.split_group([0, 4])

    # As torch's, which asks for an accelerator.
    with pytest.raises(RuntimeError, match="No device associated"):
        dist.split_group(None, [[0, 1]])
    part = split_group(None, [[3, 0], [1]])
    if rank == 2:
        assert part is None
    else:
        assert dist.get_backend(part) == "lightcc"
        ranks = dist.get_process_group_ranks(part)
        assert ranks == ([1] if rank == 1 else [0, 3])
        assert total(part) == (2.0 if rank == 1 else 5.0)
    if rank in (0, 3):
        half = split_group(part, [[1], [0]], timeout=timedelta(seconds=20), group_desc="half")
        assert (dist.get_world_size(half), total(half)) == (1, rank + 1.0)
        again = split_group(part, [[1], [0]])
        dist.destroy_process_group(half)
        assert total(again) == rank + 1.0
    wrong: Any
    for wrong in (None, [[]], [[0, 0]], [[0], [0, 1]], [[4]]):
        with pytest.raises(ValueError, match=r"split_ranks is .* ranks from 0 to 3"):
            split_group(None, wrong)

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    assert total(mesh["columns"].get_group()) == (3.0 if rank < 2 else 7.0)
    assert total(mesh["rows"].get_group()) == (4.0 if rank % 2 == 0 else 6.0)
    dist.destroy_process_group(halves[rank // 2])
    assert total() == 10.0
    dist.destroy_process_group()
    assert not hvd.is_initialized()


def test_groups_of_all_kinds(tmp_path: Path) -> None:
    spawn_ranks(groups_of_all_kinds, 4, os.fspath(tmp_path / "store"))


def groups_come_again(stores: list[str]) -> None:
    for store in stores:
        rank, size = start(store)
        assert total() == size * (size + 1) / 2
        assert (hvd.rank(), hvd.size()) == (rank, size)
        dist.destroy_process_group()
    # A world that the program has made is used, whatever the store, and stays.
    hvd.init()
    c10d: Any = dist
    dist.init_process_group(
        "lightcc", store=c10d.HashStore(), rank=hvd.rank(), world_size=hvd.size()
    )
    total()
    dist.destroy_process_group()
    assert hvd.is_initialized()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    # Beside a default group of another backend.
    dist.init_process_group(
        "gloo", init_method=f"file://{stores[0]}y", rank=hvd.rank(), world_size=hvd.size()
    )
    beside = dist.new_group(backend="lightcc")
    assert total(beside) == hvd.size() * (hvd.size() + 1) / 2
    dist.destroy_process_group()


def test_groups_end_and_come_again(tmp_path: Path) -> None:
    spawn_ranks(groups_come_again, 2, [os.fspath(tmp_path / f"store{i}") for i in range(2)])


def own_stores(store: str) -> None:
    """Ranks 0 and 1 train; rank 2 serves what they send it, and has no default group."""
    c10d: Any = dist
    me = int(os.environ["LIGHT_RANK"])
    if me < 2:
        dist.init_process_group("lightcc", init_method=f"file://{store}", rank=me, world_size=2)
    for again in range(2):  # Rank and size of rank 0 are those of its default group.
        if me in (0, 2):
            own = c10d.FileStore(f"{store}.{again}", 2)
            group, _ = c10d.distributed_c10d._new_process_group_helper(
                2, me // 2, [], "lightcc", own, f"weights{again}", timeout=timedelta(seconds=30)
            )
            weights = torch.full((3,), float(me + again))
            group.broadcast([weights], 0).wait()
            assert weights.tolist() == [float(again)] * 3
            group.shutdown()
        if me < 2:
            assert total() == 3.0
            assert hvd.size() == 2


def test_a_group_with_a_store_of_its_own_meets_there(tmp_path: Path) -> None:
    spawn_ranks(own_stores, 3, os.fspath(tmp_path / "store"))


def another_world_is_refused(store: str) -> None:
    hvd.init(comm=[hvd_rank()])
    with pytest.raises(ValueError, match=r"rank 0 of 1, but the process group is to be rank"):
        start(store)


def hvd_rank() -> int:
    return int(os.environ["LIGHT_RANK"])


def test_a_world_of_other_ranks_is_refused(tmp_path: Path) -> None:
    spawn_ranks(another_world_is_refused, 2, os.fspath(tmp_path / "store"))


def waiting_ends(store: str) -> None:
    rank, _ = start(store)
    tensor = torch.ones(1)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(CollectiveTimeoutError, match=r"all_reduce in .* after 0.2 s"):
            work.wait(timedelta(seconds=0.2))
        assert not work.is_completed()
        short: Any = dist.new_group([0, 1])
        short.set_timeout(timedelta(seconds=0.3))
        with pytest.raises(CollectiveTimeoutError, match=r"barrier in group .* after 0.3 s"):
            dist.barrier(group=short)
        late = dist.all_reduce(torch.ones(1), async_op=True)
        late.get_future()
        with pytest.raises(CollectiveTimeoutError):
            late.wait(timedelta(seconds=0.2))
        with pytest.raises(CollectiveTimeoutError, match=r"Ranks 1 failed to pass") as caught:
            monitored_barrier(timeout=timedelta(seconds=0.3), wait_all_ranks=True)
        assert caught.value.rank == 1
        with pytest.raises(CollectiveTimeoutError, match="Rank 0 timed out in monitoredBarrier"):
            monitored_barrier(timeout=timedelta(0))
        dist.distributed_c10d._get_default_store().set("go", "1")
        work.wait()
        late.wait()
    else:
        dist.new_group([0, 1])
        dist.distributed_c10d._get_default_store().wait(["go"])
        dist.all_reduce(tensor)
        dist.all_reduce(torch.ones(1))
    assert tensor.item() == 2.0


def test_waiting_ends_with_a_typed_error(tmp_path: Path) -> None:
    spawn_ranks(waiting_ends, 2, os.fspath(tmp_path / "store"))


def options_have_a_timeout(store: str) -> None:
    rank, _ = start(store)
    group: Any = dist.group.WORLD
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=0.2)
    options.asyncOp = False
    tensor = torch.ones(2)
    if rank == 0:
        with pytest.raises(CollectiveTimeoutError, match=r"all_reduce in .* after 0.2 s"):
            group.allreduce([tensor], options)
        dist.distributed_c10d._get_default_store().set("go", "1")
    else:
        dist.distributed_c10d._get_default_store().wait(["go"])
        dist.all_reduce(tensor)
    dist.barrier()
    assert tensor.tolist() == [2.0, 2.0]


def test_options_of_one_operation_have_a_timeout(tmp_path: Path) -> None:
    spawn_ranks(options_have_a_timeout, 2, os.fspath(tmp_path / "store"))


def everybody_meets(store: str) -> None:
    start(store)
    for _ in range(3):
        monitored_barrier(timeout=timedelta(seconds=20))
    group = dist.new_group([1, 2])
    if dist.get_rank() > 0:
        monitored_barrier(group, timedelta(seconds=20))


def test_a_monitored_barrier_where_all_come(tmp_path: Path) -> None:
    spawn_ranks(everybody_meets, 3, os.fspath(tmp_path / "store"))


def a_rank_dies(store: str) -> str:
    rank, size = start(store)
    group = dist.new_group(list(range(size)))
    total(group)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    errors = []
    for each in (None, group):
        with pytest.raises(HorovodInternalError) as caught:
            total(each)
        errors.append(caught.value)
    assert isinstance(errors[0], PeerFailedError)
    assert errors[0].rank == 1
    with pytest.raises(PeerFailedError, match="rank 1"):
        dist.all_reduce(torch.ones(1), async_op=True)
    return type(errors[1]).__name__


def test_a_killed_rank_is_named_on_the_others(tmp_path: Path) -> None:
    store = os.fspath(tmp_path / "store")
    with RankProcesses(a_rank_dies, 3, store) as ranks:
        results = ranks.wait(timeout_s=60)
    assert results[1].exit_code == -signal.SIGKILL
    assert [results[i].value for i in (0, 2)] == ["PeerFailedError"] * 2, results


def new_groups_end(store: str) -> str:
    rank, _ = start(store)
    others: Any = dist.distributed_c10d._get_default_store()
    if rank == 0:
        with pytest.raises(CollectiveTimeoutError, match=r"ranks \[1\] of 2 .*the group's timeout"):
            dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
        others.set("over", "1")
        with pytest.raises(PeerFailedError, match="rank 2") as caught:
            dist.new_group([0, 2])  # The rank dies while this one waits for it.
        assert caught.value.rank == 2
        with pytest.raises(PeerFailedError, match="rank 2"):
            dist.new_group([0, 2])  # It is known to be dead.
        pair = split_group(None, [[0, 1]])  # These two are not concerned.
        return str(total(pair))
    others.wait(["over"])
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return str(total(split_group(None, [[0, 1]])))


def test_a_new_group_heeds_its_timeout_and_a_death(tmp_path: Path) -> None:
    with RankProcesses(new_groups_end, 3, os.fspath(tmp_path / "store")) as ranks:
        results = ranks.wait(timeout_s=60)
    assert [results[i].value for i in (0, 1)] == ["3.0", "3.0"], results


def callbacks_wait(store: str) -> None:
    rank, size = start(store)
    group = dist.new_group(list(range(size)))
    ramp = torch.arange(4.0)

    def twice(i: int, future: Any) -> Any:
        """Starts operations beside those of other callbacks, in another order on each rank."""
        (tensor,) = future.value()
        dist.all_reduce(tensor.mul_(i), group=group)
        inner = dist.all_reduce(tensor.add_(i), async_op=True).get_future()
        assert inner.then(lambda outer: outer.value()[0] is tensor).wait()
        return tensor

    for wait_first in (rank == 0, False):
        futures = []
        for i in range(8):
            work: Any = dist.all_reduce(ramp + i, async_op=True)
            if wait_first and i % 2:
                work.wait()  # Its callbacks run at once, in this thread.
            future = work.get_future()
            futures.append(future.then(partial(twice, i)).then(lambda it: 2 * it.value()))
        for i, future in enumerate(futures):
            expected = 2 * size * (size * i * size * (ramp + i) + i)
            assert torch.equal(future.wait(), expected), (i, future.wait(), expected)
    failing = dist.all_reduce(ramp, async_op=True).get_future().then(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing.then(lambda future: future.value()).wait()
    several = dist.distributed_c10d._coalescing_manager
    with several(async_ops=True) as manager:
        dist.all_reduce(ramp)
        dist.all_reduce(torch.ones(1))
    (both,) = manager.works
    assert both.get_future().wait()[1].item() == size
    dist.barrier()


def test_callbacks_wait_for_what_they_start(tmp_path: Path) -> None:
    spawn_ranks(callbacks_wait, 3, os.fspath(tmp_path / "store"))


def nothing_blocks(store: str) -> None:
    rank, _ = start(store)
    others: Any = dist.distributed_c10d._get_default_store()
    if rank == 1:
        others.wait(["asked"])
        dist.all_reduce(torch.ones(1))
        return
    work: Any = dist.all_reduce(torch.ones(1), async_op=True)
    waiter = threading.Thread(target=work.wait)
    waiter.start()
    while work._taker is None:
        pass
    assert not work.is_completed()
    future = work.get_future()
    assert not future.done()
    others.set("asked", "1")
    assert future.wait()[0].item() == 2.0
    waiter.join()
    assert work.is_completed()


def test_asking_whether_it_is_done_never_waits(tmp_path: Path) -> None:
    spawn_ranks(nothing_blocks, 2, os.fspath(tmp_path / "store"))


SPAWNED = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def boom(rank):
    dist.init_process_group("lightcc", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
    if rank == 1:
        raise RuntimeError("out of memory")
    try:
        dist.all_reduce(torch.ones(1))
    except Exception as error:
        print("rank 0 got", type(error).__name__, error.rank, error, flush=True)
        raise
if __name__ == "__main__":
    mp.spawn(boom, nprocs=2)
"""


def test_a_spawned_rank_tells_the_others_why_it_ends(tmp_path: Path) -> None:
    program = tmp_path / "spawned.py"
    program.write_text(SPAWNED)
    done = run_to_end([sys.executable, program, tmp_path / "store"], timeout=100)
    expected = "rank 0 got PeerFailedError 1 rank 1 ended with RuntimeError: out of memory"
    assert expected in done.stdout, done.stdout + done.stderr
    assert "RuntimeError: out of memory" in done.stderr


def the_last_rank_ends(store: str, how: str) -> str:
    rank, size = start(store)
    if rank < size - 1:
        with pytest.raises(HorovodInternalError) as caught:
            total()
        assert caught.value.rank == size - 1
        return f"{type(caught.value).__name__}: {caught.value}"
    if how == "raises":
        try:
            raise KeyError("weights")
        except KeyError:
            dist.destroy_process_group()
    elif how == "leaves":
        hvd.shutdown()
    else:
        os.kill(os.getpid(), signal.SIGKILL)
    return ""


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("raises", r"^PeerFailedError: rank 2 ended with KeyError: 'weights'$"),
        ("leaves", r"^ShutDownError: lightcc has been shut down by rank 2 finishing before the"),
        (
            "dies",
            r"^PeerFailedError: rank 2 \(process \d+\) ended unexpectedly: by (signal 9|a signal)",
        ),
    ],
)
def test_errors_name_the_rank_and_how_it_ended(how: str, expected: str, tmp_path: Path) -> None:
    with RankProcesses(the_last_rank_ends, 3, os.fspath(tmp_path / "store"), how) as ranks:
        results = ranks.wait(timeout_s=60)
    for result in results[:2]:
        assert re.search(expected, str(result.value)), result
        assert "Horovod" not in str(result.value)


def other_devices(store: str) -> None:
    start(store)
    with pytest.raises(ValueError, match="device meta"):
        dist.all_reduce(torch.ones(1, device="meta"))
    world: Any = dist.group.WORLD
    with pytest.raises(RuntimeError, match="takes tensors on cpu and cuda, not on"):
        world._get_backend(torch.device("meta"))
    with pytest.raises(ValueError, match="takes no pg_options"):
        dist.new_group([0], pg_options=object(), backend="lightcc")


def test_other_devices_and_options_are_refused(tmp_path: Path) -> None:
    spawn_ranks(other_devices, 1, os.fspath(tmp_path / "store"))


BACKENDS = """
import sys, torch, torch.distributed as dist
assert "lightcc" not in sys.modules
for asked in ("cpu:gloo", "gloo", "cpu:lightcc", "lightcc"):
    dist.init_process_group(asked, store=dist.HashStore(), rank=0, world_size=1)
    t = torch.ones(2)
    dist.all_reduce(t)
    print(dist.group.WORLD.name(), t.sum().item(), "lightcc" in dist.Backend.backend_list)
    dist.destroy_process_group()
"""


def test_torch_finds_the_backend_itself_and_others_stay_what_they_were() -> None:
    done = run_to_end([sys.executable, "-c", BACKENDS], timeout=60)
    expected = [f"{name} 2.0 True" for name in ("gloo", "gloo", "lightcc", "lightcc")]
    assert done.stdout.splitlines() == expected, done.stdout + done.stderr


def test_ranks_that_were_started_anew_do_not_read_what_was_left() -> None:
    c10d: Any = dist  # torch exports its stores without saying so.
    store = c10d.HashStore()

    def channel(rank: int, restart: str) -> TorchStoreChannel:
        prefix = prefix_of_start({"TORCHELASTIC_RESTART_COUNT": restart})
        own = c10d.PrefixStore(prefix, store)
        return TorchStoreChannel(own, "a store", rank, 2, timedelta(seconds=0.2))

    channel(0, "0").broadcast("old")
    assert channel(1, "0").broadcast("") == "old"
    with pytest.raises(PeerFailedError, match="rank 1 of 2 did not find all ranks through a store"):
        channel(1, "1").broadcast("")
    channel(0, "1").broadcast("new")
    assert channel(1, "1").broadcast("") == "new"


def test_what_all_ranks_have_read_is_not_left_for_strangers() -> None:
    c10d: Any = dist
    store = c10d.HashStore()
    ranks = [TorchStoreChannel(store, "a store", rank, 3) for rank in range(3)]
    ranks[0].broadcast("secret")
    assert ranks[1].broadcast("") == "secret"
    assert store.check(["broadcast/0"])
    assert ranks[2].broadcast("") == "secret"
    assert not store.check(["broadcast/0"])
