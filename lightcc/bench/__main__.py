"""`python -m lightcc.bench`."""

from __future__ import annotations

import sys

from lightcc.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
