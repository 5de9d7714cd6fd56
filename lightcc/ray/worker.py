"""The actor that is a rank."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import ray

from lightcc.horovod import alias
from lightcc.ray import ray_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class BaseHorovodWorker:
    """A process of a Ray cluster that calls what it is given, in its own environment.

    Attributes:
        executable: The object that `start_executable` has made; `None` without one.
    """

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        """Sets Horovod's variables as far as they are known; the executor sets the rest."""
        self.update_env_vars(
            {
                "HOROVOD_HOSTNAME": self.node_id(),
                "HOROVOD_RANK": world_rank,
                "HOROVOD_SIZE": world_size,
            }
        )

    def node_id(self) -> str:
        """Returns Ray's name of the node."""
        return str(ray.get_runtime_context().get_node_id())

    def hostname(self) -> str:
        """Returns the machine's name."""
        return socket.gethostname()

    def get_gpu_ids(self) -> list[Any]:
        """Returns the GPUs that Ray has given to this actor."""
        return list(ray.get_gpu_ids())

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Sets variables of this process; `LIGHTCC_HOROVOD=1` gives it Horovod's names, too."""
        os.environ.update({name: str(value) for name, value in env_vars.items()})
        if os.environ.get("LIGHTCC_HOROVOD") == "1":
            alias.install()

    def env_vars(self) -> dict[str, str]:
        """Returns the variables of this process."""
        return dict(os.environ)

    def start_executable(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes the object that `execute` passes to functions."""
        if executable_cls is not None:
            self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Returns `func(executable)`."""
        return func(self.executable)

    def set_queue(self, queue: Any) -> None:
        """Takes the queue of the caller's callbacks; `None`: there are none."""
        ray_logger.configure(queue)
