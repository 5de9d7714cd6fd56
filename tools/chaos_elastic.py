"""Plays elastic jobs in which ranks, hosts and links fail and come, as a seed says; checks them.

Usage: chaos_elastic.py [--first SEED] [--runs 100] [--jobs 2] [--keep FOLDER]

A job has `lightccrun --listen` and 2 to 6 hosts of 1 or 2 slots, which are `lightcc-worker`. Under
root and with iproute2, half of the jobs have hosts in network namespaces. While the ranks train,
they and their workers are killed and stopped, ranks become slow, links are cut and slowed, workers
are drained, and others come. A run fails unless

- it ends in time, the launcher with code 0 and each worker with the code that it should have,
- every sum was right, and at the end the sum over all steps is that of an undisturbed run,
- with a sampler, each epoch had all samples,
- of what top-k keeps back, only what was said to be lost is missing,
- all replicas are the same, bit by bit,
- no failure cost more finished steps than a commit has (with `recovery="forward"`: one), and
- no process and no temporary file is left.

A failure prints the story, what was done when, what the launcher and the workers said, and, of a
hang, all stacks. `chaos_elastic.py --first SEED --runs 1` plays the same story again. After Ctrl-C
the table has what was played.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chaos_notes import losses
from chaos_run import HangError, Run
from chaos_story import draw

RUN_S = 400.0  # One run, at the most.
LINES = 60  # The last lines of each program's output.


def can_have_namespaces() -> bool:
    """Returns whether hosts can be network namespaces."""
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc")))


def play(seed: int, folder: Path) -> dict[str, Any]:
    """Plays the story of a seed in a folder; returns what came of it."""
    story = draw(seed, namespaces=can_have_namespaces())
    with contextlib.ExitStack() as stack:
        run = Run(story, folder, stack)
        hung = False
        stacks = ""
        try:
            run.play()
        except (HangError, RuntimeError) as error:
            hung = isinstance(error, HangError)
            run.problems.append(("hang: " if hung else "") + str(error))
            run.show_stacks()
            stacks = _stacks(folder)
            if run.launcher.poll() is None:
                run.launcher.kill()
        run.check()
        run.clean_up()
        run.kill_all()
        lost = losses(run.notes)
        return {
            "seed": seed,
            "problems": run.problems,
            "hung": hung,
            "wrong": len(run.notes.wrong),
            "lost": max(lost.values(), default=0),
            "too_many_lost": sum(it > story.commit_steps for it in lost.values()),
            "steps": run.notes.finished,
            "worlds": len(lost),
            "events": run.counts,
            "replaced": run.said("launcher").count("is slow, and is replaced"),
            "namespaces": story.namespaces,
            "seconds": round(time.monotonic() - run.begun, 2),
            "story": "\n".join([str(story), *run.log]),
            "stacks": stacks,
        }


def _stacks(folder: Path) -> str:
    return "".join(
        f"--- {path.name}\n{path.read_text()}" for path in sorted(folder.glob("stacks.*"))
    )


def _words(folder: Path) -> str:
    found = []
    for path in sorted(folder.glob("log.*")) + sorted(folder.glob("notes.*")):
        lines = path.read_text(errors="replace").splitlines()
        shown = lines if path.name == "log.launcher" else lines[-LINES:]
        found.append("\n".join([f"--- {path.name}", *shown]))
    return "\n".join(found)


def play_apart(seed: int, keep: Path | None) -> dict[str, Any]:
    """Plays the story of a seed in a process of its own."""
    with tempfile.TemporaryDirectory(prefix=f"chaos-{seed}-") as name:
        folder = Path(name)
        argv = [sys.executable, __file__, "--one", str(seed), "--folder", name]
        child = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_S, check=False)
        try:
            about: dict[str, Any] = json.loads(child.stdout)
        except ValueError:
            about = {"seed": seed, "problems": [f"the tool failed: {child.stderr}"], "seconds": 0}
        if about["problems"]:
            about["report"] = "\n".join(
                [about.get("story", ""), _words(folder), about.get("stacks", "")]
            )
            if keep is not None:
                shutil.copytree(folder, keep / str(seed), dirs_exist_ok=True)
                (keep / str(seed) / "report").write_text(about["report"])
        return about


def describe(found: list[dict[str, Any]]) -> str:
    """Returns the sum of all runs, as a table."""
    played = [it for it in found if "steps" in it]
    events: dict[str, int] = {}
    for about in played:
        for kind, count in about["events"].items():
            events[kind] = events.get(kind, 0) + count
    rows = {
        "runs": len(found),
        "on hosts with links of their own": sum(it["namespaces"] for it in played),
        "faults and changes": sum(events.values()),
        **{f"- {kind}": count for kind, count in sorted(events.items())},
        "steps": sum(it["steps"] for it in played),
        "worlds": sum(it["worlds"] for it in played),
        "slow ranks that were replaced": sum(it["replaced"] for it in played),
        "hangs": sum(it["hung"] for it in played),
        "wrong sums": sum(it["wrong"] for it in played),
        "steps lost beyond the rule": sum(it["too_many_lost"] for it in played),
        "runs that failed": sum(bool(it["problems"]) for it in found),
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {what} | {n:,} |" for what, n in rows.items())])


def main() -> int:
    """Plays the runs; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of files of runs that failed")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        sys.stdout.write(json.dumps(play(args.one, args.folder)))
        return 0
    found: list[dict[str, Any]] = []
    pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
    try:
        seeds = range(args.first, args.first + args.runs)
        futures = [pool.submit(play_apart, seed, args.keep) for seed in seeds]
        for future in concurrent.futures.as_completed(futures):
            about = future.result()
            found.append(about)
            words = "; ".join(about["problems"]) or "ok"
            sys.stderr.write(f"seed {about['seed']}: {words} ({about['seconds']} s)\n")
            if about["problems"] and args.keep is None:
                sys.stderr.write(about["report"] + "\n")
                sys.stderr.write(f"again: {sys.argv[0]} --first {about['seed']} --runs 1\n")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: the table has what was played\n")
    finally:
        pool.shutdown(cancel_futures=True)
    sys.stdout.write(describe(found) + "\n")
    return int(any(it["problems"] for it in found))


if __name__ == "__main__":
    sys.exit(main())
