"""torchrun, and everything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

Under torchrun the agent serves a TCPStore at MASTER_ADDR:MASTER_PORT, and the ranks join it as
clients. Where there is no such agent (a Kubeflow PyTorchJob), rank 0 serves it, shared with a
`torch.distributed.init_process_group` of the same process.
"""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lightcc import _addresses
from lightcc._discovery import variables
from lightcc._discovery.epoch import Epoch
from lightcc._discovery.meeting import Party, meet
from lightcc._discovery.torch_store import TorchStoreChannel, explained, prefix_of_start

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SETTER = "torchrun"
# The stores of this process. One that rank 0 serves ends with its object, and other ranks may read
# from it later than rank 0 does.
_stores: list[Any] = []


def is_launcher(env: Mapping[str, str]) -> bool:
    """Returns whether this process was started by torchrun or in its manner."""
    return all(name in env for name in _NAMES)


def join(env: Mapping[str, str]) -> Epoch:
    """Returns this rank's place. Blocks: for all ranks of the job.

    Raises:
        ValueError: A variable has a value that is not allowed, or torch is not installed.
        PeerFailedError: The other ranks were not there in time.
    """
    rank, size = variables.rank_and_size(env, "RANK", "WORLD_SIZE", _SETTER)
    if size == 1:
        return Epoch()
    port = variables.integer(env, "MASTER_PORT", 1, 65535, _SETTER)
    master = env["MASTER_ADDR"]
    channel = _open_channel(env, rank, size, (master, port))
    one_machine = env.get("LOCAL_WORLD_SIZE") == str(size) or _is_loopback(master)
    return meet(channel, Party(rank, size, one_machine, towards=master), env)


def _is_loopback(host: str) -> bool:
    found = _addresses.resolve(host)
    return bool(found) and all(_addresses.is_loopback(address) for _, address in found)


def _open_channel(
    env: Mapping[str, str], rank: int, size: int, address: tuple[str, int]
) -> TorchStoreChannel:
    served_by_agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    at = _addresses.host_and_port(*address)
    where = f"the TCPStore at {at} (MASTER_ADDR, MASTER_PORT)"
    torch_distributed = _import_torch_distributed()
    with explained(rank, size, where):
        store = torch_distributed.TCPStore(
            *address,
            is_master=rank == 0 and not served_by_agent,
            wait_for_workers=False,
            multi_tenant=True,
            timeout=timedelta(seconds=variables.start_timeout_s(env)),
        )
    _stores.append(store)
    own = torch_distributed.PrefixStore(prefix_of_start(env), store)
    return TorchStoreChannel(own, where, rank, size)


def _import_torch_distributed() -> Any:
    try:
        return importlib.import_module("torch.distributed")
    except ImportError as error:
        msg = (
            "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, as torchrun does, but torch, "
            f"whose TCPStore the ranks would meet in, cannot be imported: {error}"
        )
        raise ValueError(msg) from error
