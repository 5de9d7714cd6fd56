"""What `Compression.powersgd()` takes, and what it says of anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lightcc as hvd


def test_arguments_become_what_the_engine_is_asked_for() -> None:
    spec = hvd.Compression.powersgd(4, 20, min_compression_rate=3).spec()
    assert (spec.matrix_rank, spec.warmup_steps, spec.min_compression_rate) == (4, 20, 3.0)
    assert spec.bits == 0
    assert hvd.Compression.powersgd(rank=np.int64(64)).spec().matrix_rank == 64


def test_it_says_what_it_does() -> None:
    assert (
        hvd.Compression.powersgd(4).describe() == "PowerSGD of rank 4, after 10 steps as they are"
    )
    assert hvd.Compression.powersgd(1, 0).describe() == "PowerSGD of rank 1"


@pytest.mark.parametrize("rank", [0, 65, -1])
def test_a_rank_out_of_range_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=rf"rank is {rank}: expected a whole number of 1 to 64"):
        hvd.Compression.powersgd(rank)


@pytest.mark.parametrize("rank", [1.0, 2.5, "4", None, True])
def test_a_rank_that_is_no_whole_number_is_refused(rank: Any) -> None:
    with pytest.raises(TypeError, match=r"rank is .*: expected a whole number of 1 to 64"):
        hvd.Compression.powersgd(rank)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"min_compression_rate is .*: expected a finite number"):
        hvd.Compression.powersgd(1, min_compression_rate=rate)


def test_a_warmup_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="warmup_steps is -1: expected a whole number of 0 to"):
        hvd.Compression.powersgd(1, -1)
