"""Measures the costs of this machine, with a few ranks that are started for it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import lightcc
from lightcc.plan.costs import Costs

if TYPE_CHECKING:
    import numpy.typing as npt

_ROUNDS = 9
_LARGE = 16 << 20  # Bytes; far beyond the caches.
_SMALL = 64  # Elements.


def measure_costs() -> Costs:
    """Returns the costs that this machine shows now; takes some seconds.

    Two ranks of one host, and two that stand for two hosts, over the loopback interface.

    Raises:
        RuntimeError: A rank failed.
    """
    together = lightcc.run(_time_all, np=2, environment=_environment())[0]
    apart = lightcc.run(_time_apart, np=2, environment=_environment())[0]
    # A small one takes a message to rank 0 and one back; its parts are as those of the defaults.
    share = apart["small"] / 2 / (Costs.latency_s + 2 * Costs.message_s)
    return Costs(
        latency_s=Costs.latency_s * share,
        message_s=Costs.message_s * share,
        host_s_per_byte=together["large"] / _LARGE,
        tcp_s_per_byte=apart["large"] / _LARGE,
        compress_s_per_byte=max(apart["topk"], apart["int4"]) / _LARGE,
    )


def _environment() -> dict[str, str]:
    return {"LIGHT_TOPK_THRESHOLD": "0", "LIGHT_IFACE": "lo", "LIGHT_2D_ALLREDUCE": "1"}


def _time_apart() -> dict[str, float]:
    """Times operations between two ranks that share no memory."""
    os.environ["LIGHT_HOST_ID"] = os.environ["LIGHT_RANK"]
    return _time_all()


def _time_all() -> dict[str, float]:
    """Returns the seconds of operations on this rank."""
    lightcc.init()
    small = np.ones(_SMALL, np.float32)
    large = np.random.default_rng(0).standard_normal(_LARGE // 4, np.float32)
    found = {
        "small": _quickest(small, "small", lightcc.Compression.none),
        "large": _quickest(large, "large", lightcc.Compression.none),
        "topk": _quickest(large, "topk", lightcc.Compression.topk(0.01)),
        "int4": _quickest(large, "int4", lightcc.Compression.int4),
    }
    lightcc.shutdown()
    return found


def _quickest(array: npt.NDArray[np.float32], name: str, compression: Any) -> float:
    times = []
    for _ in range(_ROUNDS):
        lightcc.barrier()
        begin = time.perf_counter()
        lightcc.allreduce(array, name=name, compression=compression)
        times.append(time.perf_counter() - begin)
    return min(times)  # What else runs here only makes them longer.
