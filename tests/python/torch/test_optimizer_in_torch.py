"""DistributedOptimizer on three ranks: its errors, and how it lives with the rest of torch."""

from __future__ import annotations

import copy
import gc
import io
import warnings
from typing import Any

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
    train_together,
)
from torch import nn

import lightcc.torch as hvd

pytestmark = pytest.mark.multiproc


# -- Errors and warnings --------------------------------------------------------------------------


def zero_grad_in_between_is_refused() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    for set_to_none in (True, False):
        mean_loss(model, batch(0, hvd.rank())).backward()
        for forget in (optimizer.zero_grad, lambda: optimizer.zero_grad(set_to_none=True)):
            with pytest.raises(AssertionError, match="This is prohibited as it can cause a race"):
                forget()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        expected = None if set_to_none else 0
        for p in model.parameters():
            assert (p.grad if p.grad is None else p.grad.count_nonzero()) == expected


def a_second_backward_pass_is_an_error_that_names_the_parameter() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    mean_loss(model, batch(0, hvd.rank())).backward()
    with pytest.raises(AssertionError) as error:
        mean_loss(model, batch(0, hvd.rank())).backward()
    text = str(error.value)
    assert "more than backward_passes_per_step times before call to step()" in text
    assert "Increase backward_passes_per_step" in text
    assert "Parameter '2." in text  # The last layer's gradient comes first.
    # And the optimizer can be used again.
    optimizer.synchronize()
    model.load_state_dict(make_model().state_dict())
    optimizer.zero_grad()
    mean_loss(model, batch(0, hvd.rank())).backward()
    optimizer.step()
    check_equal(model, train_alone(sgd, steps=1))


class SharedCheckpoint(nn.Module):
    """Visits its layer twice, each time within a checkpoint."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.layer = nn.Linear(6, 6).double()
        with torch.no_grad():
            for p in self.layer.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) / 3)
        self.reentrant = reentrant

    def forward(self, x: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        x = x.requires_grad_()
        for _ in range(2):
            x = torch.tanh(checkpoint(self.layer, x, use_reentrant=self.reentrant))
        return x[:, :3]


def a_shared_module_under_reentrant_checkpoints_is_an_error_with_a_remedy() -> None:
    model = SharedCheckpoint(reentrant=True)
    optimizer = hvd.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    with pytest.raises(AssertionError, match=r"Parameter 'layer.*use_reentrant=False"):
        mean_loss(model, batch(0, hvd.rank())).backward()
    optimizer.synchronize()
    optimizer.zero_grad()

    expected = train_alone(sgd, model=SharedCheckpoint(reentrant=False))
    # Both remedies that the text offers.
    check_equal(train_together(sgd, model=SharedCheckpoint(reentrant=False)), expected)
    counted = train_together(
        sgd, model=SharedCheckpoint(reentrant=True), backward_passes_per_step=2
    )
    check_equal(counted, expected)
    check_identical(counted)


def a_gradient_with_a_graph_is_an_error_that_names_the_parameter() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1), [("theta", p)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the cycle that this makes.
        with pytest.raises(AssertionError, match=r"'theta'.*create_graph"):
            p.pow(3).sum().backward(create_graph=True)
    p.grad = None
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()


def step_after_synchronize_warns_once_and_combines_once() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(list(model.parameters())), model.named_parameters(), op=hvd.Sum
    )
    caught_in_step = []
    for step in range(3):
        optimizer.zero_grad()
        (mean_loss(model, batch(step, hvd.rank())) / hvd.size()).backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if step == 0:
                optimizer.synchronize()
                optimizer.step()
            elif step == 1:
                optimizer.synchronize()
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
        caught_in_step.append([str(w.message)[:60] for w in caught])
    assert [len(texts) for texts in caught_in_step] == [1, 0, 0]
    assert caught_in_step[0][0].startswith("optimizer.step() called without")
    check_equal(model, train_alone(sgd))


def ranks_that_disagree_about_a_parameter_all_get_the_error() -> None:
    good, bad = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4 + hvd.rank()))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([good, bad], lr=1.0), [("good", good), ("bad", bad)]
    )
    ((good * (hvd.rank() + 1)).sum() + bad.sum()).backward()
    with pytest.raises(hvd.RankMismatchError, match="bad"):
        optimizer.step()
    # The error came after everything else had arrived, and the next step can do better.
    assert good.grad is not None
    assert torch.equal(good.grad, torch.full((3,), (hvd.size() + 1) / 2))
    optimizer.zero_grad()
    bad.data = torch.ones(2)
    bad.grad = None
    (good.sum() + bad.sum()).backward()
    optimizer.step()
    check_identical(nn.ParameterList([good, bad]))


# -- Living with the rest of torch ----------------------------------------------------------------


def no_names_are_needed() -> None:
    model = make_model()
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1, momentum=0.9))
    for step in range(3):
        optimizer.zero_grad()
        mean_loss(model, batch(step, hvd.rank())).backward()
        optimizer.step()
    check_equal(model, train_alone(sgd))


def two_optimizers_may_have_gradients_in_flight() -> None:
    models = [make_model(), make_model()]
    optimizers = [
        hvd.DistributedOptimizer(
            sgd(list(m.parameters())), [(f"{i}.{n}", p) for n, p in m.named_parameters()]
        )
        for i, m in enumerate(models)
    ]
    for model in models:
        mean_loss(model, batch(0, hvd.rank())).backward()
    for optimizer in reversed(optimizers):
        optimizer.step()
    for model in models:
        check_equal(model, train_alone(sgd, steps=1))


class Choosy(torch.optim.SGD):
    """Cannot be made from parameters alone, and keeps state of its own."""

    def __init__(self, parameters: Any, *, rate: float) -> None:
        super().__init__(parameters, lr=rate)
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)


def an_optimizer_is_wrapped_with_its_state() -> None:
    model = make_model()
    inner = Choosy(model.parameters(), rate=0.1)
    mean_loss(model, batch(0, 0)).backward()
    inner.step()
    inner.zero_grad()
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    assert isinstance(optimizer, Choosy)
    assert optimizer.param_groups[0]["lr"] == 0.1
    mean_loss(model, batch(0, hvd.rank())).backward()
    optimizer.step()
    assert optimizer.steps == 2
    check_identical(model)


def step_hooks_run_once_and_see_the_gradients_of_all_ranks() -> None:
    model = make_model()
    inner = sgd(list(model.parameters()))
    seen: list[Any] = []

    def note(*_: Any) -> None:
        seen.append([p.grad.tolist() for p in model.parameters() if p.grad is not None])

    inner.register_step_pre_hook(note)
    inner.register_step_post_hook(note)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    for step in range(2):
        mean_loss(model, batch(step, hvd.rank())).backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())  # torch looks at step() again here.
    assert len(seen) == 4
    assert all(theirs == seen for theirs in hvd.allgather_object(seen))


def learning_rate_schedulers_work_before_and_after_wrapping() -> None:
    for before in (True, False):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        early = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5) if before else None
        if before:
            inner.step()
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
        scheduler = early or torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        rates = []
        for step in range(3):
            optimizer.zero_grad()
            mean_loss(model, batch(step, hvd.rank())).backward()
            optimizer.step()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        assert rates == [0.5, 0.25, 0.125]
        check_identical(model)


def state_moves_between_plain_and_distributed_optimizers() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters()
    )
    mean_loss(model, batch(0, hvd.rank())).backward()
    optimizer.step()
    plain = torch.optim.Adam(model.parameters(), lr=0.5)
    plain.load_state_dict(optimizer.state_dict())
    assert plain.param_groups[0]["lr"] == 0.01
    del optimizer
    again = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.5), model.named_parameters()
    )
    again.load_state_dict(plain.state_dict())
    assert again.param_groups[0]["lr"] == 0.01
    mean_loss(model, batch(1, hvd.rank())).backward()
    again.step()
    check_identical(model)


def an_optimizer_that_is_gone_leaves_the_model_alone() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    mean_loss(model, batch(0, hvd.rank())).backward()
    optimizer.step()
    hvd.barrier()
    del optimizer
    gc.collect()
    before = hvd.stats()["operations"]
    mean_loss(model, batch(1, hvd.rank())).backward()
    hvd.barrier()
    assert hvd.stats()["operations"] == before + 1  # The barrier.


def a_model_with_hooks_can_be_copied_and_saved() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    mean_loss(twin, batch(0, hvd.rank())).backward()
    assert all(p.grad is None for p in model.parameters())
    optimizer.zero_grad()  # Nothing is on its way.


test_optimizer_in_torch = each_on(3, checks_of(__name__))
