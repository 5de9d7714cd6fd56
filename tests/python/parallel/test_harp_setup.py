"""harp-setup on hosts that are network namespaces, and ranks that run by the profile it wrote."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from iproute import ip
from namespaces import Cables, in_namespace, two_hosts
from processes import run_to_end

import lightcc as hvd
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, pytest.mark.netns]

ONE_QUEUE = """
from lightcc.harp.setup.system import System
system = System()
system.set_channels("eth7", system.channels("eth7").with_count(1))
"""


class Host:
    """A namespace, with the files of harp-setup in a folder of its own."""

    def __init__(self, namespace: str, folder: Path) -> None:
        self.namespace = namespace
        self.profile = folder / namespace / "etc/profile.conf"
        self.state = folder / namespace / "lib/setup.json"

    def setup(self, *flags: str) -> subprocess.CompletedProcess[str]:
        files = ("--profile", str(self.profile), "--state", str(self.state))
        module = (sys.executable, "-m", "lightcc.harp.setup")
        return self.run(*module, *files, "--yes", *flags)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        words = ["ip", "netns", "exec", self.namespace, *command]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)

    def must(self, *flags: str) -> str:
        done = self.setup(*flags)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def reduce_and_look() -> tuple[bool, bool] | str:
    """Returns whether results were right, and whether eth1 had an XDP program; or init's error."""
    try:
        hvd.init()
    except (ValueError, hvd.HorovodInternalError) as error:
        return str(error)
    x = np.arange(300_000, dtype=np.float64)
    is_right = bool((hvd.allreduce(x, op=hvd.Sum) == hvd.size() * x).all())
    link = run_to_end(["ip", "link", "show", "eth1"], check=True)
    hvd.barrier()
    return is_right, "prog/xdp" in link.stdout


def run_by_profile(cables: Cables, hosts: list[Host], iface: str) -> Any:
    variables = [
        {"LIGHT_NET": "harp", "LIGHT_IFACE": iface, "HARP_PROFILE": str(host.profile)}
        for host in hosts
    ]
    env = cables.environment(2, variables)
    return spawn_ranks(in_namespace, 2, reduce_and_look, env=env, timeout_s=90)


@pytest.mark.parametrize("datapath", ["udp", "af_xdp"])
def test_ranks_run_by_the_profile_that_was_written(tmp_path: Path, datapath: str) -> None:
    with two_hosts(cables=2) as cables:
        hosts = [Host(name, tmp_path) for name in cables.names]
        for host in hosts:
            flags = ("--datapath", datapath, "--interfaces", "eth1")
            done = host.setup(*flags)
            if "processes here may not have" in done.stderr:
                pytest.skip("no privilege for BPF programs here")
            assert done.stdout.endswith("\nSet up HARP successfully\n"), done.stderr
            assert f"datapath {datapath}\n" in host.must("--check")
        found = run_by_profile(cables, hosts, "eth1")
        if "needs CAP_BPF" in str(found):
            pytest.skip("no privilege for BPF programs here")
        assert found == [(True, datapath == "af_xdp")] * 2
        # By HARP_IFNAME of the profile there is no other device.
        for error in run_by_profile(cables, hosts, "eth0"):
            assert "HARP has no device for interface 'eth0'" in error
        for host in hosts:
            host.must("--undo")
            assert not host.profile.parent.exists()
            assert not host.state.exists()


def test_a_profile_with_a_wrong_line_keeps_every_rank_from_starting(tmp_path: Path) -> None:
    with two_hosts(cables=2) as cables:
        hosts = [Host(name, tmp_path) for name in cables.names]
        for host in hosts:
            host.must("--interfaces", "eth1")
        with hosts[1].profile.open("a") as profile:
            profile.write("HARP_PATHS=0\n")
        lines = hosts[1].profile.read_text().count("\n")
        text = f"{hosts[1].profile}:{lines}: HARP_PATHS=0: expected a number from 1 to 64"
        for error in run_by_profile(cables, hosts, "eth1"):
            assert text in error


def test_queues_of_a_real_interface_are_set_and_given_back(tmp_path: Path) -> None:
    with two_hosts() as cables:
        host = Host(cables.names[0], tmp_path)
        many = ("numrxqueues", "2", "numtxqueues", "2")
        ip("-n", host.namespace, "link", "add", "eth7", *many, "type", "veth", "peer", "name", "p7")
        for command in (
            ("address", "add", "10.7.7.1/24", "dev", "eth7"),
            ("link", "set", "eth7", "up"),
        ):
            ip("-n", host.namespace, *command)

        def queues() -> int:
            listing = host.run("ls", "/sys/class/net/eth7/queues").stdout.split()
            return sum(name.startswith("rx-") for name in listing)

        host.run(sys.executable, "-c", ONE_QUEUE)
        assert queues() == 1
        flags = ("--datapath", "af_xdp", "--interfaces", "eth7")
        done = host.setup(*flags, "--engines", "2")
        if "processes here may not have" in done.stderr:
            pytest.skip("no privilege for BPF programs here")
        assert "  give eth7 2 queue(s)\n" in done.stdout, done.stderr
        assert queues() == 2
        host.must("--check")
        host.must("--undo")
        assert queues() == 1
        refused = host.setup(*flags, "--engines", "3")
        assert refused.returncode == 1
        assert "eth7: it has at most 2 queue(s), not 3" in refused.stderr
