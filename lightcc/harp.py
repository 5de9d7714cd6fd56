"""HARP, the NCCL net plugin that comes with lightcc.

lightcc itself uses it between hosts with `LIGHT_NET=harp`. Programs on NCCL are pointed to it:

    NCCL_NET_PLUGIN=$(python -m lightcc.harp) NCCL_NET=HARP python train.py
"""

from __future__ import annotations

import sys
from pathlib import Path

_FILE = "libnccl-net-harp.so"


def plugin_path() -> str:
    """Returns where the plugin is, for `NCCL_NET_PLUGIN`.

    Raises:
        FileNotFoundError: This lightcc was built without HARP.
    """
    path = Path(__file__).resolve().parent / _FILE
    if not path.exists():
        msg = f"{path} does not exist: this lightcc was built without HARP"
        raise FileNotFoundError(msg)
    return str(path)


def main() -> int:
    """Prints the path; returns 1 and says why where there is none."""
    try:
        sys.stdout.write(plugin_path() + "\n")
    except FileNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
