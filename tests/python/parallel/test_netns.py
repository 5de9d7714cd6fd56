"""Ranks on two hosts that are network namespaces: addresses, interfaces, and a cut cable."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import Seen, check_survivors, reduce_until_error
from iproute import ip
from namespaces import Cables, in_namespace, two_hosts

import lightcc as hvd
from lightcc.testing import RankProcesses, spawn_ranks

pytestmark = [pytest.mark.multiproc, pytest.mark.netns]
PEER_TIMEOUT_S = 4.0


def reduce_and_stand() -> tuple[int, int, int, int, bool]:
    """Reduces between the hosts, and returns where this rank stands."""
    hvd.init()
    n, x = hvd.size(), np.arange(1_500_001, dtype=np.float64) % 11
    total = hvd.allreduce(x + hvd.rank(), op=hvd.Sum)
    np.testing.assert_array_equal(total, n * x + n * (n - 1) / 2)
    gathered = hvd.allgather(np.full((1000 + hvd.rank(), 3), hvd.rank(), np.int16))
    np.testing.assert_array_equal(
        gathered[:, 0], np.repeat(np.arange(n), [1000 + r for r in range(n)])
    )
    hvd.barrier()
    assert hvd.stats()["network_bytes_sent"] > 0
    standing = hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
    return (*standing, hvd.is_homogeneous())


def run(cables: Cables, program: Any, ranks: int, env: list[dict[str, str]] | None = None) -> Any:
    variables = cables.environment(ranks, env or [{}] * ranks)
    return spawn_ranks(in_namespace, ranks, program, env=variables, timeout_s=90)


@pytest.mark.parametrize("env", [{}, {"LIGHT_NET": "harp"}], ids=["tcp", "harp"])
def test_hosts_are_found_and_results_are_right(env: dict[str, str]) -> None:
    with two_hosts() as cables:
        assert run(cables, reduce_and_stand, 4, [env] * 4) == [
            (0, 2, 0, 2, True),
            (1, 2, 0, 2, True),
            (0, 2, 1, 2, True),
            (1, 2, 1, 2, True),
        ]


def traffic() -> tuple[int, ...]:
    """Returns how many bytes this host sent by eth0 and eth1 while its ranks reduced."""

    def sent() -> dict[str, int]:
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        return {line.split(":")[0].strip(): int(line.split(":")[1].split()[8]) for line in lines}

    hvd.init()
    before = sent()
    hvd.barrier()
    for _ in range(4):
        hvd.allreduce(np.ones(1_000_000, np.float32))
    hvd.barrier()
    after = sent()
    hvd.barrier()
    return tuple(after[name] - before[name] for name in ("eth0", "eth1"))


@pytest.mark.parametrize(("iface", "used"), [("", 0), ("eth1", 1)], ids=["route", "eth1"])
def test_named_interface_carries_the_data(iface: str, used: int) -> None:
    env = [{"LIGHT_IFACE": iface}] * 2
    with two_hosts(cables=2) as cables:
        for counts in run(cables, traffic, 2, env):
            assert counts[used] > 4_000_000, counts
            assert counts[1 - used] < 100_000, counts


@pytest.mark.parametrize(("iface", "used"), [("", 0), ("eth1", 1)], ids=["route", "eth1"])
def test_harp_uses_the_device_of_the_named_interface(iface: str, used: int) -> None:
    with two_hosts(cables=2) as cables:
        for counts in run(cables, traffic, 2, [{"LIGHT_IFACE": iface, "LIGHT_NET": "harp"}] * 2):
            assert counts[used] > 4_000_000, counts
            assert counts[1 - used] < 100_000, counts


def test_a_plugin_that_looks_elsewhere_is_told_with_its_devices() -> None:
    env = [{"LIGHT_NET": "harp", "HARP_IFNAME": "=eth1"}] * 2
    with two_hosts(cables=2) as cables:
        for kind, text in run(cables, init_error, 2, env):
            assert kind == "ValueError", text
            assert "HARP has no device for interface 'eth0' (10.77.0." in text
            assert "it has: eth1." in text


def test_local_ranks_take_turns_at_the_named_interfaces() -> None:
    with two_hosts(cables=2) as cables:
        for counts in run(cables, traffic, 4, [{"LIGHT_IFACE": "eth0,eth1"}] * 4):
            assert min(counts) > 1_000_000, counts


def traffic_under_torchrun(port: int) -> tuple[int, ...]:
    """Like `traffic()`, where only torchrun's variables tell this rank who it is."""
    launchers = ("LIGHT_", "HOROVOD_")
    given = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(launchers)}
    os.environ |= {
        "RANK": given["LIGHT_RANK"],
        "WORLD_SIZE": given["LIGHT_SIZE"],
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": str(port),
    }
    return traffic()


def test_of_three_interfaces_ranks_find_the_one_that_joins_them() -> None:
    with two_hosts() as cables:
        for host, name in enumerate(cables.names, 1):
            # A bridge of containers, which looks the same on every host, and a network of its own.
            for nic, address in (("docker0", "172.17.0.1/16"), ("eth1", f"10.99.{host}.1/24")):
                ip("-n", name, "link", "add", nic, "type", "veth", "peer", "name", f"{nic}-peer")
                ip("-n", name, "address", "add", address, "dev", nic)
                for end in (nic, f"{nic}-peer"):
                    ip("-n", name, "link", "set", end, "up")
        variables = cables.environment(2, [{}] * 2)
        for counts in spawn_ranks(
            in_namespace, 2, traffic_under_torchrun, 29400, env=variables, timeout_s=90
        ):
            assert counts[0] > 4_000_000, counts
            assert counts[1] < 100_000, counts


def init_error() -> tuple[str, str]:
    try:
        hvd.init()
    except (ValueError, hvd.HorovodInternalError) as error:
        return type(error).__name__, str(error)
    return "joined", ""


def test_unknown_interface_is_an_error_that_lists_the_candidates() -> None:
    env = [{"LIGHT_IFACE": "eth7", "HOROVOD_START_TIMEOUT": "5"}] * 2
    with two_hosts(cables=2) as cables:
        for kind, text in run(cables, init_error, 2, env):
            assert kind == "ValueError", text
            for word in ("eth7", "eth0", "eth1", "10.77.1."):
                assert word in text


def check_cut(results: list[Any], ranks: int, cut: float) -> None:
    half = ranks // 2
    for side, far in ((results[:half], range(half, ranks)), (results[half:], range(half))):
        for result in side:
            assert result.ok, result.describe()
            seen: Seen = result.value
            # Whoever is first to know on a host names a rank of the other one.
            assert seen.rank is not None
            assert seen.rank in far, seen
            assert seen.kind in {"CollectiveTimeoutError", "PeerFailedError"}, seen
            check_survivors([result], seen.kind, seen.rank, cut, 2.5 * PEER_TIMEOUT_S)


@pytest.mark.parametrize(("ranks", "elements"), [(2, 1000), (4, 2_000_000)])
def test_cut_cable_is_a_timeout_on_both_sides(ranks: int, elements: int) -> None:
    with two_hosts() as cables:
        variables = cables.environment(ranks, [{"LIGHT_PEER_TIMEOUT": str(PEER_TIMEOUT_S)}] * ranks)
        with RankProcesses(
            in_namespace, ranks, reduce_until_error, elements, env=variables
        ) as processes:
            processes.wait_mark("running")
            cut = time.monotonic()
            cables.cut(1)
            results = processes.wait(60)
    check_cut(results, ranks, cut)
