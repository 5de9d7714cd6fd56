"""Training loops as people write them, on two ranks: clipping, closures, workers, compilers.

Wherever one process with the joined batch would do the same, it is asked.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, cast

import pytest
import torch
from replicas import (
    batch,
    check_equal,
    check_identical,
    check_moved,
    checks_of,
    each_on,
    joined_batch,
    make_model,
    mean_loss,
    train_alone,
    train_together,
)
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import lightcc.torch as hvd

pytestmark = pytest.mark.multiproc


def sgd(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def distributed(model: nn.Module, inner: Any = None, **options: Any) -> Any:
    inner = inner or sgd(list(model.parameters()))
    return hvd.DistributedOptimizer(inner, model.named_parameters(), **options)


def gradients_are_clipped_between_synchronize_and_step() -> None:
    model, reference = make_model(), make_model()
    optimizer, alone = distributed(model), sgd(list(reference.parameters()))
    for step in range(3):
        optimizer.zero_grad()
        mean_loss(model, batch(step, hvd.rank())).backward()
        optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        with optimizer.skip_synchronize():
            optimizer.step()

        alone.zero_grad()
        mean_loss(reference, joined_batch(step, range(hvd.size()))).backward()
        expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
        alone.step()
        assert norm > 0.05
        torch.testing.assert_close(norm, expected)
    check_identical(model)
    check_equal(model, reference)


# -- torch.amp.GradScaler -------------------------------------------------------------------------


def scaled_step(optimizer: Any, scaler: Any, loss: torch.Tensor, how: str) -> None:
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if how == "documented":
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
    else:
        if how == "torch's":
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
    scaler.update()


def scaled_gradients_train_alike_with_and_without_synchronize() -> None:
    for how in ("documented", "plain", "torch's"):
        for fused in (False, True):

            def make(parameters: list[Any], fused: bool = fused) -> Any:
                return torch.optim.Adam(parameters, lr=0.01, fused=fused)

            model = make_model(torch.float32)
            optimizer = distributed(model, make(list(model.parameters())))
            scalers = hvd.GradScaler if fused else torch.amp.GradScaler
            scaler = scalers("cpu", init_scale=1024.0)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for step in range(3):
                    loss = mean_loss(model, batch(step, hvd.rank(), torch.float32))
                    scaled_step(optimizer, scaler, loss, how)
            check_identical(model)
            # Against float64; Adam divides by small numbers.
            check_equal(model.double(), train_alone(make), tolerance=1e-3)


def an_infinite_gradient_on_one_rank_skips_the_step_on_all() -> None:
    for how in ("documented", "plain"):
        model = make_model(torch.float32)
        start = copy.deepcopy(model)
        optimizer = distributed(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step, bad in enumerate((True, False)):
            loss = mean_loss(model, batch(step, hvd.rank(), torch.float32))
            factor = float("inf") if bad and hvd.rank() == 1 else 1.0
            scaled_step(optimizer, scaler, loss * factor, how)
            unchanged = all(map(torch.equal, model.parameters(), start.parameters()))
            assert unchanged == bad
        assert scaler.get_scale() == 512.0
        check_identical(model)


# -- Closures -------------------------------------------------------------------------------------


def lbfgs_takes_the_steps_of_one_process() -> None:
    for search in (None, "strong_wolfe"):
        losses: list[list[float]] = [[], []]
        models = [make_model(), make_model()]
        for model, found, together in zip(models, losses, (True, False), strict=True):
            inner = torch.optim.LBFGS(model.parameters(), lr=0.5, line_search_fn=search, max_iter=6)
            optimizer = distributed(model, inner) if together else inner
            data = batch(0, hvd.rank()) if together else joined_batch(0, range(hvd.size()))

            def closure(model: Any = model, optimizer: Any = optimizer, data: Any = data) -> Any:
                optimizer.zero_grad()
                loss = mean_loss(model, data)
                loss.backward()
                return loss

            found += [float(optimizer.step(closure)) for _ in range(4)]
        check_identical(models[0])
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=1e-9)
        assert losses[0][-1] < losses[0][0] / 2


def a_closure_of_sgd_sees_the_gradients_of_all_ranks() -> None:
    model = make_model()
    optimizer = distributed(model)
    for step in range(3):

        def closure(step: int = step) -> float:
            optimizer.zero_grad()
            loss = mean_loss(model, batch(step, hvd.rank()))
            loss.backward()
            return loss.item()

        loss = optimizer.step(closure)
        assert isinstance(loss, float)
        assert len(set(hvd.allgather_object(loss))) == 1
    check_identical(model)
    check_equal(model, train_alone(sgd))


# -- Around the model -----------------------------------------------------------------------------


class Rows(Dataset[Any]):
    """The rows of six batches."""

    def __init__(self) -> None:
        self.x, self.y = joined_batch(0, range(6))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


def losses_with_workers(model: nn.Module, workers: int, method: str | None) -> list[float]:
    optimizer = distributed(model)
    sampler: Any = DistributedSampler(Rows(), hvd.size(), hvd.rank(), shuffle=True)
    loader = DataLoader(
        Rows(), batch_size=4, sampler=sampler, num_workers=workers, multiprocessing_context=method
    )
    losses = []
    for data in loader:
        optimizer.zero_grad()
        loss = mean_loss(model, data)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def data_loaders_may_fork_workers() -> None:
    """Workers that are spawned are in horovod/test_children.py."""
    expected_model, model = make_model(), make_model()
    expected = losses_with_workers(expected_model, 0, None)
    assert losses_with_workers(model, 1, "fork") == expected
    check_equal(model, expected_model, tolerance=0)
    check_identical(model)


def a_compiled_model_trains_alike() -> None:
    model = make_model()
    optimizer = distributed(model)
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(3):
        optimizer.zero_grad()
        mean_loss(cast("nn.Module", compiled), batch(step, hvd.rank())).backward()
        optimizer.step()
    check_identical(model)
    check_equal(model, train_alone(sgd))


def forward_collectives_mix_with_gradients_in_flight() -> None:
    model = make_model()
    optimizer = distributed(model)
    for step in range(3):
        optimizer.zero_grad()
        loss = mean_loss(model, batch(step, hvd.rank()))
        loss.backward()
        shown = hvd.allreduce(loss.detach(), name="loss")
        optimizer.step()
        assert len(set(hvd.allgather_object(shown.item()))) == 1
    check_equal(model, train_alone(sgd))


# -- Adasum ---------------------------------------------------------------------------------------


def adasum_of(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The definition, for two contributions (Maleki et al. 2021)."""
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - dot / (2 * aa)) * a + (1 - dot / (2 * bb)) * b


def adasum_combines_what_the_steps_of_two_ranks_changed() -> None:
    model, reference = make_model(), make_model()
    optimizer = distributed(model, op=hvd.Adasum, backward_passes_per_step=2)
    is_sgd = isinstance(optimizer, torch.optim.SGD)
    assert is_sgd
    twins = [copy.deepcopy(reference) for _ in range(2)]
    alone = [sgd(list(twin.parameters())) for twin in twins]
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            mean_loss(model, batch(10 * step + part, hvd.rank())).backward()
        optimizer.synchronize()
        optimizer.step()
        starts = [p.detach().clone() for p in twins[0].parameters()]
        for rank, (twin, inner) in enumerate(zip(twins, alone, strict=True)):
            inner.zero_grad()
            for part in range(2):
                mean_loss(twin, batch(10 * step + part, rank)).backward()
            inner.step()
        with torch.no_grad():
            for p, q, start in zip(*(t.parameters() for t in twins), starts, strict=True):
                new = start + adasum_of(p - start, q - start)
                p.copy_(new)
                q.copy_(new)
    check_identical(model)
    check_equal(model, twins[0])


def adasum_adds_orthogonal_steps_and_averages_equal_ones() -> None:
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        p = nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([p], lr=1.0), [("p", p)], compression, op=hvd.Adasum
        )
        p[hvd.rank()].backward()
        optimizer.step()
        assert p.tolist() == [-1.0, -1.0]
        optimizer.zero_grad()
        p[0].backward()
        optimizer.step()
        assert p.tolist() == [-2.0, -1.0]


def adasum_keeps_its_promises_to_callers() -> None:
    model = make_model()
    optimizer = distributed(model, op=hvd.Adasum)
    with pytest.raises(AssertionError, match="Skipping synchronization is not supported"):
        optimizer.skip_synchronize()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    # One rank's closure is its own; one rank has no gradients at all.
    loss = optimizer.step(lambda: hvd.rank())
    assert loss == hvd.rank()
    if hvd.rank() == 0:
        mean_loss(model, batch(0, 0)).backward()
    optimizer.step()
    scheduler.step()
    check_identical(model)
    check_equal(model, train_alone(sgd, steps=1, ranks=[0]))
    one = hvd.add_process_set([0, 1]) if hvd.size() > 2 else hvd.add_process_set([0])
    with pytest.raises(NotImplementedError, match="non-global process sets"):
        distributed(model, op=hvd.Adasum, process_set=one)
    hvd.remove_process_set(one)


def adasum_takes_zeros_from_a_rank_with_an_infinite_gradient() -> None:
    model = make_model(torch.float32)
    optimizer = distributed(model, torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = mean_loss(model, batch(0, hvd.rank(), torch.float32))
    scaler.scale(loss * (float("inf") if hvd.rank() == 1 else 1.0)).backward()
    scaler.step(optimizer)
    scaler.update()
    check_identical(model)
    expected = train_alone(
        lambda parameters: torch.optim.SGD(parameters, lr=0.1), steps=1, ranks=[0]
    )
    check_equal(model.double(), expected, tolerance=1e-5)
    assert scaler.get_scale() == (512.0 if hvd.rank() == 1 else 1024.0)


def training_goes_on_in_a_new_world() -> None:
    """Last: leaves a world without process sets behind."""
    model = train_together(sgd)
    hvd.shutdown()
    hvd.init()
    again = train_together(sgd)
    check_equal(model, again, tolerance=0)
    check_moved(again)


test_training = each_on(2, checks_of(__name__))
