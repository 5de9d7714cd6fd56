"""Which nodes get the actors: packed as Ray likes, or so many on each of so many nodes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lightcc.ray.worker import BaseHorovodWorker

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Ranks that still do something have so long to leave in order.
_LEAVE_S = 5.0


def create_placement_group(
    resources_per_bundle: Mapping[str, float], num_bundles: int, pg_timeout: float, pg_strategy: str
) -> tuple[Any, list[dict[str, float]]]:
    """Reserves `num_bundles` times the resources. Blocks: until they are there.

    Returns:
        The placement group, and its bundles.

    Raises:
        TimeoutError: The cluster did not have them in time; nothing stays reserved.
    """
    bundles = [dict(resources_per_bundle) for _ in range(num_bundles)]
    group = ray.util.placement_group(bundles, strategy=pg_strategy)
    if not group.wait(timeout_seconds=pg_timeout):
        ray.util.remove_placement_group(group)
        msg = (
            f"the Ray cluster could not reserve {num_bundles} x {dict(resources_per_bundle)} "
            f"({pg_strategy}) within {pg_timeout:g} s (placement_group_timeout_s); "
            f"it has {ray.cluster_resources()}, of which are free: {ray.available_resources()}"
        )
        raise TimeoutError(msg)
    return group, bundles


class BaseStrategy:
    """A placement group, and workers in it.

    Attributes:
        placement_group: Ray's, while there is one.
        workers: The actors.
    """

    def __init__(
        self, *, settings: Any, use_gpu: bool, cpus_per_worker: float, gpus_per_worker: float | None
    ) -> None:
        """Takes what one worker needs."""
        self.settings = settings
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = (gpus_per_worker or 1) if use_gpu else 0
        self.placement_group: Any = None
        self.workers: list[Any] = []
        self._created_placement_group = False

    @property
    def num_workers(self) -> int:
        """Returns how many workers there are to be."""
        raise NotImplementedError

    def create_workers(self) -> list[Any]:
        """Starts the workers. Blocks: until there is room for them.

        Raises:
            TimeoutError: As `create_placement_group`.
        """
        raise NotImplementedError

    def shutdown(self) -> None:
        """Ends the workers, and gives back what was reserved for them."""
        leaving = [worker.__ray_terminate__.remote() for worker in self.workers]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_S)
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []
        if self._created_placement_group:
            ray.util.remove_placement_group(self.placement_group)
        self.placement_group = None
        self._created_placement_group = False

    def _reserve(self, workers_per_bundle: int, num_bundles: int, pg_strategy: str) -> None:
        resources = {
            "CPU": self.cpus_per_worker * workers_per_bundle,
            "GPU": self.gpus_per_worker * workers_per_bundle,
        }
        self.placement_group, _ = create_placement_group(
            resources, num_bundles, self.settings.placement_group_timeout_s, pg_strategy
        )
        self._created_placement_group = True

    def _start(self, bundle_of_rank: list[int]) -> list[Any]:
        worker_class = ray.remote(BaseHorovodWorker)
        for rank, bundle in enumerate(bundle_of_rank):
            where = PlacementGroupSchedulingStrategy(
                self.placement_group,
                placement_group_bundle_index=bundle,
                placement_group_capture_child_tasks=False,
            )
            options = worker_class.options(
                num_cpus=self.cpus_per_worker,
                num_gpus=self.gpus_per_worker,
                scheduling_strategy=where,
            )
            self.workers.append(options.remote(world_rank=rank, world_size=len(bundle_of_rank)))
        if self.gpus_per_worker:
            self._share_gpus()
        return self.workers

    def _share_gpus(self) -> None:
        """Shows each worker all GPUs of the workers on its node, so that they can reach these.

        Local rank i takes the i-th.
        """
        nodes = ray.get([worker.node_id.remote() for worker in self.workers])
        gpus = ray.get([worker.get_gpu_ids.remote() for worker in self.workers])
        of_node: dict[str, list[Any]] = defaultdict(list)
        for node, some in zip(nodes, gpus, strict=True):
            of_node[node] += some
        ray.get(
            [
                worker.update_env_vars.remote(
                    {"CUDA_VISIBLE_DEVICES": ",".join(map(str, of_node[node]))}
                )
                for worker, node in zip(self.workers, nodes, strict=True)
            ]
        )


class ColocatedStrategy(BaseStrategy):
    """The same number of workers on each of some nodes."""

    def __init__(
        self,
        *,
        settings: Any,
        num_hosts: int,
        num_workers_per_host: int,
        use_gpu: bool,
        cpus_per_worker: float,
        gpus_per_worker: float | None,
    ) -> None:
        """Takes the numbers."""
        super().__init__(
            settings=settings,
            use_gpu=use_gpu,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
        )
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host

    @property
    def num_workers(self) -> int:
        """Returns how many workers there are to be."""
        return self.num_hosts * self.num_workers_per_host

    def create_workers(self) -> list[Any]:
        """Starts the workers, node by node. Blocks: until there is room for them."""
        self._reserve(self.num_workers_per_host, self.num_hosts, "STRICT_SPREAD")
        return self._start([rank // self.num_workers_per_host for rank in range(self.num_workers)])


class PGStrategy(BaseStrategy):
    """Workers on as few nodes as Ray finds, or in a placement group that is there already."""

    def __init__(
        self,
        *,
        settings: Any,
        num_workers: int,
        use_gpu: bool,
        cpus_per_worker: float,
        gpus_per_worker: float | None,
        placement_group: Any = None,
        force_create_placement_group: bool = False,
    ) -> None:
        """Takes the numbers; with `force_create_placement_group` no other group is used."""
        super().__init__(
            settings=settings,
            use_gpu=use_gpu,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
        )
        self._num_workers = num_workers
        if not force_create_placement_group:
            self.placement_group = placement_group or get_current_placement_group()

    @property
    def num_workers(self) -> int:
        """Returns how many workers there are to be."""
        return self._num_workers

    def create_workers(self) -> list[Any]:
        """Starts the workers. Blocks: until there is room for them."""
        if self.placement_group is not None:
            return self._start([-1] * self.num_workers)  # Whichever bundle has room.
        self._reserve(1, self.num_workers, "PACK")
        return self._start(list(range(self.num_workers)))
