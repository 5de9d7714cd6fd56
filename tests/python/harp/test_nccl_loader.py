"""The plugin loaders of real NCCLs take HARP, each by the exports of its version.

tools/install_nccl.sh fetches the libraries, as part of `make test-all`. No GPU is needed: NCCL
opens its network before it looks for one, or can be made to.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightcc.harp import nccl, plugin_path
from lightcc.harp.__main__ import main

pytestmark = pytest.mark.slow

HOME = Path(__file__).resolve().parents[3] / ".venv-nccl"
VERSIONS = ("2.18.3", "2.21.5", "2.26.2", "2.32.3")
PROBE = Path(__file__).with_name("nccl_probe.py")
BY_LIGHTCC = Path(__file__).with_name("nccl_by_lightcc.py")


def library(version: str) -> str:
    path = HOME / version / nccl.LIBRARY
    assert path.exists(), f"{path} is not there: run tools/install_nccl.sh"
    return str(path)


def log_of(version: str, variables: dict[str, str], script: Path = PROBE) -> str:
    """What NCCL logs on its way to a network, with no variables of its own but these."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    env |= {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "lo", "HARP_PROFILE": "none"} | variables
    command = [sys.executable, str(script), library(version)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=env
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert "ncclNetInitP8ncclComm 0" in text, text
    return text


def starts_harp(version: str, variables: dict[str, str], script: Path = PROBE) -> bool:
    text = log_of(version, variables, script)
    return "NET/HARP : init: datapath udp" in text and "NET/Socket : Using" not in text


@pytest.mark.parametrize("version", VERSIONS)
def test_the_exports_for_a_version_make_it_use_harp(version: str) -> None:
    folder = Path(plugin_path()).parent
    assert starts_harp(version, nccl.exports(nccl.parse_version(version), folder))


@pytest.mark.parametrize("version", VERSIONS)
def test_light_net_makes_it_use_harp_without_exports(version: str) -> None:
    asked = {"LIGHT_NET": "harp", "LIGHT_GPU_OPERATIONS": "nccl"}
    assert starts_harp(version, asked | {"LIGHT_NCCL_LIBRARY": library(version)}, BY_LIGHTCC)
    assert not starts_harp(version, asked | {"LIGHT_NET": "tcp"}, BY_LIGHTCC)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_exports_for_no_version_work_with_every_one(version: str) -> None:
    assert starts_harp(version, nccl.exports(None, Path(plugin_path()).parent))


@pytest.mark.parametrize("version", ["2.18.3", "2.32.3"])
def test_the_name_that_old_versions_look_for_is_harp(version: str) -> None:
    variables = nccl.exports((2, 8), Path(plugin_path()).parent)
    assert variables.keys() == {"LD_LIBRARY_PATH"}
    assert starts_harp(version, variables)


def test_a_path_is_no_name_before_2_21() -> None:
    """Why the rule has a seam there: this was what the documentation said."""
    text = log_of("2.18.3", {"NCCL_NET_PLUGIN": plugin_path()})
    assert f"libnccl-net-{plugin_path()}.so" in text
    assert "NET/HARP" not in text


@pytest.mark.parametrize("version", VERSIONS)
def test_a_library_says_its_version(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nccl.version_of(library(version)) == nccl.parse_version(version)
    assert main(["--env", "--nccl", library(version)]) == 0
    out, err = capsys.readouterr()
    assert err == f"NCCL {version}: {library(version)}\n"
    expected = nccl.exports(nccl.parse_version(version), Path(plugin_path()).parent)
    assert out.splitlines() == nccl.shell_lines(expected)


def test_the_wheel_of_this_python_is_found_before_what_the_linker_finds(tmp_path: Path) -> None:
    """Both are there; without the wheel the linker's is found."""
    package = tmp_path / "nvidia_nccl_cu12-2.21.5.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nccl-cu12\n")
    (package / "RECORD").write_text("nvidia/nccl/lib/libnccl.so.2,,\n")
    folder = tmp_path / "nvidia/nccl/lib"
    folder.mkdir(parents=True)
    (folder / nccl.LIBRARY).symlink_to(library("2.21.5"))
    linker = {"LD_LIBRARY_PATH": str(Path(library("2.18.3")).parent)}

    def answer(variables: dict[str, str]) -> str:
        command = [sys.executable, "-m", "lightcc.harp", "--env"]
        env = {**os.environ, **linker, **variables}
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=120, env=env
        )
        return done.stderr

    wheel = f"{folder / nccl.LIBRARY}, of the package nvidia-nccl-cu12"
    assert answer({"PYTHONPATH": str(tmp_path)}) == f"NCCL 2.21.5: {wheel}\n"
    assert answer({}) == "NCCL 2.18.3: libnccl.so.2, found by the dynamic linker\n"
