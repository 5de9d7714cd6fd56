"""Values of the environment, each checked: what is wrong is named with what is allowed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_START_TIMEOUTS = ("HOROVOD_START_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS")
_START_TIMEOUT_S = 30.0
_PEER_TIMEOUT_S = 30.0


def rank_and_size(
    env: Mapping[str, str], rank_name: str, size_name: str, setter: str
) -> tuple[int, int]:
    """Returns rank and size from two variables; `setter` is who should have set them.

    Raises:
        ValueError: One is missing or is not a number in its range.
    """
    size = integer(env, size_name, 1, None, setter)
    return integer(env, rank_name, 0, size - 1, setter), size


def integer(
    env: Mapping[str, str], name: str, minimum: int, maximum: int | None, setter: str
) -> int:
    """Returns an integer.

    Raises:
        ValueError: It is missing, or is not an integer from `least` to `most`.
    """
    allowed = (
        f"an integer >= {minimum}" if maximum is None else f"an integer from {minimum} to {maximum}"
    )
    text = env.get(name)
    if text is None:
        msg = f"{name} is not set: expected {allowed}, as {setter} sets it."
        raise ValueError(msg)
    # int() takes "1_0" and other scripts' digits; a launcher writes none of these.
    value = int(text) if text.isascii() and text.strip().isdigit() else -1
    if value < minimum or (maximum is not None and value > maximum):
        msg = f'{name}="{text}": expected {allowed}'
        raise ValueError(msg)
    return value


def rendezvous(env: Mapping[str, str]) -> str:
    """Returns LIGHT_RENDEZVOUS.

    Raises:
        ValueError: It is missing or is not host:port.
    """
    text = env.get("LIGHT_RENDEZVOUS", "")
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        found = f'="{text}"' if text else " is not set"
        msg = (
            f"LIGHT_RENDEZVOUS{found}: expected host:port of the job's store, which a job of "
            "several processes needs and lightccrun serves"
        )
        raise ValueError(msg)
    return text


def secret(env: Mapping[str, str]) -> str:
    """Returns the job's secret from LIGHT_SECRET or the file that LIGHT_SECRET_FILE names.

    Raises:
        ValueError: There is none, or the file cannot be read.
    """
    found = env.get("LIGHT_SECRET", "").strip()
    path = env.get("LIGHT_SECRET_FILE", "")
    if not found and path:
        try:
            found = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            msg = f'LIGHT_SECRET_FILE="{path}": expected a file with the secret: {error}'
            raise ValueError(msg) from error
    if not found:
        msg = (
            "LIGHT_SECRET is not set and LIGHT_SECRET_FILE names no file with a secret: all ranks "
            "of a job need the same one, which `lightccrun --listen --secret-file FILE` makes"
        )
        raise ValueError(msg)
    return found


def interface(env: Mapping[str, str]) -> str:
    """Returns the first interface that LIGHT_IFACE or HOROVOD_GLOO_IFACE names; "" for none."""
    names = env.get("LIGHT_IFACE") or env.get("HOROVOD_GLOO_IFACE") or ""
    return names.split(",")[0].strip()


def start_timeout_s(env: Mapping[str, str]) -> float:
    """Returns how long ranks wait for one another at the start: the larger of two variables.

    Raises:
        ValueError: One is not a number of seconds.
    """
    given = [_seconds(name, env[name]) for name in _START_TIMEOUTS if env.get(name)]
    return max(given, default=_START_TIMEOUT_S)


def peer_timeout_s(env: Mapping[str, str]) -> float:
    """Returns LIGHT_PEER_TIMEOUT: how long somebody may stay silent.

    Raises:
        ValueError: It is not a number of seconds.
    """
    text = env.get("LIGHT_PEER_TIMEOUT")
    return _seconds("LIGHT_PEER_TIMEOUT", text) if text else _PEER_TIMEOUT_S


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        msg = f'{name}="{text}": expected a number of seconds > 0'
        raise ValueError(msg)
    return value
