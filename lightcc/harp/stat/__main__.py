"""`python -m lightcc.harp.stat`: the same as `harp-stat`."""

from __future__ import annotations

import sys

from lightcc.harp.stat.cli import main

if __name__ == "__main__":
    sys.exit(main())
