"""Pages that follow from tables in the code are up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import make_pages
import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", sorted(make_pages.pages()), ids=lambda path: path.name)
def test_a_generated_page_is_what_the_tables_say(path: Path) -> None:
    assert path.read_text() == make_pages.pages()[path], "tools/make_pages.py writes the page"
