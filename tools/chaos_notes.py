"""What ranks of tools/chaos_elastic.py have noted, read as it comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class About:
    """One worker of the job: a process."""

    pid: int
    host: str
    epoch: int = 0  # The epoch of its last finished step.
    when: float = 0.0  # That was finished.


@dataclass
class Notes:
    """Everything that the ranks of a job have noted."""

    folder: Path
    workers: dict[int, About] = field(default_factory=dict)
    steps: list[tuple[float, int, int]] = field(default_factory=list)  # When, epoch, step.
    results: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    epoch: int = 0  # The last one of which a step is finished.
    finished: int = 0  # Steps, each counted once in each epoch.
    _seen: dict[Path, int] = field(default_factory=dict)
    _counted: set[tuple[int, int]] = field(default_factory=set)

    def read(self) -> None:
        """Reads what is new."""
        for path in self.folder.glob("notes.*"):
            begin = self._seen.get(path, 0)
            with path.open() as file:
                file.seek(begin)
                text = file.read()
            whole = text[: text.rfind("\n") + 1]
            self._seen[path] = begin + len(whole)
            for line in whole.splitlines():
                self._take(int(path.suffix[1:]), line)

    def _take(self, worker: int, line: str) -> None:
        what, when, *words = line.split()
        if what == "start":
            self.workers[worker] = About(int(words[0]), words[1])
        elif what == "step":
            epoch, step = int(words[0]), int(words[1])
            self.steps.append((float(when), epoch, step))
            about = self.workers[worker]
            about.epoch, about.when = epoch, float(when)
            self.epoch = max(self.epoch, epoch)
            if (epoch, step) not in self._counted:
                self._counted.add((epoch, step))
                self.finished += 1
        elif what == "result":
            self.results[worker] = int(words[0])
        elif what == "wrong":
            self.wrong.append(f"worker {worker} has a wrong {words[0]} at step {words[1]}")


def losses(notes: Notes) -> dict[int, int]:
    """Returns for each epoch how many finished steps of those before it were made again.

    Minus one and less: steps that were never made.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for _, epoch, step in notes.steps:
        first[epoch] = min(step, first.get(epoch, step))
        last[epoch] = max(step, last.get(epoch, step))
    found, done = {}, 0
    for epoch in sorted(first):
        found[epoch] = done + 1 - first[epoch]
        done = max(done, last[epoch])
    return found
