"""`ElasticRayExecutor`: Horovod's older executor of elastic jobs, and its hosts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightcc.ray import elastic_v2
from lightcc.ray.adapter import BaseParams, without_executable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lightcc.ray._elastic_job import RayJob
    from lightcc.ray.adapter import Callbacks


class RayHostDiscovery(elastic_v2.RayHostDiscovery):
    """The same as that of `elastic_v2`, with older names of its parameters."""

    def __init__(
        self, use_gpu: bool = False, cpus_per_slot: int = 1, gpus_per_slot: int | None = 1
    ) -> None:
        """Takes what one worker needs."""
        super().__init__(use_gpu, cpus_per_slot, gpus_per_slot)
        self.cpus_per_slot = cpus_per_slot
        self.gpus_per_slot = gpus_per_slot


@dataclass
class ElasticSettings:
    """What `ElasticRayExecutor.create_settings` returns; its parameters, and the hosts.

    Attributes:
        discovery: Where hosts come from; the executor sets it, unless it is told not to.
    """

    min_num_proc: int = 1
    max_num_proc: int | None = None
    num_proc: int = 1
    reset_limit: int | None = None
    cooldown_range: tuple[int, int] | None = None
    elastic_timeout: int = 600
    timeout_s: int = 30
    ssh_identity_file: str | None = None
    nics: set[str] | str | None = None
    verbose: int = 1
    discovery: Any = None
    elastic: bool = True


class ElasticRayExecutor:
    """Runs functions on elastic ranks. `RayExecutor(min_workers=...)` is the newer way.

    All of the Ray cluster is taken to be there for this job.
    """

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: int = 600,
        timeout_s: int = 30,
        ssh_identity_file: str | None = None,
        nics: set[str] | str | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> ElasticSettings:
        """Returns settings.

        Args:
            min_num_proc: Ranks without which the job does not go on.
            max_num_proc: Ranks at most; `None`: as many as there is room for.
            reset_limit: How often the ranks may change.
            elastic_timeout: Seconds that there may be too few ranks.
            timeout_s: Seconds that ranks have to start.
            ssh_identity_file: Without effect, as Ray starts the ranks.
            nics: Network interfaces of every node that may be used; the first by name is.
            min_np: Old spelling of `min_num_proc`.
            max_np: Old spelling of `max_num_proc`.
            kwargs: `cooldown_range` and `verbose`.

        Raises:
            TypeError: There is no such setting.
        """
        for old, value in (("min", min_np), ("max", max_np)):
            if value is not None:
                text = f"{old}_np is deprecated, use {old}_num_proc instead"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
        unknown = sorted(set(kwargs) - {"cooldown_range", "verbose"})
        if unknown:
            msg = f"no such settings: {', '.join(unknown)}; beside the named ones there are "
            raise TypeError(msg + "cooldown_range and verbose")
        min_num_proc = min_num_proc if min_np is None else min_np
        return ElasticSettings(
            min_num_proc=min_num_proc,
            max_num_proc=max_num_proc if max_np is None else max_np,
            num_proc=min_num_proc,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
            timeout_s=timeout_s,
            ssh_identity_file=ssh_identity_file,
            nics=nics,
            **kwargs,
        )

    def __init__(
        self,
        settings: ElasticSettings,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, Any] | None = None,
        override_discovery: bool = True,
    ) -> None:
        """Checks what is asked for; nothing starts yet.

        Args:
            settings: As `create_settings` returns them.
            use_gpu: Whether ranks get GPUs.
            cpus_per_slot: CPUs of a rank, as Ray counts them.
            gpus_per_slot: GPUs of a rank; 1 where it is not given.
            env_vars: Variables of the actors.
            override_discovery: Whether Ray is asked for hosts, instead of `settings.discovery`.

        Raises:
            ValueError: The arguments do not fit together.
        """
        checked = BaseParams(cpus_per_slot, use_gpu, gpus_per_slot)
        self.settings = settings
        self.use_gpu = use_gpu
        self.cpus_per_slot = cpus_per_slot
        self.gpus_per_slot = checked.gpus_per_worker
        self.env_vars = dict(env_vars or {})
        if override_discovery:
            settings.discovery = RayHostDiscovery(use_gpu, cpus_per_slot, self.gpus_per_slot)
        self._adapter: elastic_v2.ElasticAdapter | None = None

    @property
    def driver(self) -> RayJob | None:
        """Returns the job of the last call, or of the next one; `None` before `start`."""
        return None if self._adapter is None else self._adapter.driver

    def start(self) -> None:
        """Prepares the job."""
        settings = self.settings
        self._adapter = elastic_v2.ElasticAdapter(
            settings,
            min_workers=settings.min_num_proc,
            max_workers=settings.max_num_proc,
            use_gpu=self.use_gpu,
            cpus_per_worker=self.cpus_per_slot,
            gpus_per_worker=self.gpus_per_slot,
            override_discovery=False,
            reset_limit=settings.reset_limit,
            cooldown_range=settings.cooldown_range,
            elastic_timeout=settings.elastic_timeout,
        )
        self._adapter.start(extra_env_vars=self.env_vars)

    def run(self, worker_fn: Callable[[], Any], callbacks: Callbacks | None = None) -> list[Any]:
        """Calls `worker_fn()` on all ranks; returns what those that finished returned, by rank.

        Args:
            worker_fn: What to call; it uses `hvd.elastic.run`.
            callbacks: Each is called here with what ranks pass to `ray_logger.log`.

        Raises:
            RuntimeError: The job cannot go on, or `start` was not called.
        """
        if self._adapter is None:
            msg = "run(): call start() first"
            raise RuntimeError(msg)
        return self._adapter.execute(without_executable(worker_fn, None, None), callbacks)
