"""The sequencer's rules of fusion, by their variables, on operations of no optimizer."""

from __future__ import annotations

import numpy as np
import pytest

import lightcc as hvd
from lightcc import _world
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

TENSORS = 20
#: As the LightCC's users write it, for whom it only concerns Horovod.
OFF = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "0"}


def buckets_of_a_burst() -> int:
    """Returns how many collectives small all-reduces take that become ready all at once."""
    hvd.init()
    names = [str(i) for i in range(TENSORS)]
    arrays = [np.full(8, hvd.rank(), np.float32) for _ in names]
    before = hvd.stats()["buckets"]
    # One call, so that ranks report all of them in one frame.
    handle = _world.current().allreduce_each(arrays, names, int(hvd.Sum), 1.0, 1.0, 0)
    hvd.synchronize(handle)
    buckets = hvd.stats()["buckets"] - before
    total = hvd.size() * (hvd.size() - 1) / 2
    np.testing.assert_array_equal(arrays, np.full((TENSORS, 8), total))
    hvd.shutdown()
    return int(buckets)


def buckets(strategy: str, **env: str) -> int:
    (count,) = set(
        spawn_ranks(buckets_of_a_burst, 2, env=env | {"LIGHT_FUSION_STRATEGY": strategy})
    )
    return count


def test_none_merges_nothing() -> None:
    assert buckets("none") == TENSORS


@pytest.mark.parametrize("strategy", ["piecewise_fusion", ""])
def test_what_belongs_to_no_plan_is_merged_whatever_horovods_variables_say(strategy: str) -> None:
    assert buckets(strategy, **OFF) == 1


def test_horovods_rule_merges_up_to_its_threshold_and_0_merges_nothing() -> None:
    assert buckets("horovod", **OFF) == TENSORS
    # The C++ tests have other thresholds.
    assert buckets("horovod", HOROVOD_CYCLE_TIME="100") == 1
