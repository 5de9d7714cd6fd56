"""Runs lightccrun or lightcc-worker for tools/chaos_elastic.py, perhaps in a network namespace.

Usage: chaos_program.py FOLDER NAMESPACE launcher|worker ARGUMENTS. NAMESPACE is "-" for none.
SIGUSR1 has it write its stacks to `stacks.PID`.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

from lightcc.bench.cluster import enter_namespace
from lightcc.runner import launch
from lightcc.runner.agent import worker


def main() -> int:
    """Returns the program's exit code."""
    folder, namespace, program, *arguments = sys.argv[1:]
    if namespace != "-":
        enter_namespace(namespace)
    with Path(folder, f"stacks.{os.getpid()}").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        return launch.main(arguments) if program == "launcher" else worker.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
