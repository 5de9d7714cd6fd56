"""An extension of Griffe: shows what follows `Example:` in a docstring as a session of Python.

Griffe knows that section as `Examples:`, which the convention that ruff checks does not ask for.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class ExamplesAreSessions(griffe.Extension):  # type: ignore[misc]  # Not installed for mypy.
    """Gives the section the name by which Griffe knows it."""

    def on_package(self, *, pkg: griffe.Module, **_kwargs: Any) -> None:
        """Changes every docstring of a package that was loaded."""
        _rename(pkg)


def _rename(found: griffe.Object) -> None:
    if found.docstring is not None:
        found.docstring.value = re.sub(
            r"^( *)Example:$", r"\1Examples:", found.docstring.value, flags=re.MULTILINE
        )
    for member in found.members.values():
        if isinstance(member, griffe.Object):
            _rename(member)
