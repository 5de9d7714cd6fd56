"""`python -m lightcc.harp`: prints where HARP's plugin is; with --env, what to export for NCCL."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc._flags import Parser
from lightcc.harp import nccl, plugin_path

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Prints it; returns 1 and says why where it cannot, 2 for a wrong flag."""
    parser = Parser(
        prog="python -m lightcc.harp",
        description="Prints where HARP's plugin for NCCL is.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--env",
        action="store_true",
        help='print what to export instead: eval "$(python -m lightcc.harp --env)"',
    )
    args = parser.parse_args(argv)
    try:
        path = Path(plugin_path())
        lines = nccl.shell_lines(path.parent) if args.env else [str(path)]
    except (FileNotFoundError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
