"""When a training is first as good as a dense one, and the page's tables of that."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "measure"))

import convergence_report
from time_to_loss import AUTO, WAYS, seconds_to, table

ROOT = Path(__file__).resolve().parents[3]


def run(variant: str, ratio: float, results: list[float]) -> dict[str, Any]:
    return {
        "task": "text",
        "gigabits": 1.0,
        "variant": variant,
        "ratio": ratio,
        "curve": [[10 * (i + 1), result] for i, result in enumerate(results)],
        "times": [float(i + 1) for i in range(len(results))],
        "result": results[-1],
        "choices": ["int4"] if (variant, ratio) == AUTO else [],
    }


def test_the_time_is_where_the_curve_first_meets_the_result() -> None:
    row = run("int4", 1.0, [3.0, 2.0, 2.5, 1.0])
    assert seconds_to(row, 3.5, higher_is_better=False) == 1.0
    assert seconds_to(row, 2.25, higher_is_better=False) == 1.75
    assert seconds_to(row, 2.0, higher_is_better=False) == 2.0
    assert seconds_to(row, 0.5, higher_is_better=False) is None
    assert seconds_to(row, 3.5, higher_is_better=True) is None


def test_a_line_compares_auto_with_the_best_way_by_hand() -> None:
    rows = [run(variant, ratio, [3.0, 2.5, 2.0]) for variant, ratio in WAYS["sgd"]]
    for row in rows:
        if row["variant"] == "int4":
            row["times"] = [0.5, 1.0, 1.5]
        if row["variant"] == "feedback":
            row["curve"][-1][1] = 2.4
    line = table("text", rows).splitlines()[2]
    assert line == "| 1 Gb/s | 3.0 | 1.5 | never | 3.0 | 3.0 | int4 | 2.00 |"


def test_the_page_shows_what_the_kept_trainings_give() -> None:
    page = (ROOT / "docs" / "convergence.md").read_text()
    rows = convergence_report.read(ROOT / "docs" / "time-to-loss.jsonl")
    tasks = {row["task"] for row in rows}
    assert tasks == {"text", "transformer"}
    for task in tasks:
        assert table(task, [row for row in rows if row["task"] == task]) in page
