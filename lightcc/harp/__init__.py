"""HARP, the NCCL net plugin that comes with lightcc.

lightcc itself uses it between hosts with `LIGHT_NET=harp`. Programs on NCCL are pointed to it by
variables:

    eval "$(python -m lightcc.harp --env)"
    python train.py
"""

from __future__ import annotations

from pathlib import Path

from lightcc.harp.nccl import PLUGIN

_FOLDER = "plugin"


def plugin_path() -> str:
    """Returns where the plugin is.

    Its folder has nothing else but `libnccl-net.so`, the name that NCCL before 2.12 looks for.

    Raises:
        FileNotFoundError: This lightcc was built without HARP.
    """
    path = Path(__file__).resolve().parent / _FOLDER / PLUGIN
    if not path.exists():
        msg = f"{path} does not exist: this lightcc was built without HARP"
        raise FileNotFoundError(msg)
    return str(path)
