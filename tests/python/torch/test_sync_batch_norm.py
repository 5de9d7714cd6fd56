"""SyncBatchNorm on three ranks: torch's BatchNorm on the joined batch, also where it is uneven."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from replicas import check_identical, checks_of, each_on
from torch import nn
from two_by_two import TWO_BY_TWO

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

CHANNELS = 5


def layers(plain: type[Any], dtype: torch.dtype, **options: Any) -> tuple[Any, Any]:
    """Returns SyncBatchNorm and `plain` with equal parameters that are not trivial."""
    pair = hvd.SyncBatchNorm(CHANNELS, **options), plain(CHANNELS, **options)
    with torch.no_grad():
        for layer in pair:
            layer.to(dtype)
            if layer.affine:
                layer.weight.copy_(torch.linspace(0.5, 2.0, CHANNELS))
                layer.bias.copy_(torch.linspace(-1.0, 1.0, CHANNELS))
    return pair


def joined_input(rows: list[int], tail: tuple[int, ...], dtype: torch.dtype, seed: int) -> Any:
    """Returns inputs of all ranks; their means differ much between ranks and channels."""
    generator = torch.Generator().manual_seed(seed)
    parts = [
        torch.randn(n, CHANNELS, *tail, generator=generator, dtype=torch.float64) + 10 * rank
        for rank, n in enumerate(rows)
    ]
    scale = torch.arange(1.0, CHANNELS + 1).view(1, -1, *[1] * len(tail))
    return (torch.cat(parts) * scale).to(dtype)


def compare(
    plain: type[Any],
    rows: list[int],
    tail: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-10,
    **options: Any,
) -> None:
    """Runs forward, backward and evaluation on both layers and compares everything."""
    ours, reference = layers(plain, dtype, **options)
    begin = sum(rows[: hvd.rank()])
    mine = slice(begin, begin + rows[hvd.rank()])

    def close(actual: Any, expected: Any) -> None:
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

    for step in range(2):
        whole = joined_input(rows, tail, dtype, seed=step).requires_grad_()
        part = whole.detach()[mine].clone().requires_grad_()
        weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
        expected, actual = reference(whole), ours(part)
        assert actual.dtype == dtype
        close(actual, expected[mine])
        for layer in (ours, reference):
            layer.zero_grad()
        (actual * weights[mine]).sum().backward()
        (expected * weights).sum().backward()
        close(part.grad, whole.grad[mine])
        if ours.affine:
            for p, q in zip(ours.parameters(), reference.parameters(), strict=True):
                close(hvd.allreduce(p.grad, op=hvd.Sum), q.grad)
    for actual, expected in zip(ours.buffers(), reference.buffers(), strict=True):
        assert actual.dtype == expected.dtype
        close(actual, expected)
    check_identical(ours)

    ours.eval()
    reference.eval()
    before = hvd.stats()["operations"]
    part = joined_input(rows, tail, dtype, seed=2)[mine]
    if len(part):
        close(ours(part), reference(part))
    assert hvd.stats()["operations"] == before


def every_dimension_matches_the_joined_batch() -> None:
    compare(nn.BatchNorm1d, [4, 4, 4], ())
    compare(nn.BatchNorm1d, [4, 4, 4], (7,))
    compare(nn.BatchNorm2d, [2, 2, 2], (3, 4))
    compare(nn.BatchNorm3d, [2, 2, 2], (2, 3, 2))


def ranks_may_have_batches_of_different_and_no_size() -> None:
    compare(nn.BatchNorm2d, [1, 5, 2], (3, 3))
    compare(nn.BatchNorm2d, [3, 0, 2], (3, 3))
    compare(nn.BatchNorm1d, [1, 1, 0], ())


def options_mean_what_they_mean_in_torch() -> None:
    compare(nn.BatchNorm2d, [2, 1, 3], (2, 2), affine=False)
    compare(nn.BatchNorm2d, [2, 1, 3], (2, 2), track_running_stats=False)
    compare(nn.BatchNorm2d, [2, 1, 3], (2, 2), momentum=None)
    compare(nn.BatchNorm2d, [2, 1, 3], (2, 2), momentum=0.7, eps=0.5)


def single_precision_is_as_exact_as_torch() -> None:
    compare(nn.BatchNorm2d, [2, 1, 3], (4, 4), torch.float32, tolerance=1e-4)


def half_precision_goes_through_with_wide_parameters() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        layer = hvd.SyncBatchNorm(CHANNELS)
        whole = joined_input([2, 2, 2], (4,), torch.float64, seed=1)
        part = whole[2 * hvd.rank() :][:2].to(dtype).requires_grad_()
        output = layer(part)
        output.float().square().sum().backward()
        assert part.grad is not None
        assert output.dtype == part.grad.dtype == dtype
        expected = nn.BatchNorm1d(CHANNELS).double()(whole)[2 * hvd.rank() :][:2]
        torch.testing.assert_close(output.double(), expected, rtol=0.05, atol=0.05)
        assert layer.running_mean is not None
        assert layer.running_mean.dtype == torch.float32


def large_means_do_not_cancel() -> None:
    layer = hvd.SyncBatchNorm(CHANNELS).double()
    whole = joined_input([3, 3, 3], (), torch.float64, seed=2) + 1e8
    output = layer(whole[3 * hvd.rank() :][:3])
    expected = nn.BatchNorm1d(CHANNELS).double()(whole)[3 * hvd.rank() :][:3]
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)


def one_value_in_all_is_an_error_on_all_ranks() -> None:
    rows = 1 if hvd.rank() == 0 else 0
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        hvd.SyncBatchNorm(CHANNELS)(torch.zeros(rows, CHANNELS))
    with pytest.raises(ValueError, match="at least 2D"):
        hvd.SyncBatchNorm(CHANNELS)(torch.zeros(CHANNELS))


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    ).double()


def a_network_trains_as_on_the_joined_batch() -> None:
    model, reference = make_network(), make_network()
    model[1] = hvd.SyncBatchNorm(4).double()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(3):
        images = torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(step)).double()
        optimizer.zero_grad()
        model(images[2 * hvd.rank() :][:2]).square().mean().backward()
        optimizer.step()
        alone.zero_grad()
        reference(images).square().mean().backward()
        alone.step()
    check_identical(model)
    for p, q in zip(model.state_dict().values(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-9)


test_sync_batch_norm = each_on(3, checks_of(__name__))


def normalize_two_steps() -> list[list[float]]:
    """Returns the gradients of this rank's inputs, and how many tensors were compressed."""
    hvd.init()
    layer = hvd.SyncBatchNorm(CHANNELS).double()
    gradients = []
    for step in range(2):
        whole = joined_input([2] * hvd.size(), (3,), torch.float64, seed=step)
        part = whole[2 * hvd.rank() :][:2].clone().requires_grad_()
        layer(part).pow(3).sum().backward()
        assert part.grad is not None
        gradients.append(part.grad)
    named = hvd.allreduce(torch.stack(gradients), name="shows.that.names.are.compressed")
    assert named.shape[0] == 2
    compressed = float(hvd.stats()["compressed_tensors"])
    return [gradient.flatten().tolist() for gradient in gradients] + [[compressed]]


def test_statistics_are_never_compressed() -> None:
    dense, topk = (
        spawn_ranks(
            normalize_two_steps,
            4,
            env={**TWO_BY_TWO, "LIGHT_TOPK_ALLREDUCE": value, "LIGHT_TOPK_RATIO": "0.1"},
        )
        for value in ("0", "1")
    )
    for plain, beside_compression in zip(dense, topk, strict=True):
        assert plain[:-1] == beside_compression[:-1]  # To the bit.
        assert (plain[-1], beside_compression[-1]) == ([0.0], [1.0])


@pytest.mark.usefixtures("world")
def test_one_rank_alone_is_the_local_layer() -> None:
    ours, reference = layers(nn.BatchNorm2d, torch.float32)
    images = torch.randn(3, CHANNELS, 4, 4)
    assert torch.equal(ours(images), reference(images))
    assert torch.equal(ours.running_var, reference.running_var)
