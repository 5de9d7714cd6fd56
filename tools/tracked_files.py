"""The repository's files, as the checks of this folder see them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def tracked_files(*patterns: str) -> list[Path]:
    """Returns files that git tracks or would add, relative to the root, sorted.

    Args:
        *patterns: git pathspecs; none means everything.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    listed = subprocess.run([*command, *patterns], cwd=ROOT, check=True, capture_output=True)
    names = listed.stdout.decode().split("\0")
    return sorted({Path(name) for name in names if name and (ROOT / name).is_file()})
