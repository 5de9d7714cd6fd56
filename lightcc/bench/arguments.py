"""Types of command-line arguments that several commands of the benchmark have."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lightcc.bench.cluster import parse_delay, parse_rate
from lightcc.bench.variants import V, VariantError, parse_variants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAX = 1 << 20


def positive(text: str) -> int:
    """A whole number from 1."""
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= _MAX:
        msg = f"'{text}' is not a number from 1 to {_MAX}"
        raise argparse.ArgumentTypeError(msg)
    return value


def share(text: str) -> float:
    """A number above 0, at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        msg = f"'{text}' is not a number above 0, at most 1"
        raise argparse.ArgumentTypeError(msg)
    return value


def rate(text: str) -> float:
    """A link's rate in bits per second."""
    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def delay(text: str) -> float:
    """A link's delay, one way, in seconds."""
    try:
        return parse_delay(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def names(known: Sequence[str], what: str) -> Callable[[str], list[str]]:
    """Returns the type of a list of names, each of `known` and kept once."""

    def parse_names(text: str) -> list[str]:
        found = list(dict.fromkeys(text.split(",")))
        for name in found:
            if name not in known:
                msg = f"'{name}' is no {what}; there are {', '.join(known)}"
                raise argparse.ArgumentTypeError(msg)
        return found

    return parse_names


def variants(known: dict[str, V]) -> Callable[[str], list[V]]:
    """Returns the type of a list of variants."""

    def parse(text: str) -> list[V]:
        try:
            return parse_variants(text, known)
        except VariantError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse
