"""What to export so that NCCL takes HARP as its network.

Its loaders differ:

    NCCL            looks for
    2.8  to 2.11    libnccl-net.so, where the dynamic linker looks
    2.12 to 2.20    libnccl-net-$NCCL_NET_PLUGIN.so, likewise
    2.21 and newer  $NCCL_NET_PLUGIN as it stands, then as before

The folder has both names, so one set of exports works with every version. A process that has loaded
the plugin needs no LD_LIBRARY_PATH: the dynamic linker knows it by its name from then on.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PLUGIN = "libnccl-net-harp.so"
#: For a process that has loaded the plugin, or finds it by LD_LIBRARY_PATH.
SETTINGS = {"NCCL_NET_PLUGIN": "harp", "NCCL_NET": "HARP"}


def shell_lines(folder: Path) -> list[str]:
    """Returns the exports as lines for a shell. LD_LIBRARY_PATH keeps what it has, behind `folder`.

    Args:
        folder: Where the plugin is, under both names.

    Raises:
        ValueError: There is no way to tell NCCL; the text says why.
    """
    if any(mark in str(folder) for mark in ":;"):
        msg = f"'{folder}' cannot be in LD_LIBRARY_PATH: there : and ; stand between folders"
        raise ValueError(msg)
    kept = '"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"'
    lines = [f"export LD_LIBRARY_PATH={shlex.quote(str(folder))}{kept}"]
    return lines + [f"export {name}={value}" for name, value in SETTINGS.items()]
