"""Types of command-line arguments that several commands of the benchmark have."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from lightcc.bench.cluster import parse_rate
from lightcc.bench.variants import Variant, VariantError, parse_variants

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


def scale(text: str) -> float:
    """A number from 1 to 1000, such as 2.5."""
    return _number(text, lambda value: 1 <= value <= 1000, "a number from 1 to 1000")


def share(text: str) -> float:
    """A number above 0, at most 1."""
    return _number(text, lambda value: 0 < value <= 1, "a number above 0, at most 1")


def _number(text: str, is_allowed: Callable[[float], bool], allowed: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not is_allowed(value):
        msg = f"'{text}' is not {allowed}"
        raise argparse.ArgumentTypeError(msg)
    return value


def rate(text: str) -> float:
    """A link's rate in bits per second."""
    try:
        return parse_rate(text)
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


def variants(known: dict[str, Variant]) -> Callable[[str], list[Variant]]:
    """Returns the type of a list of variants."""

    def parse(text: str) -> list[Variant]:
        try:
            return parse_variants(text, known)
        except VariantError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse
