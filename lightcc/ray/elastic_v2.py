"""An elastic job under `RayExecutor`, and the hosts that Ray has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from lightcc.horovod.runner.elastic import driver as intervals
from lightcc.horovod.runner.elastic.discovery import HostDiscovery
from lightcc.ray._elastic_job import PerWorker, RayJob
from lightcc.ray.adapter import Adapter, BaseParams, common_environment, relayed
from lightcc.runner.driver import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lightcc.ray.adapter import Callbacks

_ABSENT = (
    "{}: an elastic job has no actors between two calls, as nodes come and go; use run() or "
    "execute(), or num_workers for a job of fixed ranks"
)


class RayHostDiscovery(HostDiscovery):
    """Knows the nodes of a Ray cluster, all of which the job may use."""

    def __init__(
        self, use_gpu: bool = False, cpus_per_worker: int = 1, gpus_per_worker: int | None = 1
    ) -> None:
        """Takes what one worker needs."""
        self.use_gpu = use_gpu
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = gpus_per_worker or 1

    def find_available_hosts_and_slots(self) -> dict[str, Any]:
        """Returns slots by address; nodes of one address count together."""
        slots: dict[str, Any] = {}
        for node in ray.nodes():
            if not node["alive"]:
                continue
            has = node["Resources"]
            room = has.get("CPU", 0) // self.cpus_per_worker
            if self.use_gpu:
                room = min(room, has.get("GPU", 0) // self.gpus_per_worker)
            if room > 0:
                address = node["NodeManagerAddress"]
                slots[address] = slots.get(address, 0) + int(room)
        return slots


@dataclass
class ElasticParams(BaseParams):
    """An elastic job.

    Attributes:
        min_workers: Ranks without which the job does not go on.
        max_workers: Ranks at most; `None`: as many as there is room for.
        reset_limit: How often the ranks may change.
        cooldown_range: Seconds that what failed is not used, at first and at most.
        elastic_timeout: Seconds that there may be too few ranks.
        override_discovery: Whether Ray is asked for hosts, instead of `settings.discovery`.
    """

    min_workers: int = 1
    max_workers: int | None = None
    reset_limit: int | None = None
    cooldown_range: tuple[int, ...] | None = None
    elastic_timeout: int = 600
    override_discovery: bool = True

    def __post_init__(self) -> None:
        """Checks that the values fit together."""
        super().__post_init__()
        if self.min_workers < 1:
            msg = f"min_workers={self.min_workers}: expected at least 1"
            raise ValueError(msg)
        if self.max_workers is not None and self.max_workers < self.min_workers:
            msg = (
                f"max_workers={self.max_workers}: expected at least min_workers={self.min_workers}"
            )
            raise ValueError(msg)
        if self.cooldown_range is not None and len(self.cooldown_range) != 2:
            msg = f"cooldown_range={self.cooldown_range}: expected two numbers of seconds"
            raise ValueError(msg)

    elastic = True

    @property
    def adapter(self) -> type[Adapter]:
        """Returns what runs it."""
        return ElasticAdapter


class ElasticAdapter(Adapter):
    """An elastic job, whose actors are made for each call.

    Attributes:
        driver: The job of the last call, or of the next one.
    """

    def __init__(
        self,
        settings: Any,
        min_workers: int,
        max_workers: int | None = None,
        use_gpu: bool = False,
        cpus_per_worker: int = 1,
        gpus_per_worker: int | None = None,
        override_discovery: bool = True,
        reset_limit: int | None = None,
        cooldown_range: tuple[int, ...] | None = None,
        elastic_timeout: int = 600,
    ) -> None:
        """Takes the parameters of `ElasticParams`."""
        self.settings = settings
        if override_discovery:
            settings.discovery = RayHostDiscovery(use_gpu, cpus_per_worker, gpus_per_worker)
        elif settings.discovery is None:
            msg = "override_discovery=False needs settings.discovery, a HostDiscovery"
            raise ValueError(msg)
        cooldown = None if cooldown_range is None else (cooldown_range[0], cooldown_range[1])
        self._rules = Settings(
            num_proc=min_workers,
            min_np=min_workers,
            max_np=max_workers,
            elastic_timeout_s=float(elastic_timeout),
            reset_limit=reset_limit,
            cooldown_s=cooldown,
            hosts_return=True,
        )
        self._per_worker = PerWorker(cpus_per_worker, (gpus_per_worker or 1) if use_gpu else 0)
        self._executable: tuple[Any, Any, Any] = (None, None, None)
        self._extra: dict[str, Any] = {}
        self.driver: RayJob | None = None

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Does what `RayExecutor.start` says; `run` starts the actors."""
        self._executable = (executable_cls, executable_args, executable_kwargs)
        self._extra = {name: str(value) for name, value in (extra_env_vars or {}).items()}
        self.driver = self._make_job()

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks | None = None) -> list[Any]:
        """Does what `RayExecutor.execute` says.

        Raises:
            RuntimeError: The job cannot go on.
        """
        if self.driver is None or self.driver.is_used:
            self.driver = self._make_job()
        with relayed(callbacks) as queue:
            return self.driver.run(fn, queue)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Refuses: the actors come and go."""
        raise NotImplementedError(_ABSENT.format("run_remote"))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Refuses: the actors come and go."""
        raise NotImplementedError(_ABSENT.format("execute_single"))

    def shutdown(self) -> None:
        """Does nothing: actors end with their call."""

    def _make_job(self) -> RayJob:
        return RayJob(
            self._rules,
            self.settings.discovery,
            intervals.DISCOVER_HOSTS_FREQUENCY_SECS,
            self._per_worker,
            common_environment(self.settings.nics, None) | self._extra,
            self._executable,
        )
