"""The parser of lightcc's command lines: it answers a flag that is not known with the nearest."""

from __future__ import annotations

import argparse
import difflib
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose error says what may have been meant."""

    def error(self, message: str) -> NoReturn:
        """Writes usage and error to standard error, and leaves with exit code 2."""
        what, _, words = message.partition(": ")
        if what == "unrecognized arguments":
            flag = words.split()[0].partition("=")[0]
            near = difflib.get_close_matches(flag, self._option_string_actions, 1)
            message += f"; did you mean {near[0]}?" if near else ""
        super().error(message)
