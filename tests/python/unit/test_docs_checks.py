"""The checks of documentation find what they are there to find."""

from __future__ import annotations

import check_docs
import pytest

OTHER = "# Other page\n\n## A `code` heading, twice\n\n## A `code` heading, twice\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](missing.md)", "no such file: missing.md"),
        ("[a](../missing/)", "no such file: ../missing/"),
        ("[a](#no)", "no such heading: #no"),
        ("[a](harp/other.md#no)", "no such heading: harp/other.md#no"),
        ("![picture](missing.png)", "no such file: missing.png"),
    ],
)
def test_a_link_to_nothing_is_found(text: str, problem: str) -> None:
    pages = {"docs/page.md": f"# Page\n{text}\n", "docs/harp/other.md": OTHER}
    assert check_docs.broken_links(pages, set(pages)) == [f"docs/page.md:2: {problem}"]


def test_a_page_without_readers_is_found() -> None:
    pages = {
        "docs/README.md": "[a](a.md) [harp](harp/README.md)",
        "docs/a.md": "",
        "docs/b.md": "",
        "docs/harp/README.md": "[c](c.md#part) [b](../b.md)",
        "docs/harp/c.md": "",
        "README.md": "",
    }
    assert check_docs.unlisted_pages(pages) == [
        "docs/b.md: docs/README.md does not say who reads it"
    ]


def test_variables_of_the_code_and_of_the_page_are_compared() -> None:
    page = "| `LIGHT_A` | x |\n| `HARP_OLD` | x |\n| `LIGHT_A` | again |\n"
    sources = {"a.cpp": 'get("LIGHT_A"); // LIGHT_COMMENT', "b.py": "env['HARP_NEW']"}
    assert check_docs.wrong_variables(page, sources) == [
        "docs/reference/environment.md: HARP_NEW of b.py has no row",
        "docs/reference/environment.md: no code reads HARP_OLD",
        "docs/reference/environment.md: LIGHT_A has 2 rows",
    ]
