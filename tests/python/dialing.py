"""A launcher that listens and workers that dial in, as processes of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Sequence

BIN = Path(sys.executable).parent
PATIENCE_S = 60.0
SECRET = "s3cret of a test"


class Program:
    """A started program, whose words on standard error are read as they come."""

    def __init__(self, stack: contextlib.ExitStack, *argv: str, **variables: str) -> None:
        environment = os.environ | {"LIGHT_SECRET": SECRET} | variables
        self.process = stack.enter_context(
            subprocess.Popen(
                argv,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        )
        stack.callback(self.process.kill)
        self.said = ""
        self.output = ""
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._read_errors, daemon=True)]
        self._threads.append(threading.Thread(target=self._read_output, daemon=True))
        for thread in self._threads:
            thread.start()

    def wait_until_said(self, pattern: str) -> re.Match[str]:
        """Returns the first match on standard error."""
        with self._changed:
            self._changed.wait_for(
                lambda: re.search(pattern, self.said) or not self._threads[0].is_alive(), PATIENCE_S
            )
            found = re.search(pattern, self.said)
            assert found is not None, self.said
            return found

    def end(self) -> int:
        """Waits for the end; returns the exit code."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            msg = f"it did not end within {PATIENCE_S:g} s; it has said\n{self.said}"
            raise AssertionError(msg) from None
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return code

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.said += line
                self._changed.notify_all()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        self.output = self.process.stdout.read()


class Site:
    """One launcher that listens, and its workers."""

    def __init__(self, stack: contextlib.ExitStack, *argv: str, **variables: str) -> None:
        self._stack = stack
        self.launcher = Program(
            stack, str(BIN / "lightccrun"), "--listen", "127.0.0.1:0", *argv, **variables
        )
        self.address = self.launcher.wait_until_said(r"lightcc-worker --join (\S+)")[1]

    def worker(self, name: str, *flags: str, **variables: str) -> Program:
        argv = (str(BIN / "lightcc-worker"), "--join", self.address, "--name", name, *flags)
        return Program(self._stack, *argv, **variables)

    def wait_for(self, file: Path) -> None:
        while not file.exists():
            assert self.launcher.process.poll() is None, self.launcher.said
            time.sleep(0.005)


def children(pid: int) -> list[int]:
    """Returns the children of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def code_of(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int | str | None:
    """Returns the exit code of a program that is called in this process."""
    try:
        return main(argv)
    except SystemExit as end:
        return end.code
