"""`horovod.runner.launch`: the command `horovodrun`, which is `lightccrun --horovod`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lightcc._ops.basics import gloo_built, mpi_built
from lightcc.horovod.alias import VERSION
from lightcc.horovod.runner.interactive import start
from lightcc.runner.arguments import InfoRequest, StacksRequest, StoreRequest, make_parser, parse
from lightcc.runner.launch import launch, main as lightccrun, serve_store

if TYPE_CHECKING:
    import argparse

__all__ = ["gloo_built", "mpi_built", "parse_args", "run_commandline"]

_PROGRAM = "horovodrun"


def parse_args() -> argparse.Namespace:
    """Returns what `sys.argv` says, with the names that Horovod gives it; leaves on a mistake.

    `run_func` and `executable` are `None`, and `_run` takes the result.
    """
    parse(sys.argv[1:], _PROGRAM)
    args = make_parser(_PROGRAM).parse_args()
    args.run_func = args.executable = None
    return args


def run_commandline() -> int:
    """Runs `horovodrun` with `sys.argv` and returns its exit code."""
    options = parse(sys.argv[1:], _PROGRAM)
    if isinstance(options, InfoRequest):
        if options.check_build:
            return lightccrun(["--check-build"])
        sys.stdout.write(f"{VERSION}\n")
        return 0
    if isinstance(options, StoreRequest):
        return serve_store(options)
    if isinstance(options, StacksRequest):
        return lightccrun(["--stacks", options.job])
    options.environment["LIGHTCC_HOROVOD"] = "1"
    return launch(options)


def _run(args: Any) -> Any:
    return start(args)


def _run_elastic(args: Any) -> Any:
    """Runs an elastic job with Horovod's rules: what fails costs its host."""
    args.on_failure = args.on_failure or "host"
    return start(args)


if __name__ == "__main__":
    sys.exit(run_commandline())
