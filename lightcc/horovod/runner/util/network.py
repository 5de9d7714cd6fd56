"""`horovod.runner.util.network`: the address of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightcc import _addresses

if TYPE_CHECKING:
    from collections.abc import Collection


def get_driver_ip(nics: Collection[str]) -> str:
    """Returns this machine's address on one of some network interfaces.

    Raises:
        RuntimeError: None of them is up and has an address.
    """
    for interface in _addresses.interfaces():
        if interface.name in nics:
            return interface.address
    msg = f"none of {sorted(nics)} is up; candidates: {_addresses.candidate_text()}"
    raise RuntimeError(msg)
