"""fp8 compression beside torch's own float8_e4m3fn."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lightcc.torch as hvd
from lightcc._core import CompressionSpec
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

BLOCK = 128
COUNT = 100 * BLOCK


def scales_of(x: torch.Tensor) -> torch.Tensor:
    """A 448th of the largest element of each block, rounded up to the upper 16 bits."""
    exact = x.view(-1, BLOCK).abs().amax(dim=1) / 448
    keys = (exact.view(torch.int32) + 0xFFFF) & ~0xFFFF
    return keys.view(torch.float32).repeat_interleave(BLOCK)


def what_travels() -> list[float]:
    """One host has numbers and the other zeros, so that the sum is what the first one sent."""
    hvd.init()
    torch.manual_seed(0)
    x = torch.randn(COUNT) * torch.exp(torch.randn(COUNT) * 4)  # Down to subnormal codes.
    x[:BLOCK] = torch.arange(BLOCK) * 3.5 + 3.5  # Many ties: the scale is 1.
    scale = scales_of(x)
    codes = (x * (1 / scale)).to(torch.float8_e4m3fn)
    expected = codes.to(torch.float32) * scale
    assert scale[0] == 1.0
    assert len(codes.view(torch.uint8).unique()) > 200
    mine = x if hvd.rank() == 0 else torch.zeros(COUNT)
    sent = hvd.allreduce(mine, name="x", op=hvd.Sum, compression=hvd.Compression.fp8)
    assert torch.equal(sent, expected)
    rest = hvd.allreduce(
        torch.zeros(COUNT), name="x", op=hvd.Sum, compression=hvd.Compression.topk(1.0)
    )
    assert torch.equal(rest, x - expected)
    result: list[float] = sent.tolist()
    return result


def test_codes_are_those_of_torchs_own_type() -> None:
    results = spawn_ranks(what_travels, 2, env={"LIGHT_TOPK_THRESHOLD": "0"}, hosts=[0, 1])
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, True), "floating-point numbers have 8 bits, not 4"),
        ((2,), "have 8, 4 or 1 bits, not 2"),
    ],
)
def test_a_format_that_there_is_not_is_named(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CompressionSpec.quantized(*arguments)


def test_what_is_asked_of_the_engine_says_which_8_bits() -> None:
    specs = [hvd.Compression.fp8().spec(), hvd.Compression.int8().spec()]
    assert [(spec.bits, spec.floating) for spec in specs] == [(8, True), (8, False)]
