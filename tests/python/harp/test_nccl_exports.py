"""What to export for which NCCL: the rule, and the command that prints it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from lightcc.harp import nccl, plugin_path
from lightcc.harp.__main__ import main

FOLDER = Path("/opt/harp/plugin")
PATH = {"NCCL_NET_PLUGIN": "/opt/harp/plugin/libnccl-net-harp.so", "NCCL_NET": "HARP"}
NAME = {"LD_LIBRARY_PATH": "/opt/harp/plugin", "NCCL_NET_PLUGIN": "harp", "NCCL_NET": "HARP"}
FILE = {"LD_LIBRARY_PATH": "/opt/harp/plugin"}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.8", FILE),
        ("2.11.4", FILE),
        ("2.12.7", NAME),
        ("2.18.3", NAME),
        ("2.20.5", NAME),
        ("2.21.5", PATH),
        ("2.30", PATH),
        ("3.0", PATH),
    ],
)
def test_each_version_gets_what_its_loader_understands(
    version: str, expected: dict[str, str]
) -> None:
    assert nccl.exports(nccl.parse_version(version), FOLDER) == expected


def test_where_the_version_is_not_known_both_names_are_within_reach() -> None:
    assert nccl.exports(None, FOLDER) == NAME


def test_a_comma_would_be_two_plugins_to_newer_versions() -> None:
    assert nccl.exports((2, 27), Path("/opt/a,b")) == {**NAME, "LD_LIBRARY_PATH": "/opt/a,b"}


def test_a_process_that_has_the_plugin_needs_no_folder_to_find_it() -> None:
    name = {"NCCL_NET_PLUGIN": "harp", "NCCL_NET": "HARP"}
    assert nccl.settings_where_loaded((2, 18, 1), FOLDER) == name
    assert nccl.settings_where_loaded((2, 20, 5), Path("/opt/a:b")) == name
    assert nccl.settings_where_loaded((2, 21, 5), FOLDER) == PATH
    assert nccl.settings_where_loaded((2, 27), Path("/opt/a,b")) == name


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match=r"NCCL 2\.7\.8 is too old for HARP, which needs 2\.8"):
        nccl.exports((2, 7, 8), FOLDER)
    with pytest.raises(ValueError, match="'/opt/a:b' cannot be in LD_LIBRARY_PATH"):
        nccl.exports((2, 18), Path("/opt/a:b"))


@pytest.mark.parametrize("text", ["", "2", "2.x", "2.21.", "v2.21", "2.21.5.1.1", "-2.1"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a version of NCCL, such as 2\.21\.5"):
        nccl.parse_version(text)


def test_versions_are_read_from_nccls_number() -> None:
    assert nccl._decoded(2804) == (2, 8, 4)
    assert nccl._decoded(20906) == (2, 9, 6)
    assert nccl._decoded(21803) == (2, 18, 3)
    assert nccl._decoded(23203) == (2, 32, 3)


@pytest.mark.parametrize(
    ("before", "after"), [(None, "/opt/it's a $HOME"), ("/usr/a:/b", "/opt/it's a $HOME:/usr/a:/b")]
)
def test_a_shell_takes_the_lines_and_keeps_its_other_folders(
    before: str | None, after: str
) -> None:
    lines = nccl.shell_lines(nccl.exports(None, Path("/opt/it's a $HOME")))
    script = "\n".join([*lines, 'echo "$LD_LIBRARY_PATH|$NCCL_NET_PLUGIN|$NCCL_NET"'])
    env = {} if before is None else {"LD_LIBRARY_PATH": before}
    done = subprocess.run(
        ["/bin/sh", "-ec", script], capture_output=True, text=True, check=True, timeout=60, env=env
    )
    assert done.stdout == f"{after}|harp|HARP\n"


def test_the_other_name_shows_the_same_tables() -> None:
    folder = Path(plugin_path()).parent
    harp, other = (ctypes.CDLL(str(folder / name)) for name in (nccl.PLUGIN, "libnccl-net.so"))
    for version in range(4, 13):
        symbol = f"ncclNetPlugin_v{version}"
        address = ctypes.addressof(ctypes.c_char.in_dll(harp, symbol))
        assert address == ctypes.addressof(ctypes.c_char.in_dll(other, symbol)), symbol
    assert (folder / "libnccl-net.so").stat().st_size < 64 << 10, "no copy of the plugin"


def test_the_command_prints_lines_for_a_shell_and_says_for_which_nccl(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--env", "--nccl-version", "2.12"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == nccl.shell_lines(nccl.exports((2, 12), Path(plugin_path()).parent))
    assert err == "NCCL 2.12, as --nccl-version says\n"


def test_without_an_nccl_the_command_prints_what_every_version_understands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "find", lambda: None)
    assert main(["--env"]) == 0
    out, err = capsys.readouterr()
    assert "export NCCL_NET_PLUGIN=harp\n" in out
    assert err == "no NCCL was found: this works with every version\n"


def test_a_file_that_is_no_nccl_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--env", "--nccl", "/etc/passwd"]) == 1
    assert "/etc/passwd is no NCCL that can be loaded: " in capsys.readouterr().err
    assert main(["--env", "--nccl", "libm.so.6"]) == 1
    assert "libm.so.6 is no NCCL that can be loaded: " in capsys.readouterr().err
    assert main(["--env", "--nccl-version", "2.4"]) == 1
    assert "too old" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--nccl-version", "2.21"), "they go with --env"),
        (("--env", "--nccl-version", "new"), "'new': expected a version of NCCL"),
        (("--env", "--nccl-version", "2.21", "--nccl", "x"), "not allowed with"),
        (("now",), "unrecognized arguments: now"),
    ],
)
def test_wrong_flags_are_told(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], error: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(flags)
    assert caught.value.code == 2
    assert error in capsys.readouterr().err


def test_it_is_a_command() -> None:
    command = [sys.executable, "-m", "lightcc.harp"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == plugin_path() + "\n"
