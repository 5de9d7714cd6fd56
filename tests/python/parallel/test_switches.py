"""Levels of collectives follow the switches above hosts, which the order of additions shows."""

from __future__ import annotations

import re

import numpy as np
import pytest

import lightcc as hvd
from lightcc.testing import RankFailedError, spawn_ranks

pytestmark = pytest.mark.multiproc

#: What ranks bring. In float32 the first and the third are lost with a small one between them.
VALUES = (1e8, 1.0, -1e8, 1.0)
#: The sums of neighbours, and of the first with the third.
NEIGHBOURS, BY_RACK = 0.0, 2.0
LARGE = 300_000  # In bytes, more than what narrow levels take.
VARIABLE = "LIGHT_TOPOLOGY_ADDR"
PATTERN = {"SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}


def sums() -> list[float]:
    hvd.init()
    found = set()
    for name, count in (("small", 4), ("large", LARGE)):
        data = np.full(count, VALUES[hvd.rank()], np.float32)
        found |= set(hvd.allreduce(data, op=hvd.Sum, name=name).tolist())
    hvd.shutdown()
    return sorted(found)


def slurm(rank: int) -> dict[str, str]:
    return {"SLURM_TOPOLOGY_ADDR": f"s0.s{rank % 2}.node{rank}"} | PATTERN


@pytest.mark.parametrize(
    ("environments", "wanted"),
    [
        ([{}] * 4, NEIGHBOURS),
        ([{VARIABLE: f"zone.rack{rank % 2}"} for rank in range(4)], BY_RACK),
        ([{VARIABLE: f"zone{rank % 2}.rack{rank}"} for rank in range(4)], BY_RACK),
        ([{VARIABLE: "zone.rack"} | slurm(rank) for rank in range(4)], NEIGHBOURS),
        ([slurm(rank) for rank in range(4)], BY_RACK),
        ([slurm(rank) if rank == 0 else {} for rank in range(4)], NEIGHBOURS),
    ],
    ids=["untold", "racks", "zones", "one rack", "Slurm", "Slurm tells one"],
)
def test_hosts_of_a_switch_add_up_first(environments: list[dict[str, str]], wanted: float) -> None:
    assert spawn_ranks(sums, 4, env=environments, hosts=range(4)) == [[wanted]] * 4


@pytest.mark.parametrize(
    ("values", "hosts", "message"),
    [
        (
            ["", "a.b", "a.b"],
            [0, 1, 2],
            f'rank 0 has {VARIABLE}="", but rank 1 has {VARIABLE}="a.b"; '
            f"{VARIABLE} must be set on all hosts or on none",
        ),
        (
            ["a", "a", "b"],
            [0, 1, 1],
            f'rank 1 has {VARIABLE}="a", but rank 2 has {VARIABLE}="b"; '
            f"{VARIABLE} must be set to one value on a host, which they share",
        ),
    ],
    ids=["some", "one host"],
)
def test_what_is_told_must_fit_together(values: list[str], hosts: list[int], message: str) -> None:
    environments = [{VARIABLE: value} for value in values]
    with pytest.raises(RankFailedError, match=re.escape(message)):
        spawn_ranks(sums, 3, env=environments, hosts=hosts)
