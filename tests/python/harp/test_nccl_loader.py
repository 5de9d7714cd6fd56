"""The plugin loaders of real NCCLs take HARP by the same exports.

tools/install_nccl.sh fetches the libraries, as part of `make test-all`. No GPU is needed: NCCL
opens its network before it looks for one, or can be made to.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from processes import run_to_end

from lightcc.harp import nccl, plugin_path

pytestmark = pytest.mark.slow

HOME = Path(__file__).resolve().parents[3] / ".venv-nccl"
VERSIONS = ("2.20.5", "2.21.5", "2.26.2", "2.32.3")
PROBE = Path(__file__).with_name("nccl_probe.py")
BY_LIGHTCC = Path(__file__).with_name("nccl_by_lightcc.py")
FOLDER = {"LD_LIBRARY_PATH": str(Path(plugin_path()).parent)}


def library(version: str) -> str:
    path = HOME / version / "libnccl.so.2"
    assert path.exists(), f"{path} is not there: run tools/install_nccl.sh"
    return str(path)


def log_of(version: str, variables: dict[str, str], script: Path = PROBE) -> str:
    """What NCCL logs on its way to a network, with no variables of its own but these."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    env |= {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "lo", "HARP_PROFILE": "none"} | variables
    command = [sys.executable, str(script), library(version)]
    done = run_to_end(command, timeout=120, env=env)
    text: str = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert "ncclNetInitP8ncclComm 0" in text, text
    return text


def starts_harp(version: str, variables: dict[str, str], script: Path = PROBE) -> bool:
    text = log_of(version, variables, script)
    return "NET/HARP : init: datapath udp" in text and "NET/Socket : Using" not in text


@pytest.mark.parametrize("version", VERSIONS)
def test_light_net_makes_it_use_harp_without_exports(version: str) -> None:
    asked = {"LIGHT_NET": "harp", "LIGHT_GPU_OPERATIONS": "nccl"}
    assert starts_harp(version, asked | {"LIGHT_NCCL_LIBRARY": library(version)}, BY_LIGHTCC)
    assert not starts_harp(version, asked | {"LIGHT_NET": "tcp"}, BY_LIGHTCC)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_exports_work_with_every_version(version: str) -> None:
    assert starts_harp(version, FOLDER | nccl.SETTINGS)


@pytest.mark.parametrize("version", ["2.20.5", "2.32.3"])
def test_the_name_that_old_versions_look_for_is_harp(version: str) -> None:
    assert starts_harp(version, FOLDER)


def test_a_path_is_no_name_before_2_21() -> None:
    """Why the exports name it: a path was what the documentation said once."""
    text = log_of("2.20.5", {"NCCL_NET_PLUGIN": plugin_path()})
    assert f"libnccl-net-{plugin_path()}.so" in text
    assert "NET/HARP" not in text
