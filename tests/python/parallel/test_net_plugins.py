"""LIGHT_NET: collectives between hosts over HARP and over another NCCL net plugin.

Results are compared with TCP's, bit for bit; deaths, silences and wrong settings end as they do
over TCP. The other plugin is the reference one of the C++ tests (kernel TCP), where it was built.
"""

from __future__ import annotations

import hashlib
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import check_death, check_survivors, others, processes, reduce_until_error
from grids import TWO_HOSTS, Grid

import lightcc as hvd
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

REFERENCE = (
    Path(__file__).resolve().parents[3]
    / "build/dev/harp_plugin/tests/reference_plugin/libnccl-net-reftcp.so"
)
needs_reference = pytest.mark.skipif(
    not REFERENCE.exists(), reason=f"{REFERENCE.name} is not built"
)
THREE_APART = Grid(3, [0, 1, 2])
PEER_TIMEOUT_S = 2.0


def digest(value: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()


def every_collective() -> list[str]:
    """Returns the digests of what all kinds of operations gave."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    rng = np.random.default_rng(rank)
    digests = []
    for dtype in (np.float32, np.float16, np.int64):
        for count in (1, 1000, 65_541, 1_500_000)[: 4 if dtype is np.float32 else 3]:
            x = (rng.standard_normal(count) * 100).astype(dtype)
            digests.append(digest(hvd.allreduce(x, op=hvd.Sum)))
    x = rng.standard_normal((700_000,)).astype(np.float32)
    digests.append(digest(hvd.allreduce(x, op=hvd.Adasum, name="adasum")))
    digests += [digest(y) for y in hvd.grouped_allreduce([x[:7], x[7:40_000]], op=hvd.Sum)]
    digests.append(digest(hvd.allgather(x[: 100_000 * (rank + 1)])))
    digests.append(digest(hvd.broadcast(x, root_rank=size - 1)))
    digests.append(digest(hvd.reducescatter(x, op=hvd.Sum)))
    splits = np.full(size, x.size // size, np.int32)
    splits[0] += x.size - int(splits.sum())
    digests.append(digest(hvd.alltoall(x, splits=splits)[0]))
    for step in range(3):
        sparse = hvd.allreduce(
            x * (step + 1), op=hvd.Sum, name="topk", compression=hvd.Compression.topk(ratio=0.01)
        )
        digests.append(digest(sparse))
    if size > 2:  # Others would be a second set of all.
        some = hvd.add_process_set([0, size - 1])
        if rank in (0, size - 1):
            digests.append(digest(hvd.allreduce(x, op=hvd.Sum, process_set=some)))
    hvd.barrier()  # Nobody leaves while others still work.
    hvd.shutdown()
    return digests


SETTINGS = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", "LIGHT_TOPK_THRESHOLD": "0"}


HARP = {"LIGHT_NET": "harp"}
FAULTS = {"HARP_FAULT": "loss=0.01,reorder=0.05:200us,duplicate=0.01"}


def check_bits(grid: Grid, *variants: dict[str, str], **common: str) -> None:
    """Checks that each variant of the environment gives the bits of TCP."""
    settings = {**SETTINGS, **common}
    expected = grid.run(every_collective, env=settings)
    for variant in variants:
        assert grid.run(every_collective, env={**settings, **variant}) == expected, variant


@needs_reference
def test_every_collective_gives_the_bits_of_tcp_over_another_plugin() -> None:
    check_bits(TWO_HOSTS, {"LIGHT_NET": str(REFERENCE)})


def test_every_collective_gives_the_bits_of_tcp_over_one_lane_and_several() -> None:
    check_bits(TWO_HOSTS, HARP, {**HARP, "LIGHT_NUM_STREAMS": "2"})


def test_lost_and_reordered_packets_give_the_same_bits() -> None:
    check_bits(THREE_APART, {**HARP, **FAULTS})


def test_blocks_of_one_host_may_use_a_plugin() -> None:
    check_bits(Grid(4), HARP, LIGHT_2D_ALLREDUCE="1", LIGHT_INTRA_SIZE="2")


# -- Ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "victim"),
    [("harp", 3), pytest.param(str(REFERENCE), 0, marks=needs_reference)],
    ids=["harp", "reftcp"],
)
def test_death_in_the_middle_reaches_every_rank_by_name(net: str, victim: int) -> None:
    check_death(TWO_HOSTS, victim, reduce_until_error, 1_000_000, LIGHT_NET=net)


def test_stopped_rank_is_an_error_that_names_it() -> None:
    victim = 2
    env = {**HARP, "LIGHT_PEER_TIMEOUT": str(PEER_TIMEOUT_S)}
    with processes(TWO_HOSTS, reduce_until_error, 1_000_000, **env) as ranks:
        ranks.wait_mark("running")
        stopped = time.monotonic()
        ranks.stop(victim)
        results = ranks.wait(40, ranks=others(TWO_HOSTS, victim))
    # Whether the engine or the plugin is first to miss it decides the class, not the name.
    for result in results:
        assert result.ok, result.describe()
        assert result.value is not None
        kinds = {"CollectiveTimeoutError", "PeerFailedError"}
        assert result.value.kind in kinds, result.value
        check_survivors([result], result.value.kind, victim, stopped, 5 * PEER_TIMEOUT_S)


def rest(seconds: float) -> float:
    """Returns the CPU seconds that this process used in `seconds` of rest."""
    hvd.init()
    for _ in range(5):
        hvd.allreduce(np.ones(300_000, np.float32))
    hvd.barrier()
    time.sleep(1)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    hvd.barrier()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_idle_job_uses_no_cpu() -> None:
    assert max(TWO_HOSTS.run(rest, 2.0, env=HARP)) < 0.02 * 2.0


# -- Settings -------------------------------------------------------------------------------------


def init_error() -> tuple[str, str]:
    try:
        hvd.init()
        hvd.allreduce(np.ones(3))
    except Exception as error:  # noqa: BLE001 - the test judges it.
        return type(error).__name__, str(error)
    return "joined", ""


@pytest.mark.parametrize(
    ("hosts", "net", "text"),
    [
        (None, "/no/such/libnccl-net-x.so", "does not exist"),
        ([0, 1], "/no/such/libnccl-net-x.so", "does not exist"),
        ([0, 1], __file__, "cannot be loaded"),  # Found out where a plugin is needed only.
    ],
)
def test_a_net_that_cannot_be_used_is_an_error_on_every_rank(
    hosts: list[int] | None, net: str, text: str
) -> None:
    for kind, message in spawn_ranks(init_error, 2, env={"LIGHT_NET": net}, hosts=hosts):
        assert kind == "ValueError", message
        assert "LIGHT_NET" in message
        assert net in message
        assert text in message


@pytest.mark.parametrize(
    ("variable", "common", "other"),
    [("LIGHT_NET", "harp", "tcp"), ("LIGHT_INTRA_SIZE", "2", "4"), ("LIGHT_NUM_STREAMS", "3", "1")],
)
def test_ranks_that_differ_are_all_told_so(variable: str, common: str, other: str) -> None:
    env = [{variable: common} | {"LIGHT_2D_ALLREDUCE": "1"} for _ in range(3)]
    env[1][variable] = other
    for kind, message in spawn_ranks(init_error, 3, env=env, hosts=[0, 1, 2]):
        assert kind == "ValueError", message
        assert f"rank 0 has {variable}={common}, but rank 1 has {variable}={other}" in message


def test_a_plugin_that_one_rank_cannot_start_is_an_error_on_every_rank() -> None:
    env = [{"LIGHT_NET": "harp"} for _ in range(3)]
    env[1]["HARP_IFNAME"] = "=nosuch0"
    results = spawn_ranks(init_error, 3, env=env, hosts=[0, 1, 2])
    for rank, (kind, message) in enumerate(results):
        assert kind == "ValueError", message
        assert "no interface is up and has an address (HARP_IFNAME: '=nosuch0')" in message
        assert (rank == 1) or message.startswith("rank 1: "), message


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("HARP_MODE", "sideways", "HARP_MODE=sideways: expected inline, adaptive or thread"),
        ("LIGHT_TCP_RATE", "1M", "LIGHT_TCP_RATE"),  # There is no TCP.
    ],
)
def test_settings_that_do_not_fit_harp_are_refused(variable: str, value: str, text: str) -> None:
    for kind, message in spawn_ranks(init_error, 2, env={**HARP, variable: value}, hosts=[0, 1]):
        assert kind == "ValueError", message
        assert text in message
