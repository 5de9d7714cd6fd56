"""The checks of documentation find what they are there to find."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import check_docs
import docs_site

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


@pytest.mark.parametrize(
    "text",
    [
        "[a](harp/other.md), [b](harp/other.md#other-page), [c](#page), [d](harp/)",
        "[a](harp/other.md#a-code-heading-twice-1)",
        "[a](../csrc/a.cpp), [b](https://example.com/x)",
        "`[a](missing.md)`",
        "```\n[a](missing.md)\n```",
    ],
)
def test_a_link_that_leads_somewhere_passes(text: str) -> None:
    pages = {"docs/page.md": f"# Page\n{text}\n", "docs/harp/other.md": OTHER}
    assert check_docs.broken_links(pages, {*pages, "csrc/a.cpp"}) == []


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
        "docs/environment.md: HARP_NEW of b.py has no row",
        "docs/environment.md: no code reads HARP_OLD",
        "docs/environment.md: LIGHT_A has 2 rows",
    ]


@pytest.mark.parametrize(
    ("page", "text", "in_site"),
    [
        ("docs/keras.md", "[a](errors.md#the-table)", "[a](errors.md#the-table)"),
        ("docs/keras.md", "[a](../README.md) [b](#xla)", "[a](overview.md) [b](#xla)"),
        ("docs/harp/abi.md", "[a](../../CONTRIBUTING.md)", "[a](../contributing.md)"),
        ("README.md", "[a](docs/harp/abi.md)", "[a](harp/abi.md)"),
        (
            "docs/guides/topk.md",
            "[a](../../examples/pytorch_topk.py)",
            "[a](../sources/examples/pytorch_topk.py.md)",
        ),
        ("README.md", "[a](https://x.org/docs/harp/abi.md)", "[a](https://x.org/docs/harp/abi.md)"),
        ("README.md", "```\n[a](docs/harp/abi.md)\n```", "```\n[a](docs/harp/abi.md)\n```"),
    ],
)
def test_the_site_leads_links_to_its_own_pages(page: str, text: str, in_site: str) -> None:
    assert docs_site.with_links_of_site(page, text) == in_site


def test_pages_of_the_site_know_their_files() -> None:
    for path in ["README.md", "CHANGELOG.md", "docs/keras.md", "docs/harp/README.md"]:
        assert docs_site.path_of(docs_site.page_of(path)) == path
