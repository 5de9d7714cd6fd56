"""`python -m lightcc.harp`: prints where HARP's plugin is, for `NCCL_NET_PLUGIN`."""

from __future__ import annotations

import sys

from lightcc.harp import plugin_path


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
