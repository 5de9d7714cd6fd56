"""What a message, a byte and a reduction take: given in a file, or the defaults."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class CostsError(ValueError):
    """A file holds no costs; the text says why."""


@dataclass(frozen=True)
class Costs:
    """What everything takes; docs/running/plan.md says where the defaults come from."""

    #: Seconds from a message's send to the receiver that it wakes.
    latency_s: float = 25e-6
    #: Seconds of a processor for a message, at each of its ends.
    message_s: float = 13e-6
    #: Seconds for each byte of a tensor that ranks of a host all-reduce in memory.
    host_s_per_byte: float = 1.2e-10
    #: Seconds of processors for each byte over TCP, half of them at each end.
    tcp_s_per_byte: float = 1.5e-10
    #: Seconds for each byte of a shard, to select its largest elements, or to quantise it.
    compress_s_per_byte: float = 3e-10
    #: Share of a link's rate that TCP reaches where a host has several peers at a time.
    shared_rate: float = 0.9
    #: Bytes on the link for each byte that is sent: Ethernet, IP and TCP at an MTU of 1500.
    wire_bytes_per_byte: float = 1538 / 1448

    @staticmethod
    def read(path: Path) -> Costs:
        """Returns the costs of a JSON file, an object with any of the attributes.

        Raises:
            CostsError: There is no such file, or something in it is not a cost.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            msg = f"{path} cannot be read: {error}"
            raise CostsError(msg) from error
        if not isinstance(found, dict):
            msg = f"{path}: expected an object such as {json.dumps(asdict(Costs()))}"
            raise CostsError(msg)
        known = [field.name for field in fields(Costs)]
        for name, value in found.items():
            if name not in known:
                msg = f"{path}: '{name}' is no cost; there are {', '.join(known)}"
                raise CostsError(msg)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value < 1e3
                or (value == 0 and name == "shared_rate")
            ):
                msg = f"{path}: {name} is {value!r}; expected a number from 0 to 1000"
                raise CostsError(msg)
        return Costs(**{name: float(value) for name, value in found.items()})
