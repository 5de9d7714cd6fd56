"""Variables that are accepted but not acted on yet say so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["LIGHT_TOPK_ALLREDUCE"])
def test_asking_for_what_is_not_there_yet_is_a_warning_and_not_an_error(name: str) -> None:
    program = "import lightcc as hvd; hvd.init(); print(hvd.size())"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, name: "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.strip() == "1"
    assert name in result.stderr
