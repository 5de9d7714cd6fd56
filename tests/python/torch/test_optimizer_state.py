"""DistributedOptimizer on three ranks: its state, copies of it, and several of them at once."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from replicas import (
    batch,
    check_equal,
    check_identical,
    checks_of,
    each_on,
    make_model,
    mean_loss,
    sgd,
    train_alone,
)
from torch import nn

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.multiproc


def wrapped(model: nn.Module, **options: Any) -> Any:
    return hvd.DistributedOptimizer(
        sgd(list(model.parameters())), model.named_parameters(), **options
    )


def backward(model: nn.Module, step: int) -> None:
    # So that a sum over ranks is the average over the joined batch.
    (mean_loss(model, batch(step, hvd.rank())) / hvd.size()).backward()


def sums(model: nn.Module) -> Any:
    return wrapped(model, op=hvd.Sum)


# -- load_state_dict() ----------------------------------------------------------------------------


def gradients_on_their_way_are_those_of_the_step_after_loading() -> None:
    model = make_model()
    optimizer = sums(model)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        gradients = [copy.deepcopy(p.grad) for p in model.parameters()]
        optimizer.step()
        # Nothing was combined again, and nothing came later.
        for gradient, p in zip(gradients, model.parameters(), strict=True):
            assert gradient is not None
            assert p.grad is not None
            assert torch.equal(gradient, p.grad)
    check_identical(model)
    check_equal(model, train_alone(sgd))


class Wide(nn.Module):
    """Gradients of 16 MiB, which are still on their way when `backward()` returns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2 << 20, dtype=torch.float64))

    def backward(self, factor: float) -> None:
        (self.weight.sum() * factor * (hvd.rank() + 1)).backward()


def gradients_of_before_loading_never_come_later() -> None:
    model = Wide()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=hvd.Sum
    )
    state = copy.deepcopy(optimizer.state_dict())
    for set_to_none in (True, False):
        model.weight.data.zero_()
        model.backward(1000.0)
        optimizer.load_state_dict(state)
        optimizer.zero_grad(set_to_none=set_to_none)
        model.backward(1.0)
        optimizer.step()
        assert torch.equal(model.weight, torch.full_like(model.weight, -6.0))


def one_rank_alone_may_load_between_backward_and_step() -> None:
    model = make_model()
    optimizer = sums(model)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        if hvd.rank() == step:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if step == 1:
            hvd.broadcast_optimizer_state(optimizer, 0)
        optimizer.step()
    check_identical(model)
    check_equal(model, train_alone(sgd))


def passes_before_loading_count_no_more() -> None:
    model = make_model()
    optimizer = sums(model)
    optimizer.set_backward_passes_per_step(2)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.step()
    check_identical(model)
    check_equal(model, train_alone(sgd))


def gradients_of_a_world_that_ended_are_lost() -> None:
    model = make_model()
    optimizer = sums(model)
    state = copy.deepcopy(optimizer.state_dict())
    if hvd.rank() != 0:
        backward(model, 7)  # Rank 0 never has these gradients.
    hvd.barrier()
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    optimizer.load_state_dict(state)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    check_identical(model)
    check_equal(model, train_alone(sgd))


# -- Gradients that are changed on their way ------------------------------------------------------


def replace(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = torch.ones_like(p)


def double(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "clipped by norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "clipped by value": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.1),
    "multiplied": lambda model: [p.grad.mul_(2) for p in model.parameters() if p.grad is not None],
    "set to zeros": lambda model: model.zero_grad(set_to_none=False),
    "forgotten": lambda model: model.zero_grad(),
    "replaced": replace,
}


def changes_of_gradients_on_their_way_are_refused() -> None:
    kinds: list[dict[str, Any]] = [{}, {"groups": 1}, {"compression": hvd.Compression.fp16}]
    for options in kinds:
        for what, change in CHANGES.items():
            model = make_model()
            optimizer = wrapped(model, **options)
            backward(model, 0)
            change(model)
            before = copy.deepcopy(model)
            with pytest.raises(AssertionError, match=r"'[02]\.(weight|bias)' was changed while.*"):
                optimizer.step()
            check_equal(model, before, tolerance=0)
            # After synchronize() each of them is allowed, also before another step.
            optimizer.zero_grad()
            backward(model, 0)
            optimizer.synchronize()
            change(model)
            with optimizer.skip_synchronize():
                optimizer.step()
            check_identical(model)
            assert optimizer._exchange._source.taken == [], what


def hooks_that_write_later_than_ours_are_refused_and_earlier_ones_count() -> None:
    model = make_model()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(double)
    optimizer = sums(model)
    backward(model, 0)
    optimizer.step()
    check_identical(model)
    hook = next(model.parameters()).register_post_accumulate_grad_hook(double)
    optimizer.zero_grad()
    backward(model, 1)
    with pytest.raises(AssertionError, match=r"(?s)'0\.weight' was.*synchronize\(\).*skip_synch"):
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    hook.remove()
    optimizer.zero_grad()
    backward(model, 2)
    optimizer.step()
    check_identical(model)


def a_sparse_gradient_that_is_changed_is_refused() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    optimizer = wrapped(embedding)
    embedding(torch.tensor([1, 2])).sum().backward()
    assert embedding.weight.grad is not None
    embedding.weight.grad.mul_(2)
    with pytest.raises(AssertionError, match="'weight' was changed"):
        optimizer.step()


# -- Several optimizers ---------------------------------------------------------------------------


def in_turn(steps: list[Callable[[], Any]], turn: int) -> None:
    """Calls all, the last rank in the opposite order in every other turn."""
    opposite = hvd.rank() == hvd.size() - 1 and turn % 2
    for step in reversed(steps) if opposite else steps:
        step()


def optimizers_with_plans_may_step_in_any_order() -> None:
    for strategy in ("auto_fusion", "piecewise_fusion"):
        models = [make_model() for _ in range(2)]
        optimizers = [
            hvd.DistributedOptimizer(
                sgd(list(model.parameters())),
                [(f"{i}.{name}", p) for name, p in model.named_parameters()],
                fusion_type=strategy,
            )
            for i, model in enumerate(models)
        ]
        for step in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                mean_loss(model, batch(step, hvd.rank())).backward()
            in_turn([optimizer.step for optimizer in optimizers], step + 1)
        plans = [plan for plan in hvd.stats()["fusion"] if plan["strategy"] == strategy]
        assert len(plans) == 2
        for model in models:
            check_identical(model)


def closures_of_several_optimizers_may_run_side_by_side() -> None:
    models = [make_model() for _ in range(2)]
    losses: list[list[float]] = [[], []]

    def run(i: int) -> None:
        model = models[i]
        named = [(f"{i}.{name}", p) for name, p in model.named_parameters()]
        inner = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=1)
        optimizer = hvd.DistributedOptimizer(inner, named)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = mean_loss(model, batch(0, hvd.rank())) * (i + 1)
            loss.backward()
            return loss

        losses[i] = [float(optimizer.step(closure)) for _ in range(20)]

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, range(2)))
    assert losses[1][0] == pytest.approx(2 * losses[0][0])
    assert all(each == losses for each in hvd.allgather_object(losses))
    for model in models:
        check_identical(model)


# -- Copies ---------------------------------------------------------------------------------------


def deep_copies_train_their_own_parameters() -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"op": hvd.Adasum},
        {"groups": 2},
        {"fusion_type": "piecewise_fusion"},
    ]
    for options in kinds:
        model = make_model()
        optimizer = wrapped(model, **options)
        mean_loss(model, batch(0, hvd.rank())).backward()
        optimizer.step()
        optimizer.zero_grad()
        before = [p.detach().clone() for p in model.parameters()]
        other, copied = copy.deepcopy((model, optimizer))
        assert type(copied) is type(optimizer)
        assert copied.param_groups[0]["params"][0] is next(other.parameters())
        for step in range(1, 3):
            mean_loss(other, batch(step, hvd.rank())).backward()
            copied.step()
            copied.zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        for step in range(1, 3):
            mean_loss(model, batch(step, hvd.rank())).backward()
            optimizer.step()
            optimizer.zero_grad()
        check_identical(other)
        check_equal(other, model, tolerance=0)


def a_copy_of_gradients_in_flight_and_a_pickle_are_refused() -> None:
    model = make_model()
    optimizer = wrapped(model)
    mean_loss(model, batch(0, hvd.rank())).backward()
    with pytest.raises(ValueError, match="cannot be copied while gradients are on their way"):
        copy.deepcopy(optimizer)
    optimizer.step()
    for make in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match=r"can neither be pickled nor copied.*state_dict"):
            make(optimizer)


# -- Names that Horovod's users read --------------------------------------------------------------


def private_names_have_horovods_meaning() -> None:
    model = make_model()
    frozen = next(model.parameters()).requires_grad_(False)
    optimizer = wrapped(model, compression=hvd.Compression.fp16)
    trained = [p for p in model.parameters() if p is not frozen]
    assert optimizer.find_duplicates(["a", "b", "a", "c", "c", "c"]) == {"a", "c"}
    assert optimizer.find_duplicates([]) == set()
    assert optimizer._compression is hvd.Compression.fp16
    assert optimizer._requires_update == set(trained)
    assert optimizer._parameter_names == {p: name for name, p in model.named_parameters()}
    assert optimizer._handles == {}
    mean_loss(model, batch(0, hvd.rank())).backward()
    assert set(optimizer._handles) == set(trained)
    optimizer.synchronize()
    assert optimizer._handles == {}

    optimizer = wrapped(make_model(), backward_passes_per_step=2)
    parameters: list[Any] = optimizer.param_groups[0]["params"]
    for p in parameters:
        p.grad = torch.full_like(p, hvd.rank() + 1.0)
        handle, context = optimizer._allreduce_grad_async(p)
        assert optimizer._handles[p] == (handle, context)
        hvd.synchronize(handle)  # As some programs do.
    optimizer.synchronize()
    assert all(torch.equal(p.grad, torch.full_like(p, 2.0)) for p in parameters)
    with pytest.raises(ValueError, match=r"no such parameter: \(3,\)"):
        optimizer._allreduce_grad_async(torch.ones(3))

    adasum = wrapped(make_model(), op=hvd.Adasum)
    assert adasum._requires_update == set(adasum._parameter_names)
    assert adasum._handles == {}


# -- Gradients that are negative views ------------------------------------------------------------


def gradients_that_are_negative_views_are_combined() -> None:
    kinds: list[dict[str, Any]] = [{}, {"groups": 1}, {"compression": hvd.Compression.fp16}]
    for options in kinds:
        real, imaginary = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([real, imaginary], lr=1.0),
            [("real", real), ("imaginary", imaginary)],
            **options,
        )
        view = torch._neg_view(torch.tensor([hvd.rank() + 1.0]))
        imaginary.grad = view if hvd.rank() != 1 else view.resolve_neg()
        real.grad = -view
        for p in (real, imaginary):
            optimizer._allreduce_grad_async(p)
        optimizer.step()
        assert imaginary.item() == 2.0
        assert real.item() == -2.0


test_state = each_on(3, checks_of(__name__))


# -- What a step costs between hosts --------------------------------------------------------------


def bytes_of_steps(named: bool) -> int:
    """Bytes that this rank sends to another host in ten steps, once all names are known."""
    hvd.init()
    parameters: list[torch.Tensor] = [nn.Parameter(torch.zeros(1)) for _ in range(100)]
    names = [(f"allreduce.named.{i}", p) for i, p in enumerate(parameters)] if named else None
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), names)
    sent = []
    for step in range(20):
        if step in (10, 19):
            hvd.barrier()
            sent.append(hvd.stats()["network_bytes_sent"])
        torch.cat(parameters).sum().backward()
        optimizer.step()
    return int(sent[1] - sent[0])


def test_gradients_without_names_cost_what_named_ones_do() -> None:
    named, unnamed = (spawn_ranks(bytes_of_steps, 2, n, hosts=[0, 1]) for n in (True, False))
    assert sum(unnamed) < 1.5 * sum(named)
