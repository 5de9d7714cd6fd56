"""Runs of the convergence experiments are kept, and what the page shows is made of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "measure"))

import convergence_report
from word_pieces import WordPieces

ROOT = Path(__file__).resolve().parents[3]


def run(variant: str, seed: int, result: float) -> dict[str, Any]:
    return {
        "task": "text",
        "variant": variant,
        "ratio": 0.01 if variant == "feedback" else 1.0,
        "seed": seed,
        "result": result,
        "bytes_per_step": 1000.0,
        "replicas_agree": True,
    }


def keep(results: Path, kept: Path, rows: list[dict[str, Any]]) -> None:
    results.mkdir()
    for i, row in enumerate(rows):
        (results / f"{i}.json").write_text(json.dumps(row, indent=1))
    assert convergence_report.keep(results, kept) == 0


def test_a_run_that_is_repeated_replaces_the_one_before(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    keep(tmp_path / "a", kept, [run("feedback", 0, 2.2), run("dense", 1, 2.1)])
    keep(tmp_path / "b", kept, [run("dense", 0, 2.0), run("feedback", 0, 2.25)])
    assert len(kept.read_text().splitlines()) == 3
    settings = convergence_report.load(kept)["text"]
    assert list(settings) == [("dense", 1.0), ("feedback", 0.01)]
    assert [row["result"] for row in settings["dense", 1.0]] == [2.0, 2.1]
    assert [row["result"] for row in settings["feedback", 0.01]] == [2.25]


def test_a_table_has_means_and_differences_of_the_same_seeds(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    dense = [run("dense", seed, 2.0 + 0.1 * seed) for seed in range(2)]
    adam = [run("1-bit Adam", seed, 2.02 + 0.1 * seed) for seed in range(2)]
    keep(tmp_path / "a", kept, dense + adam)
    lines = convergence_report.table("text", convergence_report.load(kept)["text"]).splitlines()
    assert lines[2] == "| dense |  | 2 | 2.0500 | 0.0707 |  | 1.0 kB |"
    assert lines[3].startswith("| 1-bit Adam |  | 2 | 2.0700 | 0.0707 | +0.0200 +- 0.0000 (+1.0%)")


def test_what_varies_a_task_has_a_table_together(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    varied = [{**run("dense", 0, 3.0), "task": f"text, {how}"} for how in ("4 x 1", "rate 1")]
    keep(tmp_path / "a", kept, [run("dense", 0, 2.0), *varied])
    tables = convergence_report.tables(convergence_report.load(kept))
    assert list(tables) == ["text", "text, varied"]
    lines = tables["text, varied"].splitlines()
    assert lines[0].startswith("| training |  | ratio |")
    assert lines[2] == "| 4 x 1 | dense |  | 1 | 3.0000 |  |  | 1.0 kB |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| 4 x 1", "| rate 1"]


def test_the_page_shows_what_the_kept_runs_give() -> None:
    page = (ROOT / "docs" / "convergence.md").read_text()
    tasks = convergence_report.load(ROOT / "docs" / "convergence-runs.jsonl")
    assert "transformer" in tasks
    for table in convergence_report.tables(tasks).values():
        assert table in page
    for settings in tasks.values():
        assert all(row["replicas_agree"] for rows in settings.values() for row in rows)


def test_word_pieces_spell_a_text_in_fewer_pieces_the_more_there_are() -> None:
    text = "the other mother, then the brother: " * 20
    lengths = []
    for count in (14, 18, 22):
        known = WordPieces(text, count)
        assert len(known.pieces) == count
        numbers = known.numbers(text + "?")  # Which no piece has.
        assert "".join(known.pieces[number] for number in numbers) == text
        lengths.append(len(numbers))
    assert lengths[0] > lengths[1] > lengths[2]


def test_the_first_piece_is_the_pair_that_is_most_frequent_within_words() -> None:
    # "b " is as frequent as "ab" where words do not matter.
    known = WordPieces("ab ab ab cd ", 6)
    assert known.pieces == [" ", "a", "b", "c", "d", "ab"]
    assert known.numbers("aab") == [1, 5]
