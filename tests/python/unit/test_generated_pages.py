"""Pages that follow from tables in the code are up to date."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import make_pages
import pytest

import lightcc
import lightcc.torch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", sorted(make_pages.pages()), ids=lambda path: path.name)
def test_a_generated_page_is_what_the_tables_say(path: Path) -> None:
    assert path.read_text() == make_pages.pages()[path], "tools/make_pages.py writes the page"


def test_the_reference_has_each_public_name_once() -> None:
    pages = "".join(page.read_text() for page in (make_pages.DOCS / "reference").glob("*.md"))
    lists = re.findall(r"(?m)^::: (\S+)\n(?:    .*\n)*?      members: \[([^]]*)\]", pages)
    named = sorted((module, name) for module, names in lists for name in re.split(r",\s+", names))
    common = set(lightcc.__all__) - {"__version__", "elastic"}
    own = {
        name
        for name in lightcc.torch.__all__
        if getattr(lightcc.torch, name) is not getattr(lightcc, name, None)
    } - {"__version__", "elastic"}
    expected = [("lightcc", name) for name in common] + [("lightcc.torch", name) for name in own]
    assert named == sorted(expected)
