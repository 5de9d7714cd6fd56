"""DistributedOptimizer on three ranks: every option against one process with the joined batch."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import TYPE_CHECKING, Any

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
    sgd,
    train_alone,
    train_together,
)
from torch import nn

import lightcc.torch as hvd
from lightcc.exceptions import RankMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.multiproc


# -- What is computed -----------------------------------------------------------------------------


def every_optimizer_of_torch_trains_as_on_the_joined_batch() -> None:
    tested = []
    for name, cls in vars(torch.optim).items():
        if not inspect.isclass(cls) or not issubclass(cls, torch.optim.Optimizer):
            continue
        if name in ("Optimizer", "SparseAdam", "LBFGS"):
            continue  # Abstract; for sparse gradients; wants a closure: tested elsewhere.

        def make(parameters: list[Any], cls: Any = cls, name: str = name) -> Any:
            chosen = [p for p in parameters if p.dim() == 2] if name == "Muon" else parameters
            return cls(chosen, lr=0.01)

        model = make_model()
        distributed = hvd.DistributedOptimizer(
            make(list(model.parameters())), model.named_parameters()
        )
        assert isinstance(distributed, cls)
        assert type(distributed).__name__ == name
        for step in range(3):
            distributed.zero_grad()
            mean_loss(model, batch(step, hvd.rank())).backward()
            distributed.step()
        check_identical(model)
        # Some normalize gradients, so that tiny differences grow.
        check_equal(model, train_alone(make), tolerance=1e-6 if name != "Muon" else 1e-3)
        check_moved(model)
        tested.append(name)
    assert {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad"} <= set(tested)


def sum_adds_up_and_predivision_changes_nothing() -> None:
    expected = train_alone(sgd)
    for factor in (1.0, 2.0, float(hvd.size())):
        model = train_together(sgd, gradient_predivide_factor=factor)
        check_equal(model, expected)
        check_identical(model)
    total = train_together(sgd, op=hvd.Sum)
    check_identical(total)
    check_equal(
        total, train_alone(sgd, loss=lambda model, data: hvd.size() * mean_loss(model, data))
    )


def groups_give_the_same_bits_as_single_gradients() -> None:
    plain = train_together(sgd)
    for groups in (0, 1, 2, 3, 100):
        check_equal(train_together(sgd, groups=groups), plain, tolerance=0)
    model = make_model()
    first, second, third, _ = model.parameters()
    check_equal(train_together(sgd, model=model, groups=[[third, first], [second]]), plain, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_equal(train_together(sgd, num_groups=2), plain, 0)
    assert [w.category for w in caught] == [DeprecationWarning]
    check_equal(train_together(sgd, groups=2, gradient_predivide_factor=2.0), plain)


def groups_follow_the_first_ranks_order_of_parameters() -> None:
    model = make_model()
    parameters = list(model.parameters())
    if hvd.rank() > 0:
        parameters.reverse()
    optimizer = hvd.DistributedOptimizer(sgd(parameters), model.named_parameters(), groups=2)
    mean_loss(model, batch(0, hvd.rank())).backward()
    optimizer.step()
    check_identical(model)
    check_equal(model, train_alone(sgd, steps=1))


def passes_accumulate_before_gradients_travel() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(list(model.parameters())), model.named_parameters(), backward_passes_per_step=2
    )
    reference = make_model()
    alone = sgd(list(reference.parameters()))
    before = hvd.stats()["operations"]
    for step, passes in enumerate((2, 2, 3)):
        if passes != 2:
            optimizer.set_backward_passes_per_step(passes)
        optimizer.zero_grad()
        alone.zero_grad()
        for i in range(passes):
            assert hvd.stats()["operations"] - before in (4 * step, 4 * step + 1)
            mean_loss(model, batch(10 * step + i, hvd.rank())).backward()
            mean_loss(reference, joined_batch(10 * step + i, range(hvd.size()))).backward()
        optimizer.step()
        alone.step()
    # Four a step, and a comparison of replicas, which the second step sends and the third awaits.
    assert hvd.stats()["operations"] - before == 4 * 3 + 1
    check_identical(model)
    check_equal(model, reference)


def a_step_before_the_last_pass_sends_what_there_is() -> None:
    check_equal(train_together(sgd, backward_passes_per_step=3), train_alone(sgd))


def half_precision_travels_and_the_gradients_keep_their_type() -> None:
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        for groups in (None, 1):
            p = nn.Parameter(torch.zeros(5))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p], lr=1.0), [("p", p)], compression, groups=groups, op=hvd.Sum
            )
            # Small integers: exact in both types.
            (p * torch.arange(5.0) * (hvd.rank() + 1)).sum().backward()
            gradient = p.grad
            before = hvd.stats()["payload_bytes"]
            optimizer.step()
            ranks = hvd.size()
            expected = torch.arange(5.0) * (ranks * (ranks + 1) // 2)
            assert gradient is not None
            assert p.grad is gradient
            assert gradient.dtype == torch.float32
            assert torch.equal(gradient, expected)
            assert torch.equal(p.detach(), -expected)
            assert hvd.stats()["payload_bytes"] - before in (0, 10)  # Done before, or just now.


class DoublingCompressor:
    """Shows that any class with the two methods will do."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor * 2, "context"

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        assert ctx == "context"
        return tensor / 2


def a_compressor_of_ones_own_is_used() -> None:
    model = train_together(sgd, compression=DoublingCompressor)
    check_equal(model, train_alone(sgd))


def gradients_are_combined_where_they_lie() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    mean_loss(model, batch(0, hvd.rank())).backward()
    positions = [p.grad.data_ptr() for p in model.parameters() if p.grad is not None]
    optimizer.synchronize()
    assert positions == [p.grad.data_ptr() for p in model.parameters() if p.grad is not None]
    optimizer.zero_grad()


def gradients_that_are_not_contiguous_are_combined() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).double().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    reference = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    images = torch.randn(hvd.size(), 3, 5, 5, dtype=torch.float64)
    model(images[hvd.rank()][None]).square().mean().backward()
    assert not model.weight.grad.is_contiguous()
    optimizer.step()
    alone = sgd(list(reference.parameters()))
    reference(images).square().mean().backward()
    alone.step()
    check_equal(model, reference)
    check_identical(model)


# -- Parameters that have no gradient, or gain or lose it -----------------------------------------


class Branches(nn.Module):
    """Which branch is taken is the caller's choice, for each call."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = make_model(), make_model()

    def forward(self, x: Any, branch: str) -> Any:
        return self.left(x) if branch == "left" else self.left(x) + self.right(x)


def a_branch_that_one_rank_does_not_use_counts_as_zero() -> None:
    for options in ({}, {"groups": 1}, {"groups": 3}, {"compression": hvd.Compression.none}):
        model, reference = Branches(), Branches()
        optimizer = hvd.DistributedOptimizer(
            sgd(list(model.parameters())), model.named_parameters(), **options
        )
        alone = sgd(list(reference.parameters()))
        for step in range(3):
            lazy = step % hvd.size()
            optimizer.zero_grad()
            alone.zero_grad(set_to_none=False)
            x, y = batch(step, hvd.rank())
            branch = "left" if hvd.rank() == lazy else "both"
            nn.functional.mse_loss(model(x, branch), y).backward()
            optimizer.step()
            for rank in range(hvd.size()):
                x, y = batch(step, rank)
                out = reference(x, "left" if rank == lazy else "both")
                (nn.functional.mse_loss(out, y) / hvd.size()).backward()
            alone.step()
        check_identical(model)
        check_equal(model, reference)


def a_rank_without_any_gradient_takes_part() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    if hvd.rank() != 1:
        mean_loss(model, batch(0, hvd.rank())).backward()
    optimizer.step()
    check_identical(model)
    check_moved(model)


def frozen_parameters_stay_and_thawed_ones_are_trained() -> None:
    model, reference = make_model(), make_model()
    for m in (model, reference):
        m[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    alone = sgd(list(reference.parameters()))
    for step in range(4):
        if step == 2:
            for m in (model, reference):
                m[0].requires_grad_(True)
        optimizer.zero_grad()
        alone.zero_grad()
        mean_loss(model, batch(step, hvd.rank())).backward()
        mean_loss(reference, joined_batch(step, range(hvd.size()))).backward()
        optimizer.step()
        alone.step()
        assert (model[0].weight.grad is None) == (step < 2)
    check_identical(model)
    check_equal(model, reference)


def parameters_that_were_added_later_are_combined() -> None:
    for named in (True, False):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            sgd(list(model[2].parameters())), model.named_parameters() if named else None
        )
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.1})
        for step in range(3):
            optimizer.zero_grad()
            mean_loss(model, batch(step, hvd.rank())).backward()
            optimizer.step()
        check_identical(model)
        check_equal(model, train_alone(sgd))
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    with pytest.raises(ValueError, match="parameters were not named"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def tied_weights_travel_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(3)
            self.inner = nn.Linear(6, 6).double()
            with torch.no_grad():
                for p in self.inner.parameters():
                    p.copy_(torch.randn(p.shape, generator=generator))
            self.outer = nn.Linear(6, 6).double()
            self.outer.weight, self.outer.bias = self.inner.weight, self.inner.bias

        def forward(self, x: Any) -> Any:
            return self.outer(torch.tanh(self.inner(self.inner(x))))[:, :3]

    model = train_together(sgd, model=Tied())
    check_identical(model)
    check_equal(model, train_alone(sgd, model=Tied()))


# -- Sparse gradients -----------------------------------------------------------------------------


def embedding_losses(make: Callable[[list[Any]], Any], rows_of: Any, **options: Any) -> None:
    """Trains an embedding with sparse gradients together and alone and compares."""
    tables = []
    for _ in range(2):
        table = nn.Embedding(7, 2, sparse=True).double()
        with torch.no_grad():
            table.weight.copy_(torch.arange(14.0).view(7, 2))
        tables.append(table)
    model, reference = tables
    optimizer = hvd.DistributedOptimizer(
        make(list(model.parameters())), model.named_parameters(), **options
    )
    alone = make(list(reference.parameters()))
    for step in range(3):
        optimizer.zero_grad()
        alone.zero_grad()
        mine = rows_of(step, hvd.rank())
        if mine:
            model(torch.tensor(mine)).square().sum().backward()
        optimizer.step()
        total: Any = sum(
            reference(torch.tensor(rows)).square().sum()
            for rank in range(hvd.size())
            if (rows := rows_of(step, rank))
        )
        (total / hvd.size()).backward()
        alone.step()
        assert model.weight.grad is not None
        assert model.weight.grad.is_sparse
    check_identical(model)
    check_equal(model, reference)


def sparse_gradients_stay_sparse() -> None:
    def rows_of(step: int, rank: int) -> list[int]:
        return [] if step == 1 and rank == 0 else [rank, (step + rank) % 7, 6]

    def plain(parameters: list[Any]) -> Any:
        return torch.optim.SGD(parameters, lr=0.1)

    embedding_losses(plain, rows_of)
    embedding_losses(plain, rows_of, op=hvd.Average, compression=hvd.Compression.none)
    embedding_losses(lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1), rows_of)


def sparse_gradients_can_travel_as_dense_ones() -> None:
    def rows_of(step: int, rank: int) -> list[int]:
        return [rank, (step + rank) % 7, 6]

    embedding_losses(lambda ps: torch.optim.SGD(ps, lr=0.1), rows_of, sparse_as_dense=True)
    embedding_losses(lambda ps: torch.optim.SparseAdam(ps, lr=0.1), rows_of, sparse_as_dense=True)
    embedding_losses(
        lambda ps: torch.optim.SGD(ps, lr=0.1), rows_of, sparse_as_dense=True, groups=1
    )


def a_sparse_gradient_that_others_do_not_have_is_a_mismatch() -> None:
    for dense in (False, True):
        table = nn.Embedding(7, 2, sparse=not dense or hvd.rank() == 0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=0.1), named_parameters=[("table", table.weight)]
        )
        for _ in range(2):  # Nothing of the first attempt stays.
            table.weight.grad = None
            if dense or hvd.rank() == 0:
                table(torch.tensor([1, 2])).sum().backward()
            with pytest.raises(RankMismatchError, match=r"A sparse gradient.*'allreduce.*table'"):
                optimizer.step()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def a_sparse_gradient_in_a_group_is_refused() -> None:
    table = nn.Embedding(7, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters(), groups=1
    )
    with pytest.raises(ValueError, match=r"'weight' is sparse.*sparse_as_dense=True"):
        table(torch.tensor([1])).sum().backward()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()


# -- Process sets ---------------------------------------------------------------------------------


def members_of_a_set_train_together_and_others_alone() -> None:
    members = [0, hvd.size() - 1]
    process_set = hvd.add_process_set(members)
    for groups in (None, 1):
        model = train_together(sgd, process_set=process_set, groups=groups)
        mine = members if hvd.rank() in members else [hvd.rank()]
        check_equal(model, train_alone(sgd, ranks=mine))
    hvd.remove_process_set(process_set)
    with pytest.raises(ValueError, match="has not been registered"):
        hvd.DistributedOptimizer(sgd(list(make_model().parameters())), process_set=process_set)


test_optimizer = each_on(3, checks_of(__name__))
