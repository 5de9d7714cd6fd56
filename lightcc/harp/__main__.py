"""`python -m lightcc.harp`: prints where HARP's plugin is; with --env, what to export for NCCL."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc.harp import nccl, plugin_path

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Prints it; returns 1 and says why where it cannot, 2 for a wrong flag."""
    parser = _parser()
    args = parser.parse_args(argv)
    if not args.env and (args.nccl_version or args.nccl):
        parser.error("--nccl-version and --nccl say for which NCCL: they go with --env")
    try:
        path = Path(plugin_path())
        if args.env:
            version, source = _version(args)
            lines = nccl.shell_lines(nccl.exports(version, path.parent))
            sys.stderr.write(f"{source}\n")
        else:
            lines = [str(path)]
    except (FileNotFoundError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _version(args: argparse.Namespace) -> tuple[tuple[int, ...] | None, str]:
    """Returns the NCCL to export for, and a line that says which one that is."""
    if args.nccl_version:
        return args.nccl_version, f"NCCL {_text(args.nccl_version)}, as --nccl-version says"
    if args.nccl:
        version = nccl.version_of(args.nccl)
        return version, f"NCCL {_text(version)}: {args.nccl}"
    found = nccl.find()
    if found is None:
        return None, "no NCCL was found: this works with every version"
    return found.version, f"NCCL {_text(found.version)}: {found.source}"


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lightcc.harp",
        description="Prints where HARP's plugin for NCCL is.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--env",
        action="store_true",
        help='print what to export instead: eval "$(python -m lightcc.harp --env)"; which NCCL'
        " that is for goes to standard error",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--nccl-version",
        type=_version_number,
        metavar="2.21.5",
        help="for this NCCL, instead of the one that programs of this Python use",
    )
    which.add_argument("--nccl", metavar="FILE", help="for the NCCL in this file: a libnccl.so.2")
    return parser


def _version_number(text: str) -> tuple[int, ...]:
    try:
        return nccl.parse_version(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
