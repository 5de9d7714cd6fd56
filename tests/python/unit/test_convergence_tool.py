"""What the page of the convergence experiments shows is made of the runs that are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import convergence_report

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


def test_a_table_has_means_and_differences_of_the_same_seeds(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    dense = [run("dense", seed, 2.0 + 0.1 * seed) for seed in range(2)]
    int4 = [run("int4", seed, 2.02 + 0.1 * seed) for seed in range(2)]
    keep(tmp_path / "a", kept, dense + int4)
    lines = convergence_report.table("text", convergence_report.load(kept)["text"]).splitlines()
    assert lines[2] == "| dense |  | 2 | 2.0500 | 0.0707 |  | 1.0 kB |"
    assert lines[3].startswith("| int4 |  | 2 | 2.0700 | 0.0707 | +0.0200 +- 0.0000 (+1.0%)")


def test_the_page_shows_what_the_kept_runs_give() -> None:
    page = (ROOT / "docs" / "convergence.md").read_text()
    tasks = convergence_report.load(ROOT / "docs" / "convergence-runs.jsonl")
    assert "transformer" in tasks
    for table in convergence_report.tables(tasks).values():
        assert table in page
    for settings in tasks.values():
        assert all(row["replicas_agree"] for rows in settings.values() for row in rows)
