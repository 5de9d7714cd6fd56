"""Pages that follow from tables in the code: they have every row, and are up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import make_pages
import pytest
from harp_variables import HARP_VARIABLES

from lightcc.runner.environment import LAUNCHER_VARIABLES

if TYPE_CHECKING:
    from pathlib import Path


def test_the_page_of_variables_has_a_row_for_each() -> None:
    knob = {
        "name": "LIGHT_X",
        "aliases": "HOROVOD_X,OLD_X",
        "type": "one of a|b",
        "default_value": "a",
        "unit": "",
        "meaning": "What X does.",
        "used_by": "engine",
    }
    text = make_pages.environment_text([knob])
    row = r"| `LIGHT_X` | `HOROVOD_X`, `OLD_X` | one of a\|b | `a` |  | What X does. | engine |"
    assert row in text
    for variable in LAUNCHER_VARIABLES:
        assert f"| `{variable.name}` |" in text
    for listed in HARP_VARIABLES:
        assert text.count(f"| `{listed.name}` |") == 1


@pytest.mark.parametrize("path", sorted(make_pages.pages()), ids=lambda path: path.name)
def test_a_generated_page_is_what_the_tables_say(path: Path) -> None:
    assert path.read_text() == make_pages.pages()[path], "tools/make_pages.py writes the page"
