"""`horovod.data.data_loader_base`: a loader's interface, and a mix-in that reads in the background.

A program derives its loader from `BaseDataLoader` and defines `_iterate` and `__len__`. With
`AsyncDataLoaderMixin` in front, one thread runs `_iterate` again and again, an epoch after the
other, at most `async_loader_queue_size` batches ahead:

    class AsyncLoader(AsyncDataLoaderMixin, Loader):
        pass

The thread is the only one that calls `_iterate`, and the only writer of the queue.
"""

from __future__ import annotations

import contextlib
import logging
from queue import Empty, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)


class BaseDataLoader:
    """What a loader has; `_iterate` and `__len__` are the program's."""

    def __len__(self) -> int:
        """Returns the number of batches."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Yields the batches of one epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of one epoch, as `_process_batch` leaves them."""
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Returns what is yielded for `batch`; trainers override it."""
        return batch


class _EndOfEpoch:
    """Follows the last batch of an epoch in the queue."""


class _Failed:
    """Follows the last batch of all in the queue, when `_iterate` raised `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class AsyncDataLoaderMixin:
    """Makes a loader read ahead in a thread, which starts with the first iteration.

    Iterating gives one epoch. Where a loop is left early, the next one gets the rest of its epoch.
    """

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Prepares the thread.

        Args:
            async_loader_queue_size: Most batches that are read ahead. 0: nothing is, and there is
                no thread.
            debug_data_loader: Whether every batch is logged, at level DEBUG.
            args: For the next class.
            kwargs: For the next class.
        """
        super().__init__(*args, **kwargs)
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self.started = False
        if async_loader_queue_size > 0:
            self.finished_event = Event()
            self.queue: Queue[Any] = Queue(async_loader_queue_size)
            self.thread = Thread(target=self._async_worker, daemon=True)

    def close_async_loader(self) -> None:
        """Ends the thread and drops what it has read; a loop that waits for a batch ends."""
        if not self.started:
            return
        self.finished_event.set()
        # The worker looks at the event after each put, so that room for one more lets it end.
        self._drain()
        self.thread.join()
        self._drain()
        self.queue.put(_EndOfEpoch())

    def _drain(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self.queue.get_nowait()

    def _async_worker(self) -> None:
        try:
            while not self.finished_event.is_set():
                for batch in self._iterate():  # type: ignore[attr-defined]
                    self._put(batch)
                    if self.finished_event.is_set():
                        return
                self._put(_EndOfEpoch())
        except Exception as error:  # noqa: BLE001 - the loop gets it, whatever it is.
            self._put(_Failed(error))

    def _put(self, item: Any) -> None:
        self.queue.put(item)
        if self.debug_data_loader:
            _log.debug("%s: %d batches ahead", type(self).__name__, self.queue.qsize())

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of one epoch.

        Raises:
            Exception: Whatever `_iterate` raised, now and at each later attempt.
            ValueError: The loader has been closed.
        """
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        if self.finished_event.is_set():
            msg = "the loader has been closed: make another one"
            raise ValueError(msg)
        if not self.started:
            self.started = True
            self.thread.start()
        while True:
            item = self.queue.get()
            if isinstance(item, _EndOfEpoch):
                return
            if isinstance(item, _Failed):
                self.queue.put(item)  # The thread is gone, so that there is room.
                raise item.error
            yield self._process_batch(item)  # type: ignore[attr-defined]
