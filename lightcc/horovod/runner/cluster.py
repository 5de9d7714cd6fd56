"""Ranks that a cluster's own program starts, such as Ray or Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightcc.horovod import alias
from lightcc.runner.environment import dialed_environment

if TYPE_CHECKING:
    from collections.abc import Iterable


def rank_environment(nics: Iterable[str] | str | None) -> dict[str, str]:
    """Returns what all ranks get: this process's settings of lightcc, and its networks.

    Args:
        nics: Network interfaces of every node that may be used; the first by name is.
    """
    environment = dialed_environment(os.environ)
    if alias.is_installed():
        environment["LIGHTCC_HOROVOD"] = "1"
    names = [nics] if isinstance(nics, str) and nics else sorted(nics or ())
    if names:
        environment |= {"LIGHT_IFACE": names[0], "NCCL_SOCKET_IFNAME": ",".join(names)}
    return environment
