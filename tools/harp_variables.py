"""What `HARP_*` variables there are: the rows that docs/reference/environment.md shows.

The plugin reads them (`harp_plugin/src/endpoint/settings.cpp`). `tools/check_docs.py` compares the
names in both places.
"""

from __future__ import annotations

from typing import NamedTuple


class HarpVariable(NamedTuple):
    """One variable of HARP. An empty default means that there is none."""

    name: str
    type: str
    default: str
    meaning: str


HARP_VARIABLES = (
    HarpVariable(
        "HARP_IFNAME",
        "list",
        "`NCCL_SOCKET_IFNAME`, else all but docker's and loopback",
        "Interfaces that become devices: prefixes `eth,ib`, exact names `=eth0`, or all but "
        "some `^docker`.",
    ),
    HarpVariable(
        "HARP_MODE",
        "one of inline, adaptive, thread",
        "`inline`",
        "Which thread drives an engine: the caller, a thread of its own that sleeps when idle, "
        "or one that does not sleep while a session is alive.",
    ),
    HarpVariable(
        "HARP_ENGINES", "integer, 1 to 64", "`1`", "Engines per device. Connections go round them."
    ),
    HarpVariable(
        "HARP_CORES",
        "list of cores",
        "",
        "Cores of the engines' threads, such as `2,3`. Not for inline.",
    ),
    HarpVariable("HARP_PATHS", "integer, 1 to 64", "`8`", "Flows per connection."),
    HarpVariable(
        "HARP_PEER_TIMEOUT",
        "seconds, 0.1 to 86400",
        "`LIGHT_PEER_TIMEOUT`, else `30`",
        "Silence after which a peer is dead.",
    ),
    HarpVariable(
        "HARP_DATAPATH",
        "one of auto, udp, af_xdp, dpdk",
        "`auto`",
        "How packets leave and arrive. `auto` means `udp`.",
    ),
    HarpVariable(
        "HARP_DPDK",
        "list",
        "",
        "Devices of the datapath dpdk: `DEVICE@ADDRESS/PREFIX[@GATEWAY]`, separated by `;`.",
    ),
    HarpVariable(
        "HARP_DPDK_MTU", "bytes, 576 to 9600", "`1500`", "Largest IP packet of DPDK's devices."
    ),
    HarpVariable("HARP_DPDK_LIBRARY", "path", "beside the plugin", "Where `libharp-dpdk.so` is."),
    HarpVariable(
        "HARP_PAYLOAD_CRC",
        "0 or 1",
        "`1` over UDP, `0` with dpdk",
        "A CRC-32C protects each payload. It is always on with af_xdp, and with dpdk where the "
        "NIC makes no UDP checksums.",
    ),
    HarpVariable(
        "HARP_COMPETE",
        "0 or 1",
        "`1`",
        "1 takes a share where kernel TCP keeps a queue. 0 yields to that queue.",
    ),
    HarpVariable(
        "HARP_PROFILE",
        "path, or none",
        "`/etc/harp/profile.conf`",
        "File with any of these variables for all processes of a machine. "
        "It cannot be set in a profile.",
    ),
    HarpVariable("HARP_STAT", "0 or 1", "`1`", "1 publishes counters in a file."),
    HarpVariable("HARP_STAT_DIR", "absolute path", "`/dev/shm`", "Folder of that file."),
    HarpVariable(
        "HARP_FAULT",
        "list of faults",
        "",
        "For tests: damages what is sent, such as `loss=0.01,reorder=0.1:1ms,corrupt=0.01`. "
        "A wrong value lists all faults.",
    ),
)
