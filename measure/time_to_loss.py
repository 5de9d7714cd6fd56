"""Times how long trainings between two hosts take to the loss of dense ones, for each way to send.

    python measure/time_to_loss.py run [--tasks text transformer] [--gigabits 0.2 1 5 25]
    python measure/time_to_loss.py report [--write docs/convergence.md]

Four ranks form a grid of 2 x 2. Each host's link is emulated: a rank may send at half of its rate
(LIGHT_TCP_RATE). `run` trains the tasks of measure/convergence.py from one seed, and puts a line of
JSON for each training into docs/time-to-loss.jsonl; what is there already is not run again. The
test is measured 40 times in a training, while the clock stands.

`report` makes the table: the seconds until the test is first as good as that of the dense training
at its end, but for 1% of the bits or half a point. Between two measurements it goes in a straight
line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import convergence
import convergence_report
from convergence_tasks import TASKS
from ranks import run_on_grid

KEPT = convergence.ROOT / "docs" / "time-to-loss.jsonl"
MEASUREMENTS = 40
#: What suits the optimizers: variant and ratio of measure/convergence.py, and what tables call it.
AUTO = ("auto, no budget", 1.0)
WAYS: dict[str, dict[tuple[str, float], str]] = {
    "sgd": {
        ("dense", 1.0): "dense",
        ("int4", 1.0): "int4",
        ("feedback", 0.01): "top-k at 1%",
        ("warm-up", 0.01): "top-k at 1%, warm-up",
        AUTO: "auto",
    },
    "adamw": {
        ("dense", 1.0): "dense",
        ("int8", 1.0): "int8",
        ("int4", 1.0): "int4",
        AUTO: "auto",
    },
}
OPTIMIZERS = {"text": "sgd", "fashion": "sgd", "convolutions": "sgd", "transformer": "adamw"}
GIGABITS = (0.2, 1.0, 5.0, 25.0)

Row = dict[str, Any]


def seconds_to(row: Row, target: float, *, higher_is_better: bool) -> float | None:
    """Returns when a training was first as good as `target`; `None`: never.

    Args:
        row: Has a `curve` of (step, result), and the `times` of its points in seconds.
        target: A result.
        higher_is_better: Whether more of a result is better.
    """
    sign = 1.0 if higher_is_better else -1.0
    before: tuple[float, float] | None = None  # Time, and what is missing then.
    times: list[float] = row["times"]
    results: list[float] = [result for _, result in row["curve"]]
    for result, seconds in zip(results, times, strict=True):
        missing = sign * (target - result)
        if missing <= 0.0:
            if before is None:
                return seconds
            part = before[1] / (before[1] - missing)
            return before[0] + part * (seconds - before[0])
        before = seconds, missing
    return None


def target_of(dense: Row) -> tuple[float, bool]:
    """Returns the result that counts as that of a dense training, and whether more is better."""
    unit, _ = convergence_report.UNITS[dense["task"]]
    if unit.startswith("bits/"):
        return 1.01 * dense["result"], False
    return dense["result"] - 0.005, True


def table(task: str, rows: list[Row]) -> str:
    """Returns the table of one task, in Markdown: a line for each link."""
    ways = WAYS[OPTIMIZERS[task]]
    heads = ["link", *(f"{label}, s" for label in ways.values()), "auto ends with", "auto / best"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for gigabits in sorted({row["gigabits"] for row in rows}):
        found = {(it["variant"], it["ratio"]): it for it in rows if it["gigabits"] == gigabits}
        target, higher = target_of(found["dense", 1.0])
        seconds = {way: seconds_to(found[way], target, higher_is_better=higher) for way in ways}
        cells = ["never" if s is None else f"{s:.1f}" for s in seconds.values()]
        auto = seconds.pop(AUTO)
        best = min(s for s in seconds.values() if s is not None)
        ratio = "" if auto is None else f"{auto / best:.2f}"
        choices = "/".join(found[AUTO]["choices"])
        lines.append("| " + " | ".join([f"{gigabits:g} Gb/s", *cells, choices, ratio]) + " |")
    return "\n".join(lines)


def train_all(arguments: argparse.Namespace) -> int:
    """What each rank does."""
    (gigabits,) = arguments.gigabits
    known = {
        (row["task"], row["gigabits"], row["variant"], row["ratio"])
        for row in convergence_report.read(arguments.kept)
    }
    for task in arguments.tasks:
        made = TASKS[task]()
        for variant, ratio in WAYS[OPTIMIZERS[task]]:
            run = convergence.Run(task, variant, ratio, 0)
            if (task, gigabits, variant, ratio) in known:
                continue
            with convergence.world_of(run, made):
                row = {"gigabits": gigabits, **convergence.train(run, made, MEASUREMENTS)}
            if not row["replicas_agree"]:
                sys.exit(f"{run.name}: replicas differ")
            if int(os.environ["HOROVOD_RANK"]) == 0:
                with arguments.kept.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                sys.stdout.write(f"{gigabits:g} Gb/s, {run.name}: {row['seconds']} s\n")
                sys.stdout.flush()
    return 0


def run_all(arguments: argparse.Namespace) -> int:
    """Starts the ranks once for each link."""
    words = ["train", "--tasks", *arguments.tasks, "--kept", str(arguments.kept), "--gigabits"]
    for gigabits in arguments.gigabits:
        words_of_link = [*words, str(gigabits)]
        code = run_on_grid(__file__, words_of_link, convergence.SETTINGS, gigabits)
        if code != 0:
            return code
    return 0


def report(kept: Path, write: Path | None) -> int:
    """Prints the tables; or puts them into a page between their marks."""
    rows = convergence_report.read(kept)
    page = "" if write is None else write.read_text()
    for task in dict.fromkeys(row["task"] for row in rows):
        shown = table(task, [row for row in rows if row["task"] == task])
        if write is None:
            sys.stdout.write(f"{task}\n\n{shown}\n\n")
        else:
            page = convergence_report.put(page, f"{task}, time", shown)
    if write is not None:
        write.write_text(page)
    return 0


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["run", "train", "report"], help="train: of one rank")
    parser.add_argument("--tasks", nargs="+", choices=OPTIMIZERS, default=["text", "transformer"])
    parser.add_argument(
        "--gigabits", type=float, nargs="+", default=GIGABITS, help="a second, of a host's link"
    )
    parser.add_argument("--kept", type=Path, default=KEPT, help="file of the trainings")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="put the tables in there")
    arguments = parser.parse_args()
    if arguments.command == "train":
        return train_all(arguments)
    if arguments.command == "run":
        return run_all(arguments)
    return report(arguments.kept, arguments.write)


if __name__ == "__main__":
    sys.exit(main())
