"""What harp-setup finds on machines of many kinds, and what it would do about them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import HUGE, FakeMachine, gpu_server

from lightcc.harp.setup.cli import main
from lightcc.harp.setup.machine import Gpu, Locality, look
from lightcc.harp.setup.pairing import pair
from lightcc.harp.setup.plan import Plan, Request, make_plan
from lightcc.harp.setup.system import SetupError

LIBRARY = {"HARP_DPDK_LIBRARY": __file__}  # Any file will do.


def plan_of(machine: FakeMachine, **flags: object) -> Plan:
    flags = {"settings": LIBRARY} | flags if flags.get("datapath") == "dpdk" else flags
    return make_plan(machine, look(machine), Request(**flags))  # type: ignore[arg-type]


def variables(plan: Plan) -> dict[str, str]:
    lines = [line for line in plan.profile.splitlines() if not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def refusal(machine: FakeMachine, **flags: object) -> str:
    with pytest.raises(SetupError) as caught:
        plan_of(machine, **flags)
    return str(caught.value)


def small_vm(root: Path, **nic: object) -> FakeMachine:
    """A virtual machine with one virtio NIC and no GPU."""
    machine = FakeMachine(root)
    flags = {"address": "192.0.2.5/24", "gateway": "192.0.2.1", "is_default": True} | nic
    machine.nic("eth0", "pci0000:00/0000:00:03.0", **flags)  # type: ignore[arg-type]
    return machine


def test_a_gpu_server_is_found_with_everything(tmp_path: Path) -> None:
    seen = look(gpu_server(tmp_path))
    assert len(seen.gpus) == 8
    assert len(seen.nics) == 9
    assert seen.kernel == (6, 8)
    first = seen.nics[0]
    assert (first.name, first.pci, first.device) == ("eth0", "0000:00:05.0", "1af4:1000")
    assert (first.driver, first.queues, first.mtu_bytes) == ("virtio-pci", 4, 1500)
    assert (first.address, first.gateway, first.has_default_route) == (
        "10.0.0.10/24",
        "10.0.0.1",
        True,
    )
    assert first.locality.node == 0
    assert not seen.nics[1].has_default_route
    assert "default route" in str(first)


def test_each_gpu_gets_the_nic_of_its_switch(tmp_path: Path) -> None:
    plan = plan_of(gpu_server(tmp_path))
    assert len(plan.pairs) == 8
    assert len({nic.name for _, nic in plan.pairs}) == 8
    for gpu, nic in plan.pairs:
        assert gpu.locality.path[:3] == nic.locality.path[:3]
        assert f"# GPU {gpu.pci} (10de:1db5): {nic.name}\n" in plan.profile
    assert "eth0 is left to the host: its default route" in plan.notes
    assert variables(plan) == {
        "HARP_DATAPATH": "udp",
        "HARP_IFNAME": "=" + ",".join(nic.name for nic in plan.nics),
        "HARP_ENGINES": "1",
    }
    assert {nic.name for nic in plan.nics} == {f"eth{i}" for i in range(1, 9)}


def test_the_same_node_counts_where_no_bridge_is_shared(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.nic("a", "pci0000:10/0000:10:00.0", node=1)
    machine.nic("b", "pci0000:20/0000:20:00.0", node=0)
    seen = look(machine)
    gpus = [Gpu("", "", Locality(("pci0000:30", "0000:30:00.0"), node)) for node in (0, 1)]
    assert [nic.name for _, nic in pair(gpus, seen.nics)] == ["b", "a"]


def test_nics_go_around_where_there_are_fewer(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.nic("a", "pci0000:00/0000:00:05.0", address="10.0.1.1/24")
    machine.nic("b", "pci0000:00/0000:00:06.0", address="10.0.2.1/24")
    for slot in range(8, 13):
        machine.gpu(f"pci0000:00/0000:00:{slot:02x}.0")
    plan = plan_of(machine)
    assert [nic.name for _, nic in plan.pairs] == ["a", "b", "a", "b", "a"]
    assert "5 GPUs share 2 NIC(s): one for each is better" in plan.notes
    assert pair([], plan.nics) == []
    assert pair([gpu for gpu, _ in plan.pairs], []) == []


def test_nics_beyond_the_gpus_are_left_out_but_where_they_are_named(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    for i in range(3):
        machine.nic(f"eth{i}", f"pci0000:00/0000:00:0{i}.0", address=f"10.0.{i}.1/24")
    machine.gpu("pci0000:00/0000:00:08.0")
    plan = plan_of(machine)
    assert [nic.name for nic in plan.nics] == ["eth0"]
    assert "eth1 is left out: each GPU has its NIC" in plan.notes
    named = plan_of(machine, interfaces=["eth2", "eth1"])
    assert variables(named)["HARP_IFNAME"] == "=eth1,eth2"


def test_the_only_nic_of_a_small_machine_is_used(tmp_path: Path) -> None:
    plan = plan_of(small_vm(tmp_path))
    assert variables(plan)["HARP_IFNAME"] == "=eth0"
    assert plan.pairs == ()
    assert "# No GPU.\n" in plan.profile
    assert [str(change) for change in plan.changes] == [
        "set /proc/sys/net/core/rmem_max to 8388608",
        "set /proc/sys/net/core/wmem_max to 8388608",
        "write /etc/harp/profile.conf",
    ]


def test_limits_that_suffice_or_cannot_be_set_are_left_alone(tmp_path: Path) -> None:
    machine = small_vm(tmp_path)
    machine.file("/proc/sys/net/core/rmem_max", str(16 << 20))
    machine.path("/proc/sys/net/core/wmem_max").chmod(0o444)
    assert len(plan_of(machine).changes) == 1


def test_in_a_container_the_virtual_interface_is_used(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.nic("eth0", "virtual", address="10.1.0.2/16", is_default=True, gateway="10.1.0.1")
    machine.nic("docker0", "virtual", address="172.17.0.1/16")
    plan = plan_of(machine)
    assert variables(plan)["HARP_IFNAME"] == "=eth0"


def test_a_machine_without_a_usable_nic_is_told_why(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert refusal(machine) == "no NIC can have the datapath udp\n  there is none"
    machine.nic("eth0", "pci0000:00/0000:00:03.0")
    assert "eth0: it is down or has no address" in refusal(machine)
    text = refusal(machine, interfaces=["eth0", "eth7"])
    assert text == "no interface eth7: there are eth0"
    machine.nic("eth1", "pci0000:00/0000:00:04.0", address="10.0.0.1/8")
    text = refusal(machine, interfaces=["eth0", "eth1"])
    assert text.startswith("not every NIC of --interfaces can have the datapath udp\n  eth0: ")


def test_nics_of_one_subnet_are_remarked(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    for i in (1, 2):
        machine.nic(f"eth{i}", f"pci0000:00/0000:00:0{i}.0", address=f"10.0.0.{i}/24")
    assert any(
        note.startswith("eth1, eth2 are all in 10.0.0.0/24") for note in plan_of(machine).notes
    )


# -- AF_XDP ---------------------------------------------------------------------------------------


def test_af_xdp_gets_a_queue_for_each_engine(tmp_path: Path) -> None:
    machine = small_vm(tmp_path, queues=2)
    assert not any("queue" in str(change) for change in plan_of(machine, datapath="af_xdp").changes)
    plan = plan_of(machine, datapath="af_xdp", engines=4)
    assert "give eth0 4 queue(s)" in map(str, plan.changes)
    assert variables(plan)["HARP_ENGINES"] == "4"
    assert "it has at most 8 queue(s), not 9" in refusal(machine, datapath="af_xdp", engines=9)


def test_af_xdp_is_refused_with_reasons(tmp_path: Path) -> None:
    machine = small_vm(tmp_path)
    machine.file("/proc/sys/kernel/osrelease", "5.4.0-1")
    machine.file("/proc/self/status", "CapBnd:\t00000000a80425fb")  # A container's usual ones.
    machine.link("/sys/class/net/eth0/upper_bond0", "/sys/class/net/lo")
    text = refusal(machine, datapath="af_xdp")
    assert "the kernel is 5.4, older than 5.10" in text
    assert "processes here may not have CAP_NET_ADMIN, CAP_BPF" in text
    assert "bond0 is on top of it" in text
    machine.nic("ib0", "pci0000:00/0000:00:08.0", address="10.9.0.1/24", kind=32)
    assert "ib0: it is no Ethernet interface" in refusal(machine, datapath="af_xdp")


# -- DPDK -----------------------------------------------------------------------------------------


def test_dpdk_takes_the_secondary_nics_and_huge_pages(tmp_path: Path) -> None:
    plan = plan_of(gpu_server(tmp_path), datapath="dpdk")
    found = variables(plan)
    devices = found["HARP_DPDK"].split(";")
    assert len(devices) == 8
    assert "0000:15:00.0@10.0.8.10/24@10.0.8.1" in devices
    assert "HARP_IFNAME" not in found
    assert "HARP_DPDK_MTU" not in found
    # 5 for each of 8 GPUs and 10 GiB.
    assert [str(change) for change in plan.changes] == [
        f"set {HUGE} to 25600",
        "write /etc/harp/profile.conf",
    ]
    line = "hand it to DPDK before jobs start: dpdk-devbind.py --bind=vfio-pci 0000:15:00.0"
    assert line in plan.notes
    assert any("hugepagesz=1G hugepages=50" in note for note in plan.notes)
    assert any(
        note.startswith("eth0 is left out: ") and "default route" in note for note in plan.notes
    )


def test_huge_pages_that_are_there_count(tmp_path: Path) -> None:
    machine = small_vm(tmp_path, is_default=False)
    machine.file(HUGE, "100")
    machine.file(HUGE.replace("2048", "1048576"), "4")
    changes = plan_of(machine, datapath="dpdk", huge_pages_gib=5).changes
    assert str(changes[0]) == f"set {HUGE} to 512"
    plan = plan_of(machine, datapath="dpdk", huge_pages_gib=4)
    assert not any("hugepages" in str(change) for change in plan.changes)
    machine.path(HUGE).unlink()
    assert "no huge pages of 2 MiB" in refusal(machine, datapath="dpdk", huge_pages_gib=5)


def test_dpdk_is_refused_with_reasons(tmp_path: Path) -> None:
    machine = small_vm(tmp_path)
    assert "the default route goes over it" in refusal(machine, datapath="dpdk")
    machine.nic("br0", "virtual", address="10.8.0.1/24")
    assert "br0: it is no PCI device" in refusal(machine, datapath="dpdk", interfaces=["br0"])
    text = refusal(machine, datapath="dpdk", settings={"HARP_DPDK_LIBRARY": "/gone.so"})
    assert "library is not there: /gone.so" in text


def test_nics_that_dpdk_shares_with_the_kernel_stay_where_they_are(tmp_path: Path) -> None:
    machine = small_vm(tmp_path, is_default=False, gateway="", driver="mlx5_core", mtu=9000)
    plan = plan_of(machine, datapath="dpdk", huge_pages_gib=0)
    assert [str(change) for change in plan.changes] == ["write /etc/harp/profile.conf"]
    assert variables(plan)["HARP_DPDK"] == "0000:00:03.0@192.0.2.5/24"
    assert variables(plan)["HARP_DPDK_MTU"] == "9000"
    assert any("eth0 has no gateway: HARP reaches 192.0.2.0/24" in note for note in plan.notes)
    assert not any("dpdk-devbind" in note for note in plan.notes)


# -- This machine ---------------------------------------------------------------------------------


def test_the_machine_of_the_test_can_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--dry-run", "--state", "/nowhere/setup.json", "--profile", "/nowhere/p.conf"])
    out, err = capsys.readouterr()
    assert "GPU(s), " in out
    if code == 0:
        assert out.endswith("Nothing was changed (--dry-run).\n")
        assert "HARP_DATAPATH=udp" in out
    else:  # A sandbox without a network.
        assert err.startswith("harp-setup: no NIC can have the datapath udp\n")
    assert not Path("/nowhere").exists()
