"""What to export for NCCL, and the command that prints it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_to_end

from lightcc.harp import nccl, plugin_path
from lightcc.harp.__main__ import main


@pytest.mark.parametrize(
    ("before", "after"), [(None, "/opt/it's a $HOME"), ("/usr/a:/b", "/opt/it's a $HOME:/usr/a:/b")]
)
def test_a_shell_takes_the_lines_and_keeps_its_other_folders(
    before: str | None, after: str
) -> None:
    lines = nccl.shell_lines(Path("/opt/it's a $HOME"))
    script = "\n".join([*lines, 'echo "$LD_LIBRARY_PATH|$NCCL_NET_PLUGIN|$NCCL_NET"'])
    env = {} if before is None else {"LD_LIBRARY_PATH": before}
    done = run_to_end(["/bin/sh", "-ec", script], check=True, timeout=60, env=env)
    assert done.stdout == f"{after}|harp|HARP\n"


def test_a_folder_that_would_be_two_is_refused() -> None:
    with pytest.raises(ValueError, match="'/opt/a:b' cannot be in LD_LIBRARY_PATH"):
        nccl.shell_lines(Path("/opt/a:b"))


def test_the_other_name_shows_the_same_tables() -> None:
    folder = Path(plugin_path()).parent
    harp, other = (ctypes.CDLL(str(folder / name)) for name in (nccl.PLUGIN, "libnccl-net.so"))
    for version in range(4, 13):
        symbol = f"ncclNetPlugin_v{version}"
        address = ctypes.addressof(ctypes.c_char.in_dll(harp, symbol))
        assert address == ctypes.addressof(ctypes.c_char.in_dll(other, symbol)), symbol
    assert (folder / "libnccl-net.so").stat().st_size < 64 << 10, "no copy of the plugin"


def test_the_command_prints_the_path_or_lines_for_a_shell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [sys.executable, "-m", "lightcc.harp"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == plugin_path() + "\n"
    assert main(["--env"]) == 0
    assert capsys.readouterr().out.splitlines() == nccl.shell_lines(Path(plugin_path()).parent)
    with pytest.raises(SystemExit):
        main(["now"])
    assert "unrecognized arguments: now" in capsys.readouterr().err
