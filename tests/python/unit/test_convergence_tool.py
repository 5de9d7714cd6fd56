"""What the page of the convergence experiments shows is made of the runs that are kept."""

from __future__ import annotations

from pathlib import Path

import convergence_report

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_shows_what_the_kept_runs_give() -> None:
    page = (ROOT / "docs" / "convergence.md").read_text()
    tasks = convergence_report.load(ROOT / "docs" / "convergence-runs.jsonl")
    assert "transformer" in tasks
    for table in convergence_report.tables(tasks).values():
        assert table in page
    for settings in tasks.values():
        assert all(row["replicas_agree"] for rows in settings.values() for row in rows)
