"""HARP, the NCCL net plugin that comes with lightcc.

lightcc itself uses it between hosts with `LIGHT_NET=harp`. Programs on NCCL are pointed to it:

    NCCL_NET_PLUGIN=$(python -m lightcc.harp) NCCL_NET=HARP python train.py
"""

from __future__ import annotations

from pathlib import Path

_FILE = "libnccl-net-harp.so"


def plugin_path() -> str:
    """Returns where the plugin is, for `NCCL_NET_PLUGIN`.

    Raises:
        FileNotFoundError: This lightcc was built without HARP.
    """
    path = Path(__file__).resolve().parents[1] / _FILE
    if not path.exists():
        msg = f"{path} does not exist: this lightcc was built without HARP"
        raise FileNotFoundError(msg)
    return str(path)
