"""`horovod.data`: a loader that reads ahead gives the same batches, and ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from lightcc.horovod.data import AsyncDataLoaderMixin, BaseDataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator


class Loader(BaseDataLoader):
    def __init__(self, batches: int, fail_in: int = -1) -> None:
        self.batches = batches
        self.fail_in = fail_in
        self.epochs = 0
        self.readers: set[int] = set()

    def __len__(self) -> int:
        return self.batches

    def _iterate(self) -> Iterator[int]:
        self.readers.add(threading.get_ident())
        self.epochs += 1
        for batch in range(self.batches):
            if self.epochs == self.fail_in and batch == 1:
                raise OSError("disk")
            yield 100 * self.epochs + batch

    def _process_batch(self, batch: Any) -> Any:
        return -batch


class AsyncLoader(AsyncDataLoaderMixin, Loader):
    pass


@pytest.mark.parametrize("ahead", [0, 1, 64])
def test_each_loop_is_one_epoch(ahead: int) -> None:
    loader = AsyncLoader(ahead, False, batches=3)
    assert len(loader) == 3
    for epoch in (1, 2, 3):
        assert list(loader) == [-100 * epoch - batch for batch in range(3)]
    assert (threading.get_ident() in loader.readers) == (ahead == 0)
    loader.close_async_loader()
    assert ahead == 0 or not loader.thread.is_alive()


def test_an_error_of_the_reader_comes_out_of_the_loop_each_time() -> None:
    loader = AsyncLoader(async_loader_queue_size=1, batches=3, fail_in=2)
    assert list(loader) == [-100, -101, -102]
    for _ in range(2):
        with pytest.raises(OSError, match="disk"):
            list(loader)
    loader.close_async_loader()


@pytest.mark.parametrize("ahead", [1, 2, 64])
def test_closing_in_the_middle_ends_the_thread(ahead: int) -> None:
    loader = AsyncLoader(ahead, batches=1000)
    loop = iter(loader)
    next(loop)
    loader.close_async_loader()
    assert not loader.thread.is_alive()
    assert list(loop) == []
    with pytest.raises(ValueError, match="has been closed"):
        next(iter(loader))


def test_a_loader_that_was_never_used_closes() -> None:
    AsyncLoader(4, batches=1).close_async_loader()


def test_a_base_loader_has_nothing_of_its_own() -> None:
    with pytest.raises(NotImplementedError):
        len(BaseDataLoader())
    with pytest.raises(NotImplementedError):
        list(BaseDataLoader())
    assert list(Loader(2)) == [-100, -101]
