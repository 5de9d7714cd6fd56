"""An elastic job whose workers are actors of a Ray cluster.

It is an `ElasticJob` of `lightccrun`'s; actors are started and stopped here. One loop, in the
thread of the caller, takes in what threads have seen: hosts, what workers say through the job's
store, and actors that have ended.

A host is an address of the cluster. Ray finds the node of a worker by the resource that each node
has under its address.
"""

from __future__ import annotations

import importlib
import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from lightcc.ray.worker import BaseHorovodWorker
from lightcc.runner.driver import Action, Awaits, End, FoundSlow, LeftOut, Settings, Start
from lightcc.runner.driver.elastic_job import ElasticJob
from lightcc.runner.environment import slot_environment, worker_environment
from lightcc.runner.hosts import number_ranks
from lightcc.runner.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc._discovery.plan import Status

_log = logging.getLogger(__name__)
_SHARE_OF_NODE = 0.001  # A worker's share of the resource that names a node: 1000 fit.


class PerWorker(NamedTuple):
    """What Ray reserves for each worker."""

    cpus: float
    gpus: float


class SlotInfo(NamedTuple):
    """Who has a slot of a host; without a worker, `hostname` is empty."""

    hostname: str
    worker: int


@dataclass
class _Worker:
    host: str
    actor: Any
    is_ready: bool = False
    is_over: bool = False


class RayJob:
    """One elastic job, from its first worker to its end.

    Attributes:
        is_used: Whether it has run.
    """

    def __init__(
        self,
        settings: Settings,
        discovery: Any,
        interval_s: float,
        per_worker: PerWorker,
        environment: dict[str, str],
        executable: tuple[Any, Any, Any],
    ) -> None:
        """Prepares the job.

        Args:
            settings: For the driver.
            discovery: Has a method `find_available_hosts_and_slots()`.
            interval_s: From one call of it to the next.
            per_worker: What Ray reserves for each.
            environment: Variables of all workers.
            executable: Class and arguments of what functions get; without a class, `None`.
        """
        self.is_used = False
        self._settings = settings
        self._discovery = discovery
        self._interval_s = interval_s
        self._per_worker = per_worker
        self._environment = environment
        self._executable = executable
        self._hosts: dict[str, int] = {}
        self._workers: dict[int, _Worker] = {}
        self._results: dict[int, Any] = {}
        self._last_error: Exception | None = None
        self._end: End | None = None
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def run(self, function: Callable[[Any], Any], log_queue: Any) -> list[Any]:
        """Has workers call `function(executable)`; returns what they returned, by their last ranks.

        Args:
            function: What to call.
            log_queue: Where workers log to; `None`: nowhere.

        Raises:
            RuntimeError: The job cannot go on. The cause is what the last worker raised, if any.
        """
        self.is_used = True
        self._call, self._log_queue = _with_executable(function, *self._executable), log_queue
        self._store = JobStore(ray.util.get_node_ip_address())
        core = importlib.import_module("lightcc._core")
        client = core.StoreClient(self._store.address, self._store.secret)
        self._job = job = ElasticJob(self._settings, client, self)
        watchers = [
            threading.Thread(
                target=job.watch_workers,
                args=(self._events.put,),
                name="lightcc-ray-workers",
                daemon=True,
            ),
            threading.Thread(target=self._watch_hosts, name="lightcc-ray-hosts", daemon=True),
        ]
        for watcher in watchers:
            watcher.start()
        try:
            end = self._loop()
        finally:
            self._stopping.set()
            for worker in self._workers.values():
                if not worker.is_over:
                    ray.kill(worker.actor)
            job.plans.close()
            watchers[0].join()
            self._store.stop()
        if end.error:
            msg = f"the elastic job has ended: {end.error}"
            raise RuntimeError(msg) from self._last_error
        return [self._results[number] for number in job.plans.members if number in self._results]

    # -- What a host discovery of Horovod's may ask -----------------------------------------------

    def get_slot_info(self, host: str, local_rank: int) -> SlotInfo:
        """Returns who has the slot of a host."""
        found = [n for n, it in list(self._workers.items()) if it.host == host and not it.is_over]
        if local_rank >= len(found):
            return SlotInfo("", -1)
        return SlotInfo(host, found[local_rank])

    def get_worker_client(self, slot: SlotInfo) -> _Worker | None:
        """Returns the worker of a slot once it has come to `init()`; `None` before."""
        worker = self._workers.get(slot.worker)
        return worker if worker is not None and worker.is_ready else None

    # -- Events -----------------------------------------------------------------------------------

    def _loop(self) -> End:
        while self._end is None:
            until = self._job.deadline()
            try:
                wait_s = None if until is None else max(0.0, until - time.monotonic())
                event = self._events.get(timeout=wait_s)
            except queue.Empty:
                self._job.tick()
            else:
                event()
        return self._end

    def _watch_hosts(self) -> None:
        while not self._stopping.is_set():
            try:
                hosts = dict(self._discovery.find_available_hosts_and_slots())
            except Exception:  # noqa: BLE001  it is the user's; what it said last holds
                if self._stopping.is_set():
                    return
                _log.exception("the discovery of hosts failed")
            else:
                self._events.put(lambda hosts=hosts: self._on_hosts(hosts))  # type: ignore[misc]
            self._stopping.wait(self._interval_s)

    def _on_hosts(self, hosts: dict[str, int]) -> None:
        self._hosts = hosts
        self._job.hosts_seen(hosts)

    def _on_end(self, number: int, future: Any) -> None:
        worker = self._workers[number]
        error = future.exception()
        if worker.is_over:
            return
        if error is None:
            self._results[number] = future.result()
            # In order, so that its world ends in order, too.
            worker.actor.__ray_terminate__.remote()
            text = f"worker {number} on {worker.host} has returned before training has finished"
            if worker.is_ready:
                # What it said last may not have come to the watcher yet.
                self._job.entries_seen(self._job.plans.entry_of(number))
        else:
            ray.kill(worker.actor)
            cause = getattr(error, "cause", None) or error
            self._last_error = error
            words = str(cause).partition("\n")[0]
            text = f"worker {number} on {worker.host}: {type(cause).__name__}: {words}"
            _log.warning("%s", text)
        worker.is_over = True
        self._job.worker_ended(number, int(error is not None), text)

    # -- What the driver says ---------------------------------------------------------------------

    def heard(self, worker: int, status: Status) -> None:  # noqa: ARG002
        """Notes that a worker has come to `init()`."""
        self._workers[worker].is_ready = True

    def is_ending(self) -> bool:
        """Returns false: nothing but the driver ends the job."""
        return False

    def tell(self, action: Action) -> None:
        """Logs a warning of workers that others wait for."""
        if isinstance(action, LeftOut):
            _log.warning("worker %d is silent: the others go on without it", action.worker)
        elif isinstance(action, Awaits):
            text = "the others wait for workers that are not ready, or in a broken epoch: %s"
            _log.warning(text, ", ".join(map(str, action.workers)))
        elif isinstance(action, FoundSlow):
            text = "worker %d is slow: its step takes %.1f times the median rank's"
            _log.warning(text, action.worker, action.factor)

    def start(self, start: Start) -> None:
        """Starts an actor on the node of a host."""
        number = start.worker
        slot = number_ranks(list(start.hosts))[start.rank]
        environment = self._environment | slot_environment(
            slot, rendezvous=self._store.address, secret=self._store.secret
        )
        environment |= worker_environment(number)
        cpus, gpus = self._per_worker
        if gpus:
            count = int(self._hosts.get(start.host, slot.local_size) * gpus)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(count)))
        actor = (
            ray.remote(BaseHorovodWorker)
            .options(num_cpus=cpus, num_gpus=gpus, resources={f"node:{start.host}": _SHARE_OF_NODE})
            .remote(slot.rank, slot.size)
        )
        self._workers[number] = _Worker(start.host, actor)
        actor.update_env_vars.remote(environment)
        actor.set_queue.remote(self._log_queue)
        future = actor.execute.remote(self._call).future()
        future.add_done_callback(lambda done: self._events.put(lambda: self._on_end(number, done)))

    def stop(self, worker: int) -> None:
        """Kills an actor."""
        actor = self._workers[worker]
        if not actor.is_over:
            actor.is_over = True
            ray.kill(actor.actor)
            text = f"worker {worker} was stopped"
            self._events.put(lambda: self._job.worker_ended(worker, 1, text))

    def end(self, end: End) -> None:
        """Ends the loop."""
        self._end = end


def _with_executable(
    function: Callable[[Any], Any], executable_cls: Any, args: Any, kwargs: Any
) -> Callable[[Any], Any]:
    """Returns a function for `BaseHorovodWorker.execute` that makes the object first."""
    if executable_cls is None:
        return function
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    return lambda _: function(executable_cls(*args, **kwargs))
