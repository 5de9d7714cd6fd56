"""`python -m lightcc.top`: the same as `lightcc-top`."""

from __future__ import annotations

import sys

from lightcc.top.cli import main

if __name__ == "__main__":
    sys.exit(main())
