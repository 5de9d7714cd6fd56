"""`python -m lightcc.runner`: the same program as `lightccrun`."""

from __future__ import annotations

import sys

from lightcc.runner.launch import main

if __name__ == "__main__":
    sys.exit(main())
