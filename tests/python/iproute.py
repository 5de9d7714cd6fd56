"""The program ip, by which tests make hosts of their own."""

from __future__ import annotations

import subprocess


def ip(*arguments: str) -> str:
    """Runs ip and returns what it prints; a failure is an error."""
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
