"""Whether the machine is as its HARP profile says, and as harp-setup left it. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc.harp.setup.datapaths import DATAPATHS, VFIO, is_shared_driver, reasons_against
from lightcc.harp.setup.machine import PCI, driver_of
from lightcc.harp.setup.plan import huge_bytes
from lightcc.harp.setup.profile import dpdk_devices, parse_profile
from lightcc.harp.setup.request import Request
from lightcc.harp.setup.state import boot_id
from lightcc.harp.setup.system import SetupError

if TYPE_CHECKING:
    from lightcc.harp.setup.machine import Machine
    from lightcc.harp.setup.state import State
    from lightcc.harp.setup.system import System

_MIN_HUGE_BYTES = 256 << 20  # With less, HARP's DPDK does without, and then drives no NIC.


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    is_good: bool
    text: str


def check(
    system: System, machine: Machine, profile: str, state: State | None, dpdk_library: Path
) -> list[Finding]:
    """Returns what is as it should be, and what is not."""
    text = system.text(profile)
    if text is None:
        return [Finding(False, f"{profile} is not there: run harp-setup")]
    try:
        variables = parse_profile(text, profile)
    except SetupError as error:
        return [Finding(False, str(error))]
    found = [Finding(True, f"{profile} has {len(variables)} variable(s)")]
    datapath = variables.get("HARP_DATAPATH") or "auto"
    if datapath == "auto":
        datapath = "udp"
    if datapath not in DATAPATHS:
        allowed = ", ".join(("auto", *DATAPATHS))
        return [*found, Finding(False, f"HARP_DATAPATH={datapath}: expected one of {allowed}")]
    if datapath == "dpdk":
        found += _check_dpdk(system, variables, dpdk_library)
    else:
        found += _check_interfaces(system, machine, variables, datapath)
    return found + _check_state(system, state)


def _check_interfaces(
    system: System, machine: Machine, variables: dict[str, str], datapath: str
) -> list[Finding]:
    wanted = variables.get("HARP_IFNAME", "")
    if not wanted.startswith("="):
        return [Finding(True, f"HARP_IFNAME={wanted} names no interface, so none was looked at")]
    engines = variables.get("HARP_ENGINES", "1")
    request = Request(datapath, engines=int(engines) if engines.isdecimal() else 1)
    nics = {nic.name: nic for nic in machine.nics}
    found = []
    for name in filter(None, wanted[1:].split(",")):
        if name not in nics:
            found.append(Finding(False, f"{name}: there is no such interface"))
        elif reasons := reasons_against(system, machine, nics[name], request):
            found.append(Finding(False, f"{name} cannot have {datapath}: {'; '.join(reasons)}"))
        else:
            found.append(Finding(True, f"{name} has {nics[name].address}, datapath {datapath}"))
    return found or [Finding(False, "HARP_IFNAME==: names no interface")]


def _check_dpdk(system: System, variables: dict[str, str], library: Path) -> list[Finding]:
    library = Path(variables.get("HARP_DPDK_LIBRARY") or library)
    there = library.exists()
    found = [Finding(there, f"{library} is {'' if there else 'not '}there")]
    for device, address in dpdk_devices(variables.get("HARP_DPDK", "")):
        if not system.path(f"{PCI}/{device}").exists():
            found.append(Finding(False, f"{device}: there is no such PCI device"))
            continue
        driver = driver_of(system, f"{PCI}/{device}")
        is_good = driver == VFIO or is_shared_driver(driver)
        text = f"{device}, to be {address}, belongs to {driver or 'no driver'}"
        found.append(Finding(is_good, text if is_good else f"{text}, not to {VFIO}"))
    bytes_ = huge_bytes(system)
    text = f"{bytes_ / 2**30:.1f} GiB of huge pages"
    if bytes_ < _MIN_HUGE_BYTES:
        return [*found, Finding(False, f"{text}: HARP needs {_MIN_HUGE_BYTES >> 20} MiB free")]
    return [*found, Finding(True, text)]


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
