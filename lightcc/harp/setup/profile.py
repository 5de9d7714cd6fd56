"""The HARP profile as text: NAME=VALUE lines and comments, as the plugin reads them.

The plugin is the judge of values; here only what harp-setup itself has to know is read back.
"""

from __future__ import annotations

import re

from lightcc.harp.setup.system import SetupError

_LINE = re.compile(r"(HARP_[A-Z0-9_]+)=(.*)")


def profile_text(variables: dict[str, str], comments: list[str]) -> str:
    """Returns a profile with comments, one for each line, before its variables."""
    lines = [f"# {comment}".rstrip() for comment in comments]
    lines += [f"{name}={value}" for name, value in variables.items()]
    return "\n".join(lines) + "\n"


def parse_profile(text: str, path: str) -> dict[str, str]:
    """Returns the variables of a profile.

    Raises:
        SetupError: A line is neither NAME=VALUE nor a comment nor empty.
    """
    found: dict[str, str] = {}
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or match[1] in found:
            msg = f"{path}:{number}: {line[:80]!r}: expected HARP_NAME=VALUE, each name once"
            raise SetupError(msg)
        found[match[1]] = match[2]
    return found


def interfaces_value(names: list[str]) -> str:
    """Returns the value of HARP_IFNAME for just these interfaces."""
    return "=" + ",".join(names)


def dpdk_devices(value: str) -> list[tuple[str, str]]:
    """Returns (device, "address/prefix") of each device in a value of HARP_DPDK."""
    split = [device.split("@") for device in value.split(";") if device]
    return [(parts[0], parts[1] if len(parts) > 1 else "") for parts in split]
