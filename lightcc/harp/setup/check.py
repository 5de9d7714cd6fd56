"""Whether the machine is as its HARP profile says, and as harp-setup left it. Changes nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from lightcc.harp.setup.datapaths import DATAPATHS, is_for_dpdk, reasons_against
from lightcc.harp.setup.machine import PCI, driver_of
from lightcc.harp.setup.plan import bind_line, dpdk_library, huge_bytes
from lightcc.harp.setup.state import boot_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightcc.harp.setup.machine import Machine
    from lightcc.harp.setup.state import State
    from lightcc.harp.setup.system import System

_MIN_HUGE_BYTES = 256 << 20  # With less, HARP's DPDK does without, and then drives no NIC.


class Finding(NamedTuple):
    """One line of the report."""

    is_good: bool
    text: str


def check(system: System, machine: Machine, profile: str, state: State | None) -> list[Finding]:
    """Returns what is as it should be, and what is not.

    The plugin is the judge of a profile; here only what harp-setup itself has written is looked at.
    """
    text = system.text(profile)
    if text is None:
        return [Finding(False, f"{profile} is not there: run harp-setup")]
    variables = dict(re.findall(r"^[ \t]*(HARP_[A-Z0-9_]+)=(.*?)\s*$", text, re.MULTILINE))
    found = [Finding(True, f"{profile} has {len(variables)} variable(s)")]
    datapath = variables.get("HARP_DATAPATH") or "auto"
    datapath = "udp" if datapath == "auto" else datapath
    if datapath not in DATAPATHS:
        allowed = ", ".join(("auto", *DATAPATHS))
        return [*found, Finding(False, f"HARP_DATAPATH={datapath}: expected one of {allowed}")]
    if datapath == "dpdk":
        found += _check_dpdk(system, variables)
    else:
        found += _check_interfaces(system, machine, variables, datapath)
    return [*found, *_check_state(system, state)]


def _check_interfaces(
    system: System, machine: Machine, variables: dict[str, str], datapath: str
) -> Iterator[Finding]:
    wanted = variables.get("HARP_IFNAME", "")
    if not wanted.startswith("="):
        yield Finding(True, f"HARP_IFNAME={wanted} names no interface, so none was looked at")
        return
    engines = variables.get("HARP_ENGINES", "1")
    nics = {nic.name: nic for nic in machine.nics}
    for name in wanted[1:].split(","):
        if name not in nics:
            yield Finding(False, f"'{name}': there is no such interface")
            continue
        count = int(engines) if engines.isdecimal() else 1
        reasons = reasons_against(system, machine, nics[name], datapath, count)
        bad = f"{name} cannot have {datapath}: {'; '.join(reasons)}"
        good = f"{name} has {nics[name].address}, datapath {datapath}"
        yield Finding(not reasons, bad if reasons else good)


def _check_dpdk(system: System, variables: dict[str, str]) -> Iterator[Finding]:
    library = dpdk_library(variables)
    there = library.exists()
    yield Finding(there, f"{library} is {'' if there else 'not '}there")
    for device in filter(None, variables.get("HARP_DPDK", "").split(";")):
        pci = device.partition("@")[0]
        if not system.path(f"{PCI}/{pci}").exists():
            yield Finding(False, f"{pci}: there is no such PCI device")
            continue
        driver = driver_of(system, pci)
        text = f"{device} belongs to {driver or 'no driver'}"
        is_good = is_for_dpdk(driver)
        yield Finding(is_good, text if is_good else f"{text}: {bind_line(pci)}")
    bytes_ = huge_bytes(system)
    text = f"{bytes_ / 2**30:.1f} GiB of huge pages"
    needed = f": HARP needs {_MIN_HUGE_BYTES >> 20} MiB free"
    is_enough = bytes_ >= _MIN_HUGE_BYTES
    yield Finding(is_enough, text if is_enough else text + needed)


def _check_state(system: System, state: State | None) -> list[Finding]:
    if state is None:
        return [Finding(True, "harp-setup has changed nothing else here")]
    if not state.is_finished:
        return [Finding(False, "a run of harp-setup did not finish: harp-setup --undo")]
    differences = [text for change in state.changes if (text := change.difference(system))]
    if differences and state.boot != boot_id(system):
        differences.append("the machine was started since: run harp-setup again")
    if differences:
        return [Finding(False, text) for text in differences]
    return [Finding(True, f"all {len(state.changes)} change(s) of harp-setup are in place")]
