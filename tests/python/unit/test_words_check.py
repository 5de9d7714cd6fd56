"""The check of words finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import check_words
import pytest

BANS = check_words.read_bans(
    "| not | but | where |\n|---|---|---|\n| glossary | before it | everywhere |\n"
    f"{check_words.TABLE}\n\n"
    "| not | but | where |\n|---|---|---|\n"
    "| most | max | everywhere |\n| place | index | everywhere |\n"
    "| reducescatter | reduce_scatter | `csrc/lightcc/collectives` |\n"
)


@pytest.mark.parametrize(
    ("path", "line", "name"),
    [
        ("csrc/a.cpp", "int most_bytes = 0;", "most_bytes"),
        ("csrc/a.cpp", "constexpr int kMostBytes = 0;", "kMostBytes"),
        ("csrc/a.cpp", 'use("text", bytes_at_most(most_));', "most_"),
        ("lightcc/a.py", "self._most = 1  # the most", "_most"),
        ("csrc/lightcc/collectives/a.cpp", "reducescatter();", "reducescatter"),
    ],
)
def test_a_refused_word_is_found(path: str, line: str, name: str) -> None:
    (problem,) = check_words.problems_of({Path(path): f"\n{line}\n"}, BANS)
    assert problem.startswith(f"{path}:2: {name}: say ")


def test_a_comment_that_begins_with_of_is_found() -> None:
    of = "Of"  # In one piece, this file would be found.
    lines = [f"int a;  ///< {of} the list.", f"// {of} it.", "int of;  // Often.", f"# {of} all."]
    problems = check_words.genitives_of({Path("csrc/a.cpp"): "\n".join(lines)})
    assert [problem.split(":")[1] for problem in problems] == ["1", "2", "4"]
