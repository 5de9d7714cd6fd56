"""`horovod.runner.common.util.config_parser`: variables from arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightcc.runner.arguments import tuning_environment

if TYPE_CHECKING:
    import argparse
    from collections.abc import MutableMapping


def set_env_from_args(
    env: MutableMapping[str, Any], args: argparse.Namespace
) -> MutableMapping[str, Any]:
    """Sets in `env`, and returns it, what the tuning flags of `args` mean to the ranks."""
    env.update(tuning_environment(args, args.nics.split(",") if args.nics else []))
    return env
