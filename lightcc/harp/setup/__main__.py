"""`python -m lightcc.harp.setup`, where `harp-setup` is not on the path."""

from __future__ import annotations

import sys

from lightcc.harp.setup.cli import main

if __name__ == "__main__":
    sys.exit(main())
