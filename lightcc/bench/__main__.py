"""`python -m lightcc.bench`."""

from __future__ import annotations

import sys

from lightcc.bench.cli import main
from lightcc.bench.signals import ending_in_good_order

if __name__ == "__main__":
    with ending_in_good_order():
        sys.exit(main())
