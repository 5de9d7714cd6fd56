"""Prometheus' text format, version 0.0.4: samples of several metrics, put together by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def escape_label(value: str) -> str:
    """Returns a label's value as it stands between quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def escape_help(text: str) -> str:
    """Returns a help text as it stands on its line."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")


class Families:
    """Samples by metric: the format wants those of one name together, each once."""

    def __init__(self) -> None:
        """Starts without any."""
        self._heads: dict[str, tuple[str, str]] = {}
        self._samples: dict[str, dict[str, str]] = {}

    def add(
        self, name: str, kind: str, text: str, labels: Mapping[str, object], value: float
    ) -> None:
        """Adds a sample; the first of a name says what kind it is and what it means."""
        self._heads.setdefault(name, (kind, text))
        pairs = ",".join(f'{key}="{escape_label(str(one))}"' for key, one in labels.items())
        self._samples.setdefault(name, {})[pairs] = repr(value)

    def text(self) -> str:
        """Returns everything, in the order in which names first came."""
        lines = []
        for name, (kind, text) in self._heads.items():
            lines += [f"# HELP {name} {escape_help(text)}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{pairs}}} {value}" for pairs, value in self._samples[name].items()]
        return "".join(f"{line}\n" for line in lines)
