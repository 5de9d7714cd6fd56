"""horovodrun's flags that lightccrun knows, but does nothing with, and what it says to them."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_MPI = "lightccrun starts the ranks itself, without MPI"
_BINDING = "bind the ranks with taskset or numactl in the command"
_SEARCH = "nothing is searched at run time"
_TOPOLOGY = "the engine chooses the algorithm by topology (LIGHT_2D_ALLREDUCE)"


@dataclass(frozen=True)
class Flag:
    """One flag that has no effect, or is refused."""

    names: str  # With its other spelling, if it has one, after a space.
    reason: str
    values: int = 0  # How many values follow it.
    attribute: str = ""  # Its name in the parser's result, where that is not its own.
    given_as: object = True  # What the attribute is when the flag was given.

    @property
    def name(self) -> str:
        """How messages call it."""
        return self.names.split()[0]

    @property
    def _dest(self) -> str:
        return self.attribute or self.name.lstrip("-").replace("-", "_")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Makes `parser` take the flag."""
        how: dict[str, Any] = {"dest": self._dest, "default": None, "help": argparse.SUPPRESS}
        if self.values == 0:
            how |= {"action": "store_const", "const": self.given_as}
        elif self.values > 1:
            how["nargs"] = self.values
        parser.add_argument(*self.names.split(), **how)

    def is_given(self, args: argparse.Namespace) -> bool:
        """Returns whether the parser's result says that the flag was given."""
        value = getattr(args, self._dest, None)
        return value is not None and (self.values > 0 or value == self.given_as)

    def line(self) -> str:
        """Returns what to say when it is given."""
        return f"{self.name}: {self.reason}"


def _switch(name: str, reason: str) -> tuple[Flag, Flag]:
    """Returns `--name` and `--no-name`, which share one attribute."""
    attribute = name.replace("-", "_")
    return (
        Flag(f"--{name}", reason, attribute=attribute),
        Flag(f"--no-{name}", reason, attribute=attribute, given_as=False),
    )


# Accepted with one line: whatever they say, the results are the same.
NOTED = (
    Flag("--mpi", _MPI, attribute="use_mpi"),
    Flag("--tcp", _MPI, attribute="tcp_flag"),
    Flag("--mpi-args", _MPI, values=1),
    Flag("--binding-args", _BINDING, values=1),
    Flag("--bind-to", _BINDING, values=1),
    Flag("--tee", "ranks print in any case; --log-dir also writes files", values=1),
    *_switch("mpi-threads-disable", _MPI),
    *_switch("hierarchical-allreduce", _TOPOLOGY),
    *_switch("hierarchical-allgather", _TOPOLOGY),
    *_switch("torus-allreduce", _TOPOLOGY),
    *_switch("autotune", _SEARCH),
    Flag("--autotune-log-file", _SEARCH, values=1),
    Flag("--autotune-warmup-samples", _SEARCH, values=1),
    Flag("--autotune-steps-per-sample", _SEARCH, values=1),
    Flag("--autotune-bayes-opt-max-samples", _SEARCH, values=1),
    Flag("--autotune-gaussian-process-noise", _SEARCH, values=1),
    Flag("--num-nccl-streams", "LIGHT_NUM_STREAMS is the number of lanes", values=1),
    Flag("--thread-affinity", _BINDING, values=1),
)

# Refused: without them the job would be another one than was asked for.
REFUSED = (
    Flag("--jsrun", "lightccrun does not read LSF's hosts; name them with --hosts", 0, "use_jsrun"),
    Flag("--config-file", "configuration files are not read; give flags or variables", 1),
    Flag("--debug", "give --verbose, or --log-level DEBUG for the engine's log"),
)

_CYCLE = "--cycle-time-ms: only LIGHT_FUSION_STRATEGY=horovod has a cycle; others are event-driven"


def help_text() -> str:
    """Returns what `--help` says of the flags in this file, grouped by reason."""
    refused, noted = _by_reason(REFUSED), _by_reason(NOTED)
    return f"refused, and why:\n{refused}\n\naccepted without effect, and why:\n{noted}"


def _by_reason(flags: Iterable[Flag]) -> str:
    names: dict[str, list[str]] = {}
    for flag in flags:
        names.setdefault(flag.reason, []).append(flag.name)
    entries = [f"{', '.join(group)}: {reason}" for reason, group in names.items()]
    return "\n".join(
        textwrap.fill(
            entry, 78, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
        )
        for entry in entries
    )


def notes(args: argparse.Namespace) -> list[str]:
    """Returns one line for each flag that was given and has no effect."""
    lines = [f"{flag.name} has no effect: {flag.reason}" for flag in NOTED if flag.is_given(args)]
    return lines + ([_CYCLE] if args.cycle_time_ms is not None else [])
