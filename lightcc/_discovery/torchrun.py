"""torchrun, and everything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

Under torchrun the agent serves a TCPStore at MASTER_ADDR:MASTER_PORT, and the ranks join it as
clients. Where there is no such agent (a Kubeflow PyTorchJob), rank 0 serves it, shared with a
`torch.distributed.init_process_group` of the same process. Keys begin with `lightcc/<restart>/`, so
that ranks which torchrun started anew do not read what their predecessors left.
"""

from __future__ import annotations

import contextlib
import importlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lightcc import _addresses
from lightcc._discovery import variables
from lightcc._discovery.meeting import Party, meet
from lightcc._discovery.membership import Membership
from lightcc.exceptions import PeerFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SETTER = "torchrun"
# The stores of this process. One that rank 0 serves ends with its object, and other ranks may read
# from it later than rank 0 does.
_stores: list[Any] = []


def is_launcher(env: Mapping[str, str]) -> bool:
    """Returns whether this process was started by torchrun or in its manner."""
    return all(name in env for name in _NAMES)


def join(env: Mapping[str, str]) -> Membership:
    """Returns this rank's place. Blocks: for all ranks of the job.

    Raises:
        ValueError: A variable has a value that is not allowed, or torch is not installed.
        PeerFailedError: The other ranks were not there in time.
    """
    rank, size = variables.place(env, "RANK", "WORLD_SIZE", _SETTER)
    if size == 1:
        return Membership()
    port = variables.integer(env, "MASTER_PORT", 1, 65535, _SETTER)
    master = env["MASTER_ADDR"]
    channel = _StoreChannel(env, rank, size, (master, port))
    one_machine = env.get("LOCAL_WORLD_SIZE") == str(size) or _is_loopback(master)
    return meet(channel, Party(rank, size, one_machine, towards=master), env)


def _is_loopback(host: str) -> bool:
    found = _addresses.resolve(host)
    return bool(found) and all(_addresses.is_loopback(address) for _, address in found)


class _StoreChannel:
    """Talks through torch's TCPStore."""

    def __init__(
        self, env: Mapping[str, str], rank: int, size: int, address: tuple[str, int]
    ) -> None:
        restart = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        served_by_agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._rank = rank
        self._size = size
        self._broadcasts = 0
        self._where = _addresses.host_and_port(*address)
        torch_distributed = _import_torch_distributed()
        with self._explained():
            store = torch_distributed.TCPStore(
                *address,
                is_master=rank == 0 and not served_by_agent,
                wait_for_workers=False,
                multi_tenant=True,
                timeout=timedelta(seconds=variables.start_timeout_s(env)),
            )
        _stores.append(store)
        self._store = torch_distributed.PrefixStore(f"lightcc/{restart}/", store)

    def broadcast(self, text: str) -> str:
        key = f"broadcast/{self._broadcasts}"
        self._broadcasts += 1
        with self._explained():
            if self._rank == 0:
                self._store.set(key, text)
                return text
            return str(self._store.get(key).decode())

    def gather(self, text: str) -> list[str]:
        with self._explained():
            self._store.set(f"gather/{self._rank}", text)
            if self._rank != 0:
                return []
            return [self._store.get(f"gather/{rank}").decode() for rank in range(self._size)]

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch's DistError is one.
            msg = (
                f"rank {self._rank} of {self._size} did not find all ranks through the TCPStore at "
                f"{self._where} (MASTER_ADDR, MASTER_PORT): {str(error).splitlines()[0]}"
            )
            raise PeerFailedError(msg) from error


def _import_torch_distributed() -> Any:
    try:
        return importlib.import_module("torch.distributed")
    except ImportError as error:
        msg = (
            "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, as torchrun does, but torch, "
            f"whose TCPStore the ranks would meet in, cannot be imported: {error}"
        )
        raise ValueError(msg) from error
