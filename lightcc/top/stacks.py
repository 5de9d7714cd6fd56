"""`lightccrun --stacks`: where the Python code of all ranks of this machine is, in this moment.

A rank's own thread tells it, so nothing is stopped, and a rank that waits in a collective answers
as well. One that runs without giving up Python's lock does not. py-spy, where it is installed,
looks into it from outside.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from lightcc.top.reading import read_stacks

_NOBODY = (
    "no rank that can be asked runs here: ranks of other hosts are asked there, and a rank answers "
    "from the end of init() on"
)


def show(job: str = "") -> int:
    """Writes the stacks of ranks, or of those of jobs that begin with `job`; returns the exit code.

    Ranks that are at the same place share a stack.
    """
    ranks, silent = read_stacks()
    ranks = [it for it in ranks if it["job"].startswith(job)]
    where: dict[tuple[str, str], list[str]] = {}
    for it in ranks:
        whose = f"rank {it['rank']} (process {it['pid']})"
        where.setdefault((it["job"], it["stacks"]), []).append(whose)
    for (name, stacks), members in where.items():
        sys.stdout.write(f"job {name}: {', '.join(members)}\n{stacks}\n")
    sys.stdout.flush()
    for pid in silent:
        _show_from_outside(pid)
    if not ranks and not silent:
        sys.stderr.write(f"lightccrun: --stacks: {_NOBODY}\n")
        return 1
    return 0


def _show_from_outside(pid: int) -> None:
    spy = shutil.which("py-spy")
    if spy is None:
        sys.stderr.write(
            f"lightccrun: --stacks: process {pid} does not answer: it is stopped, or holds "
            f"Python's lock; after pip install py-spy: py-spy dump --pid {pid}\n"
        )
        return
    subprocess.run([spy, "dump", "--pid", str(pid)], check=False)  # noqa: S603  it was found
