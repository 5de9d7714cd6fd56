"""`RayExecutor`: one class for jobs of fixed ranks, which live here, and for elastic ones."""

from __future__ import annotations

import secrets
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import get_current_placement_group

from lightcc.ray.adapter import Adapter, BaseParams, common_environment, relayed, without_executable
from lightcc.ray.elastic_v2 import ElasticParams
from lightcc.ray.strategy import BaseStrategy, ColocatedStrategy, PGStrategy
from lightcc.runner.environment import slot_environment
from lightcc.runner.hosts import number_ranks
from lightcc.runner.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lightcc.ray.adapter import Callbacks


@dataclass
class MiniSettings:
    """What an executor needs beside the number of workers.

    Attributes:
        nics: Network interfaces of every node that may be used; the first by name is.
        verbose: Not used.
        key: Not used: each job has a secret of its own.
        ssh_port: Not used, as Ray starts the ranks.
        ssh_identity_file: Not used either.
        timeout_s: How long ranks wait for one another in `init()`.
        placement_group_timeout_s: How long to wait for room in the cluster.
        elastic: Set by the executor.
        discovery: The hosts of an elastic job, where the executor shall not ask Ray.
    """

    nics: set[str] | None = None
    verbose: int = 1
    key: bytes | None = field(default_factory=lambda: secrets.token_bytes(32))
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timeout_s: int = 300
    placement_group_timeout_s: int = 100
    elastic: bool = False
    discovery: Any = None


@dataclass
class StaticParams(BaseParams):
    """A job of fixed ranks.

    Attributes:
        num_workers: Number of ranks, wherever there is room.
        num_hosts: Instead of it: number of nodes, of which each gets the same number.
        num_workers_per_host: That number.
        use_current_placement_group: Whether a placement group around the caller is used.
    """

    num_workers: int | None = None
    num_hosts: int | None = None
    num_workers_per_host: int | None = 1
    use_current_placement_group: bool = True

    def __post_init__(self) -> None:
        """Checks that the values fit together."""
        super().__post_init__()
        if (self.num_workers is None) == (self.num_hosts is None):
            msg = (
                f"num_workers={self.num_workers}, num_hosts={self.num_hosts}: give one of them, "
                "or min_workers for an elastic job"
            )
            raise ValueError(msg)
        for name in ("num_workers", "num_hosts", "num_workers_per_host"):
            value = getattr(self, name)
            if value is not None and value < 1:
                msg = f"{name}={value}: expected at least 1"
                raise ValueError(msg)
        if self.num_hosts is not None and self.num_workers_per_host is None:
            msg = "num_workers_per_host=None: with num_hosts, expected at least 1"
            raise ValueError(msg)

    elastic = False

    @property
    def adapter(self) -> type[Adapter]:
        """Returns what runs it."""
        return StaticAdapter


class Membership:
    """Who the ranks are and where they run: what each finds in its environment."""

    def __init__(self, settings: Any) -> None:
        """Begins without ranks."""
        self.settings = settings
        self.hostnames: set[str] = set()
        self._node_of_rank: dict[int, str] = {}
        self._store: JobStore | None = None

    @property
    def world_size(self) -> int:
        """Returns the number of ranks that are registered."""
        return len(self._node_of_rank)

    @property
    def node_id_string(self) -> str:
        """Returns the nodes with their numbers of ranks, as `--hosts` would take them."""
        nodes = Counter(self._nodes())
        return ",".join(f"{node}:{count}" for node, count in nodes.items())

    def register(self, hostname: str, node_id: str, world_rank: int) -> None:
        """Takes in a rank."""
        self.hostnames.add(hostname)
        self._node_of_rank[world_rank] = node_id

    def finalize_registration(self) -> dict[int, dict[str, int]]:
        """Returns, by rank, where it stands on its node and among the nodes."""
        return {
            slot.rank: {
                "HOROVOD_CROSS_RANK": slot.cross_rank,
                "HOROVOD_CROSS_SIZE": slot.cross_size,
                "HOROVOD_LOCAL_RANK": slot.local_rank,
                "HOROVOD_LOCAL_SIZE": slot.local_size,
            }
            for slot in number_ranks(self._nodes())
        }

    def establish_rendezvous(self) -> dict[int, dict[str, str]]:
        """Serves the job's store; returns the launcher's variables by rank."""
        store = self._store = JobStore(ray.util.get_node_ip_address())
        return {
            slot.rank: slot_environment(slot, rendezvous=store.address, secret=store.secret)
            for slot in number_ranks(self._nodes())
        }

    def stop(self) -> None:
        """Ends the store."""
        if self._store is not None:
            self._store.stop()
            self._store = None

    def _nodes(self) -> list[str]:
        return [node for _, node in sorted(self._node_of_rank.items())]


def __getattr__(name: str) -> Any:
    # Horovod's name of it, which lightcc's glossary has for another thing.
    if name == "Coordinator":
        return Membership
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


class RayExecutor:
    """Runs functions on the ranks of a job, which are actors of a Ray cluster.

    With `min_workers` the job is elastic: `run` then makes the actors anew for each call, on the
    nodes that Ray has at the time, and functions use `hvd.elastic.run`.
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: int = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: int = 100,
        nics: set[str] | None = None,
    ) -> MiniSettings:
        """Returns settings.

        Args:
            timeout_s: Seconds that ranks wait for one another in `init()`.
            ssh_identity_file: Without effect, as Ray starts the ranks.
            ssh_str: Without effect, too; it is not written to a file.
            placement_group_timeout_s: Seconds to wait for room in the cluster.
            nics: Network interfaces of every node that may be used; the first by name is.
        """
        if ssh_identity_file is not None or ssh_str is not None:
            text = "ssh_identity_file and ssh_str have no effect: Ray starts the ranks, without ssh"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return MiniSettings(
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
            nics=nics,
        )

    def __init__(
        self,
        settings: Any,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int | None = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[int] | None = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        """Checks what is asked for; nothing starts yet.

        Args:
            settings: As `create_settings` returns them.
            num_workers: Number of ranks, wherever there is room.
            num_hosts: Instead of it: so many nodes, each with the same number of ranks.
            num_workers_per_host: That number.
            cpus_per_worker: CPUs of a rank, as Ray counts them.
            use_gpu: Whether ranks get GPUs.
            gpus_per_worker: How many; 1 where it is not given.
            use_current_placement_group: Whether a placement group around the caller is used.
            min_workers: Makes the job elastic: ranks without which it does not go on.
            max_workers: Ranks at most; `None`: as many as there is room for.
            reset_limit: How often the ranks may change.
            cooldown_range: Seconds that what failed is not used, at first and at most.
            elastic_timeout: Seconds that there may be too few ranks.
            override_discovery: Whether Ray is asked for hosts, instead of `settings.discovery`.

        Raises:
            ValueError: The arguments do not fit together.
        """
        if max_workers and (not min_workers or min_workers <= 0):
            msg = (
                f"`max_workers` provided without any positive `min_workers`: max_workers="
                f"{max_workers}, min_workers={min_workers}; an elastic job needs both positive"
            )
            raise ValueError(msg)
        if min_workers and num_workers:
            msg = (
                "Both `min_workers` and `num_workers` provided. A job is elastic (min_workers) or "
                "has fixed ranks (num_workers)."
            )
            raise ValueError(msg)
        self.params: StaticParams | ElasticParams
        if min_workers is not None:
            self.params = ElasticParams(
                min_workers=min_workers,
                max_workers=max_workers,
                reset_limit=reset_limit,
                cooldown_range=None if cooldown_range is None else tuple(cooldown_range),
                elastic_timeout=elastic_timeout,
                override_discovery=override_discovery,
                cpus_per_worker=cpus_per_worker,
                use_gpu=use_gpu,
                gpus_per_worker=gpus_per_worker,
            )
        else:
            self.params = StaticParams(
                num_workers=num_workers,
                num_hosts=num_hosts,
                num_workers_per_host=num_workers_per_host,
                cpus_per_worker=cpus_per_worker,
                use_gpu=use_gpu,
                gpus_per_worker=gpus_per_worker,
                use_current_placement_group=use_current_placement_group,
            )
        self.settings = settings
        self.settings.elastic = self.params.elastic
        self._is_remote = False

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts the actors; in an elastic job, what they will need. Blocks: until they are there.

        Args:
            executable_cls: Each actor makes an object of this class, for `execute`.
            executable_args: Arguments of the class.
            executable_kwargs: Named arguments of the class.
            extra_env_vars: Variables of the actors.

        Raises:
            TimeoutError: The cluster had no room for them in time.
        """
        adapter_class: Any = self.params.adapter
        self._is_remote = bool(ray.util.client.ray.is_connected())
        if self._is_remote:
            adapter_class = ray.remote(adapter_class).options(num_cpus=0).remote
        self.adapter = adapter_class(self.settings, **asdict(self.params))
        self._call("start", executable_cls, executable_args, executable_kwargs, extra_env_vars)

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks | None = None) -> list[Any]:
        """Calls `fn(executable)` on all ranks and returns the results by rank.

        Args:
            fn: What to call; it is pickled with cloudpickle, as its results are.
            callbacks: Each is called here with what ranks pass to `ray_logger.log`.

        Raises:
            Exception: What `fn` raised on a rank.
        """
        results: list[Any] = self._call("execute", fn, callbacks)
        return results

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Callbacks | None = None,
    ) -> list[Any]:
        """Calls `fn(*args, **kwargs)` on all ranks and returns the results by rank; see `execute`.

        Raises:
            Exception: What `fn` raised on a rank.
            RuntimeError: An elastic job cannot go on.
        """
        results: list[Any] = self._call("run", fn, args, kwargs, callbacks)
        return results

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Has all ranks call `fn(*args, **kwargs)`; returns what `ray.get` takes, by rank.

        Raises:
            NotImplementedError: The job is elastic.
        """
        results: list[Any] = self._call("run_remote", fn, args, kwargs)
        return results

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls `fn(executable)` on rank 0 and returns its result.

        Raises:
            NotImplementedError: The job is elastic.
        """
        return self._call("execute_single", fn)

    def shutdown(self) -> None:
        """Ends the actors and gives back what they used. Does nothing before `start`."""
        if hasattr(self, "adapter"):
            self._call("shutdown")
            del self.adapter

    def _call(self, method: str, *args: Any) -> Any:
        if not hasattr(self, "adapter"):
            msg = f"{method}(): call start() first"
            raise RuntimeError(msg)
        function = getattr(self.adapter, method)
        return ray.get(function.remote(*args)) if self._is_remote else function(*args)


class StaticAdapter(Adapter):
    """A job of fixed ranks.

    Attributes:
        workers: The actors, by rank.
        strategy: Who places them.
    """

    def __init__(
        self,
        settings: Any,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int | None = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
    ) -> None:
        """Takes the parameters of `StaticParams`."""
        self.settings = settings
        self.num_workers = num_workers
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host
        self.cpus_per_worker = cpus_per_worker
        self.use_gpu = use_gpu
        self.gpus_per_worker = gpus_per_worker
        self.use_current_placement_group = use_current_placement_group
        self.workers: list[Any] = []
        self.strategy: BaseStrategy | None = None
        self._members = Membership(settings)

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Does what `RayExecutor.start` says."""
        self.strategy = self._make_strategy()
        workers = self.strategy.create_workers()
        nodes = ray.get([worker.node_id.remote() for worker in workers])
        names = ray.get([worker.hostname.remote() for worker in workers])
        # Ranks of a node are neighbours, whatever the order in which Ray found room.
        order = sorted(range(len(workers)), key=lambda index: nodes.index(nodes[index]))
        self.workers = [workers[index] for index in order]
        for rank, index in enumerate(order):
            self._members.register(names[index], nodes[index], rank)
        common = common_environment(self.settings.nics, self.settings.timeout_s)
        extra = dict(extra_env_vars or {})
        by_rank = self._members.establish_rendezvous()
        ray.get(
            [
                worker.update_env_vars.remote(common | by_rank[rank] | extra)
                for rank, worker in enumerate(self.workers)
            ]
        )
        ray.get(
            [
                worker.start_executable.remote(executable_cls, executable_args, executable_kwargs)
                for worker in self.workers
            ]
        )

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks | None = None) -> list[Any]:
        """Does what `RayExecutor.execute` says."""
        with relayed(callbacks) as queue:
            if queue is not None:
                ray.get([worker.set_queue.remote(queue) for worker in self.workers])
            results: list[Any] = ray.get([worker.execute.remote(fn) for worker in self.workers])
            if queue is not None:
                ray.get([worker.set_queue.remote(None) for worker in self.workers])
        return results

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Does what `RayExecutor.run_remote` says."""
        call = without_executable(fn, args, kwargs)
        return [worker.execute.remote(call) for worker in self.workers]

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Does what `RayExecutor.execute_single` says."""
        return ray.get(self.workers[0].execute.remote(fn))

    def shutdown(self) -> None:
        """Does what `RayExecutor.shutdown` says."""
        self.workers = []
        if self.strategy is not None:
            self.strategy.shutdown()
        self._members.stop()

    def _make_strategy(self) -> BaseStrategy:
        settings, use_gpu = self.settings, self.use_gpu
        cpus, gpus = self.cpus_per_worker, self.gpus_per_worker
        per_host = self.num_workers_per_host or 1
        is_inside = self.use_current_placement_group and get_current_placement_group()
        if self.num_workers is None and self.num_hosts is not None and not is_inside:
            return ColocatedStrategy(
                settings=settings,
                num_hosts=self.num_hosts,
                num_workers_per_host=per_host,
                use_gpu=use_gpu,
                cpus_per_worker=cpus,
                gpus_per_worker=gpus,
            )
        return PGStrategy(
            settings=settings,
            num_workers=self.num_workers or per_host * (self.num_hosts or 1),
            use_gpu=use_gpu,
            cpus_per_worker=cpus,
            gpus_per_worker=gpus,
            force_create_placement_group=not self.use_current_placement_group,
        )
