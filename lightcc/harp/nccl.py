"""What to export so that NCCL takes HARP as its network: a rule for each version of NCCL's loader.

    NCCL            looks for                                           so it needs
    2.8  to 2.11    libnccl-net.so, where the dynamic linker looks      LD_LIBRARY_PATH
    2.12 to 2.20    libnccl-net-$NCCL_NET_PLUGIN.so, likewise           both
    2.21 and newer  $NCCL_NET_PLUGIN as it stands, then as before       NCCL_NET_PLUGIN alone

The folder has both names, so the exports for 2.12 work with every version. A process that has
loaded the plugin needs no LD_LIBRARY_PATH: the dynamic linker knows it by its name from then on.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

LIBRARY = "libnccl.so.2"
PLUGIN = "libnccl-net-harp.so"
_OLDEST = (2, 8)
_FIRST_WITH_A_NAME = (2, 12)
_FIRST_WITH_A_PATH = (2, 21)
_BY_NAME = {"NCCL_NET_PLUGIN": "harp", "NCCL_NET": "HARP"}
_SECONDS = 60.0
# In a process of its own: the library has initializers, and this process keeps what it loads.
_ASK = """
import ctypes, sys
version = ctypes.c_int()
status = ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version))
print("version", status, version.value)
"""


class Found(NamedTuple):
    """An NCCL of this machine."""

    version: tuple[int, ...]
    source: str  # For people: which file, and why this one.


def exports(version: tuple[int, ...] | None, folder: Path) -> dict[str, str]:
    """Returns the variables that make an NCCL of `version` use HARP.

    Args:
        version: Such as (2, 21, 5). None: not known, so what every version understands.
        folder: Where the plugin is, under both names. To be put before LD_LIBRARY_PATH's folders.

    Raises:
        ValueError: There is no way to tell this NCCL; the text says why.
    """
    if version is not None and version < _OLDEST:
        text = ".".join(map(str, version))
        msg = f"NCCL {text} is too old for HARP, which needs 2.8 or newer"
        raise ValueError(msg)
    if version is not None and _takes_path(version, folder):
        return _by_path(folder)
    if any(mark in str(folder) for mark in ":;"):
        msg = f"'{folder}' cannot be in LD_LIBRARY_PATH: there : and ; stand between folders"
        raise ValueError(msg)
    names = {} if version is not None and version < _FIRST_WITH_A_NAME else _BY_NAME
    return {"LD_LIBRARY_PATH": str(folder), **names}


def settings_where_loaded(version: tuple[int, ...], folder: Path) -> dict[str, str]:
    """Returns the variables for a process that has loaded the plugin of `folder` already.

    Args:
        version: Of NCCL, from 2.12 on.
        folder: As in `exports()`; any name will do.
    """
    return _by_path(folder) if _takes_path(version, folder) else dict(_BY_NAME)


def _takes_path(version: tuple[int, ...], folder: Path) -> bool:
    return version >= _FIRST_WITH_A_PATH and "," not in str(folder)  # A comma makes it two plugins.


def _by_path(folder: Path) -> dict[str, str]:
    return {"NCCL_NET_PLUGIN": str(folder / PLUGIN), "NCCL_NET": "HARP"}


def shell_lines(variables: dict[str, str]) -> list[str]:
    """Returns `variables` as lines for a shell; LD_LIBRARY_PATH keeps what it has behind them."""
    kept = '"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"'
    return [
        f"export {name}={shlex.quote(value)}{kept if name == 'LD_LIBRARY_PATH' else ''}"
        for name, value in variables.items()
    ]


def parse_version(text: str) -> tuple[int, ...]:
    """Returns "2.21.5" as numbers.

    Raises:
        ValueError: It is no version of NCCL.
    """
    parts = text.split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isascii() and part.isdecimal() for part in parts):
        msg = f"'{text}': expected a version of NCCL, such as 2.21.5"
        raise ValueError(msg)
    return tuple(map(int, parts))


def find() -> Found | None:
    """Returns the NCCL that programs of this Python use, or None where there is none.

    First comes the nvidia-nccl wheel, which torch is linked to, then a library that torch brings
    along, then what the dynamic linker finds.
    """
    candidates = [*_of_wheels(), *_of_torch(), (LIBRARY, "found by the dynamic linker")]
    for path, source in candidates:
        with contextlib.suppress(ValueError):  # The next one may do.
            return Found(version_of(path), f"{path}, {source}")
    return None


def version_of(library: str) -> tuple[int, ...]:
    """Returns what the NCCL in a file says of itself.

    Raises:
        ValueError: It cannot be loaded, or is no NCCL.
    """
    command = [sys.executable, "-c", _ASK, library]
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        msg = f"{library}: does not say its version within {_SECONDS:.0f} s"
        raise ValueError(msg) from None
    answer = done.stdout.split()
    if done.returncode != 0 or answer[:2] != ["version", "0"]:
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        msg = f"{library} is no NCCL that can be loaded: {reason}"
        raise ValueError(msg)
    return _decoded(int(answer[2]))


def _decoded(code: int) -> tuple[int, ...]:
    """Reads NCCL_VERSION: 2804 is 2.8.4, and from 2.9 on 20900 is 2.9.0."""
    if code < 10_000:
        return code // 1000, code // 100 % 10, code % 100
    return code // 10_000, code // 100 % 100, code % 100


def _of_wheels() -> list[tuple[str, str]]:
    found = []
    for package in importlib.metadata.distributions():
        name = str(package.metadata["Name"]).lower().replace("_", "-")
        if not name.startswith("nvidia-nccl"):
            continue
        files = [file for file in package.files or () if file.name == LIBRARY]
        found += [(str(package.locate_file(file)), f"of the package {name}") for file in files]
    return found


def _of_torch() -> list[tuple[str, str]]:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    library = Path(spec.origin).parent / "lib" / LIBRARY
    return [(str(library), "of torch")] if library.exists() else []
