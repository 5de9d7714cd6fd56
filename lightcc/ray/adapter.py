"""What executors of fixed ranks and elastic ones have in common."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray.util.queue import Empty, Queue

from lightcc.horovod.runner.cluster import rank_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    Callbacks = Sequence[Callable[[Any], Any]]

_log = logging.getLogger(__name__)
_POLL_S = 0.1


@dataclass
class BaseParams:
    """What one worker gets.

    Attributes:
        cpus_per_worker: CPUs, as Ray counts them.
        use_gpu: Whether workers get GPUs.
        gpus_per_worker: How many; 1 where GPUs are used and it is not given.
    """

    cpus_per_worker: int = 1
    use_gpu: bool = False
    gpus_per_worker: int | None = None

    def __post_init__(self) -> None:
        """Checks that the values fit together."""
        if self.gpus_per_worker and not self.use_gpu:
            msg = f"gpus_per_worker={self.gpus_per_worker} needs use_gpu=True"
            raise ValueError(msg)
        if self.use_gpu and self.gpus_per_worker is not None and self.gpus_per_worker < 1:
            msg = f"gpus_per_worker={self.gpus_per_worker}: expected at least 1 with use_gpu=True"
            raise ValueError(msg)
        self.gpus_per_worker = self.gpus_per_worker or int(self.use_gpu)


class Adapter(ABC):
    """What an executor calls; under Ray Client it is an actor of the cluster."""

    @abstractmethod
    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Does what `RayExecutor.start` says."""

    @abstractmethod
    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks | None = None) -> list[Any]:
        """Does what `RayExecutor.execute` says."""

    @abstractmethod
    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Does what `RayExecutor.run_remote` says."""

    @abstractmethod
    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Does what `RayExecutor.execute_single` says."""

    @abstractmethod
    def shutdown(self) -> None:
        """Ends the workers."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Callbacks | None = None,
    ) -> list[Any]:
        """Does what `RayExecutor.run` says."""
        return self.execute(without_executable(fn, args, kwargs), callbacks)


def without_executable(
    fn: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Callable[[Any], Any]:
    """Returns a function for `BaseHorovodWorker.execute` that calls `fn(*args, **kwargs)`."""
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    return lambda _: fn(*args, **kwargs)


def common_environment(
    nics: Collection[str] | str | None, start_timeout_s: float | None
) -> dict[str, str]:
    """Returns what all ranks get: the driver's settings of lightcc, and the executor's."""
    environment = rank_environment(nics)
    if start_timeout_s is not None:
        environment["HOROVOD_START_TIMEOUT"] = f"{start_timeout_s:g}"
    return environment


@contextlib.contextmanager
def relayed(callbacks: Callbacks | None) -> Iterator[Any]:
    """Calls `callbacks` with what ranks log while the block runs; yields the queue for ranks.

    Yields `None` where there are no callbacks. The first error of a callback leaves the block.
    """
    if not callbacks:
        yield None
        return
    values = Queue(actor_options={"num_cpus": 0})
    is_over = threading.Event()
    errors: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def pass_on() -> None:
        while True:
            was_over = is_over.is_set()
            try:
                value = values.get(timeout=_POLL_S)
            except Empty:
                if was_over:
                    return
                continue
            try:
                for callback in callbacks:
                    callback(value)
            except Exception as error:  # noqa: BLE001  it is the caller's, and raised there
                _log.exception("a callback failed")
                errors.put(error)

    thread = threading.Thread(target=pass_on, name="lightcc-ray-callbacks", daemon=True)
    thread.start()
    try:
        yield values
    finally:
        is_over.set()
        thread.join()
        values.shutdown(force=True)
    if not errors.empty():
        raise errors.get()
