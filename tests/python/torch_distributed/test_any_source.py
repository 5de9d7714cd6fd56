"""Receives that name no source: who they take a message from, in which order, and how they end."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from groups import start

from lightcc.exceptions import (
    CollectiveTimeoutError,
    HorovodInternalError,
    PeerFailedError,
    RankMismatchError,
)
from lightcc.testing import RankProcesses, spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.multiproc


def run(function: Callable[[str], Any], ranks: int, tmp_path: Path) -> list[Any]:
    return spawn_ranks(function, ranks, os.fspath(tmp_path / "store"))


def everybody_in_turn(store: str) -> None:
    rank, size = start(store)
    senders: Counter[int] = Counter()
    for receiver in range(size):
        if rank != receiver:
            for _ in range(2):
                dist.send(torch.full((10, 3), float(rank)), receiver)
            continue
        for _ in range(size - 1):
            output = torch.full((10, 3), -1.0)
            sender = dist.recv(output)
            assert output.eq(sender).all()
            senders[sender] += 1
            output = torch.full((3, 10), -1.0).t()  # Not contiguous: it is copied into.
            work: Any = dist.irecv(output)
            work.wait()
            assert work.source_rank() == work._source_rank()
            assert output.eq(work.source_rank()).all()
            senders[work.source_rank()] += 1
    assert senders == {i: 2 for i in range(size) if i != rank}


def test_every_rank_receives_from_all_others(tmp_path: Path) -> None:
    run(everybody_in_turn, 3, tmp_path)


# Message `number` of those that rank `source` sends to `destination` with `tag`.
def message(source: int, destination: int, tag: int, number: int) -> torch.Tensor:
    return torch.tensor([source, destination, tag, number])


def mixture(store: str) -> None:
    rank, size = start(store)
    others = [i for i in range(size) if i != rank]
    tags, count = (0, 7), 24
    chance = random.Random(rank)
    sends: list[Any] = []
    posted: dict[int, list[tuple[int | None, torch.Tensor, Any]]] = {tag: [] for tag in tags}

    def receive(tag: int, source: int | None) -> None:
        output = torch.full((4,), -1)
        posted[tag].append((source, output, dist.irecv(output, source, tag=tag)))

    to_send = [(to, tag) for to in others for tag in tags for _ in range(count)]
    # However receives from any rank choose, every one that names its source gets a message.
    sources: list[int | None] = [*others, None]
    wanted = [(tag, source) for tag in tags for source in sources for _ in range(count // 2)]
    chance.shuffle(to_send)
    chance.shuffle(wanted)
    numbers: Counter[tuple[int, int]] = Counter()
    for sent, asked in itertools.zip_longest(to_send, wanted):
        if sent is not None:
            to, tag = sent
            text = message(rank, to, tag, numbers[sent])
            sends.append(dist.isend(text, to, tag=tag))
            numbers[sent] += 1
        if asked is not None:
            receive(*asked)

    def seen_sources(tag: int) -> Counter[int]:
        for _, _, work in posted[tag]:
            work.wait()
        return Counter(work.source_rank() for _, _, work in posted[tag])

    for tag in tags:
        seen = seen_sources(tag)
        for source in others:  # What is left, now that all sources are known.
            for _ in range(count - seen[source]):
                receive(tag, source)
    for tag in tags:
        assert seen_sources(tag) == dict.fromkeys(others, count)
        got: Counter[int] = Counter()
        for named, output, work in posted[tag]:
            came_from = work.source_rank()
            assert named in (None, came_from)
            # Nothing overtakes: in the order of the receives, messages of a source are in its own.
            assert torch.equal(output, message(came_from, rank, tag, got[came_from]))
            got[came_from] += 1
    for work in sends:
        work.wait()
    dist.barrier()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_receives_with_and_without_a_source_never_overtake(ranks: int, tmp_path: Path) -> None:
    run(mixture, ranks, tmp_path)


def groups_and_batches(store: str) -> None:
    rank, size = start(store)
    # In a group, dist.recv() tells the rank in the world, and the work the rank in the group.
    if rank in (1, 3):
        group = dist.new_group([1, 3], use_local_synchronization=True)
        if rank == 1:
            dist.send(torch.tensor([1.5]), 3, group=group)
            dist.send(torch.tensor([2.5]), 3, group=group)
        else:
            output = torch.zeros(1)
            assert dist.recv(output, group=group) == 1
            assert output.item() == 1.5
            work: Any = dist.irecv(output, group=group)
            work.wait()
            assert work.source_rank() == 0
            assert output.item() == 2.5
    dist.barrier()
    # A batch among receives from any rank.
    right, left = (rank + 1) % size, (rank - 1) % size
    first, second, third = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    any_works: list[Any] = [dist.irecv(first)]
    batch = [
        dist.P2POp(dist.isend, torch.tensor([10.0 * rank]), right),
        dist.P2POp(dist.isend, torch.tensor([10.0 * rank + 1]), right),
        dist.P2POp(dist.irecv, second, left),
    ]
    works = dist.batch_isend_irecv(batch)
    any_works.append(dist.irecv(third))
    dist.send(torch.tensor([10.0 * rank + 2]), right)
    for work in [*works, *any_works]:
        work.wait()
    assert [t.item() for t in (first, second, third)] == [10.0 * left + i for i in range(3)]
    assert [work.source_rank() for work in any_works] == [left, left]
    # The future knows as well.
    if rank == 0:
        large = torch.zeros(1 << 21)
        work = dist.irecv(large)
        assert work.get_future().wait()[0].sum() == 1 << 22
        assert work.source_rank() == 2
    elif rank == 2:
        dist.send(torch.full((1 << 21,), 2.0), 0)
    dist.barrier()


def test_sub_groups_batches_futures_and_large_tensors(tmp_path: Path) -> None:
    run(groups_and_batches, 4, tmp_path)


def what_differs(store: str) -> None:
    rank, _ = start(store)
    if rank == 0:
        with pytest.raises(RankMismatchError, match="Mismatched data types"):
            dist.recv(torch.zeros(2))
        with pytest.raises(RankMismatchError, match="shape"):
            dist.recv(torch.zeros(3))
        output = torch.zeros(2)
        assert dist.recv(output) == 1
        assert dist.recv(output, 1) == 1
        assert output.tolist() == [4.0, 5.0]
    else:
        for wrong in (torch.zeros(2).double(), torch.zeros(2)):
            with pytest.raises(RankMismatchError, match="Mismatched"):
                dist.send(wrong, 0)
        dist.send(torch.tensor([2.0, 3.0]), 0)
        dist.send(torch.tensor([4.0, 5.0]), 0)
    alone = dist.new_group([0])
    if rank == 0:
        with pytest.raises(ValueError, match="no other member"):
            dist.recv(torch.zeros(1), group=alone)


def test_a_message_of_another_type_or_shape_fails_alone(tmp_path: Path) -> None:
    run(what_differs, 2, tmp_path)


def nobody_sends(store: str) -> None:
    rank, _ = start(store)
    if rank == 0:
        output = torch.zeros(1)
        work: Any = dist.irecv(output)
        with pytest.raises(CollectiveTimeoutError, match="recv from any rank"):
            work.wait(timedelta(seconds=0.2))
        assert work.source_rank() == -1
        assert not work.is_completed()
        dist.barrier()
        work.wait()  # It went on, and takes the first message.
        assert (work.source_rank(), output.item()) == (1, 3.0)
    else:
        dist.barrier()
        dist.send(torch.tensor([3.0]), 0)


def test_a_receive_times_out_and_goes_on(tmp_path: Path) -> None:
    run(nobody_sends, 2, tmp_path)


def a_sender_dies(store: str) -> str:
    rank, _ = start(store)
    works: list[Any] = []
    if rank == 0:
        outputs = [torch.zeros(1) for _ in range(3)]
        works = [dist.irecv(output) for output in outputs]
        works[0].wait()
        assert outputs[0].item() == 1.0
    elif rank == 1:
        dist.send(torch.ones(1), 0)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    errors = []
    for work in works[1:]:
        with pytest.raises(HorovodInternalError) as caught:
            work.wait()
        errors.append(caught.value)
    with pytest.raises(HorovodInternalError):
        dist.recv(torch.zeros(1))
    assert all(isinstance(error, PeerFailedError) and error.rank == 1 for error in errors)
    return type(errors[0]).__name__ if errors else ""


def test_a_dead_rank_ends_receives_from_any(tmp_path: Path) -> None:
    store = os.fspath(tmp_path / "store")
    with RankProcesses(a_sender_dies, 3, store) as ranks:
        results = ranks.wait(timeout_s=60)
    assert results[1].exit_code == -signal.SIGKILL
    assert [results[i].value for i in (0, 2)] == ["PeerFailedError", ""], results
