"""The parser of lightcc's command lines: it names the version, and the nearest of unknown flags."""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with --version, whose error says what may have been meant."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        version = sys.modules["lightcc"].__version__
        text = "print the version and exit"
        self.add_argument("--version", action="version", version=version, help=text)

    def error(self, message: str) -> NoReturn:
        """Writes usage and error to standard error, and leaves with exit code 2."""
        what, _, words = message.partition(": ")
        if what == "unrecognized arguments":
            flag = words.split()[0].partition("=")[0]
            near = difflib.get_close_matches(flag, self._option_string_actions, 1)
            message += f"; did you mean {near[0]}?" if near else ""
        super().error(message)
