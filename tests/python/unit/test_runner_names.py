"""Names of hosts that resolve late, as those of pods do."""

from __future__ import annotations

import os
import sys

import pytest
from processes import run_to_end

from lightcc import _addresses
from lightcc.runner import network

NO_HOST = "no-such-host.invalid"


def test_names_are_awaited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def resolve(host: str) -> list[tuple[int, str]]:
        asked.append(host)
        return [(2, "192.0.2.1")] if asked.count(host) > 6 else []

    monkeypatch.setattr(_addresses, "resolve", resolve)
    monkeypatch.setattr(network, "_RETRY_S", 0.001)
    network.await_names(["a", "b"], 60)
    assert capsys.readouterr().err.count("waiting for the name(s) a, b") == 1
    assert resolve("a")
    assert resolve("b")


@pytest.mark.parametrize("role", ["launcher", "worker"])
def test_only_a_launcher_of_the_operator_waits(role: str) -> None:
    command = [sys.executable, "-m", "lightcc.runner", "-H", f"{NO_HOST}:1", "--start-timeout", "2"]
    done = run_to_end([*command, "true"], env=os.environ | {"K_MPI_JOB_ROLE": role})
    assert done.returncode == 2
    assert f"host '{NO_HOST}' cannot be resolved" in done.stderr
    assert ("waiting for the name(s)" in done.stderr) == (role == "launcher")
