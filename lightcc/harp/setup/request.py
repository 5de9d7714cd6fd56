"""What the user asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """The flags of one run that decide what is done."""

    datapath: str = "udp"
    interfaces: tuple[str, ...] = ()  # Empty: chosen.
    engines: int = 1
    mode: str = "inline"
    cores: tuple[int, ...] = ()  # Empty: chosen where they can be.
    queues: int = 0  # 0: as they are, or as many as engines.
    huge_pages_gib: int | None = None  # None: 5 for each GPU, and 10.
    dpdk_library: str = ""  # Empty: beside the plugin.
    unsafe_no_iommu: bool = False
    profile: str = "/etc/harp/profile.conf"

    def wanted_huge_bytes(self, gpus: int) -> int:
        """Returns how much memory huge pages shall have; none where nothing uses them."""
        if self.huge_pages_gib is not None:
            return self.huge_pages_gib << 30
        return (5 * gpus + 10) << 30 if self.datapath == "dpdk" else 0
