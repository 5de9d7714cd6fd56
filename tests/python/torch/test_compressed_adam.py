"""Adam and AdamW whose momentum travels in 1 bit, on 2 x 2 ranks."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from two_by_two import TWO_BY_TWO, batch, collect_log, make_model, train, weights

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.multiproc

WARMUP, EVERY, STEPS = 4, 4, 15


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, **options})


def distributed(model: nn.Module, inner: Any = None, **options: Any) -> Any:
    options.setdefault("compression", hvd.Compression.adam(WARMUP, EVERY))
    return hvd.DistributedOptimizer(inner or adamw(model), model.named_parameters(), **options)


def run(program: Callable[..., Any], *arguments: Any, **env: str) -> list[Any]:
    return spawn_ranks(program, 4, *arguments, env={**TWO_BY_TWO, **env})


# -- The algorithm, written out -------------------------------------------------------------------


class Reference:
    """Adam by its formulas, fed with what each step's all-reduce gave on this rank."""

    def __init__(self, p: torch.Tensor, decay: float, *, decoupled: bool) -> None:
        self.p = p.detach().clone()
        self.m = torch.zeros_like(p)
        self.v = torch.zeros_like(p)
        self.missing = 1.0
        self.t = 0
        self.decay = decay
        self.decoupled = decoupled

    def is_whole(self) -> bool:
        """Of the step that comes."""
        return self.t + 1 <= WARMUP or (self.t + 1) % EVERY == 0

    def step(self, gradient: torch.Tensor) -> None:
        rate, beta1, beta2 = 1e-2, 0.9, 0.999
        is_whole = self.is_whole()
        self.t += 1
        if self.decoupled:
            self.p *= 1 - rate * self.decay
        else:
            gradient = gradient + self.decay * self.p
        self.m = beta1 * self.m + (1 - beta1) * gradient
        if is_whole:
            remembered = beta2 if self.t <= WARMUP else min(beta2**EVERY, 0.95)
            self.v = remembered * self.v + (1 - remembered) * gradient**2
            self.missing *= remembered
        denominator = (self.v / (1 - self.missing)).sqrt() + 1e-8
        self.p -= rate / (1 - beta1**self.t) * self.m / denominator


def steps_are_those_of_the_formulas(decay: float, decoupled: bool) -> list[float]:
    hvd.init()
    model = make_model()
    make = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = distributed(model, make(model.parameters(), lr=1e-2, weight_decay=decay))
    references = {p: Reference(p, decay, decoupled=decoupled) for p in model.parameters()}
    bits = []
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        before = hvd.stats()["compressed_sent_bytes"]
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.synchronize()
        bits.append(hvd.stats()["compressed_sent_bytes"] - before)
        gradients = {p: p.grad.clone() for p in model.parameters() if p.grad is not None}
        with optimizer.skip_synchronize():
            optimizer.step()
        for p, reference in references.items():
            reference.step(gradients[p])
            torch.testing.assert_close(p, reference.p, rtol=1e-4, atol=1e-6)
            assert p.grad is not None
            assert torch.equal(p.grad, gradients[p])
    whole = [step < WARMUP or (step + 1) % EVERY == 0 for step in range(STEPS)]
    assert bits == [max(bits) if is_whole else min(bits) for is_whole in whole]
    assert min(bits) * 3 < max(bits)
    return weights(model).tolist()


@pytest.mark.parametrize("decoupled", [True, False], ids=["AdamW", "Adam"])
def test_steps_are_those_of_the_formulas_with_what_arrives(decoupled: bool) -> None:
    results = run(steps_are_those_of_the_formulas, 0.1, decoupled)
    assert all(result == results[0] for result in results)


def gradient_of(p: torch.Tensor) -> torch.Tensor:
    assert p.grad is not None
    return p.grad


def gradients_arrive_in_the_sum() -> None:
    """A constant gradient: what light steps make of it differs from it less, the more there are."""
    hvd.init()
    p = nn.Parameter(torch.zeros(256))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam([p], lr=0.0), [("p", p)], compression=hvd.Compression.adam(4, 1000)
    )
    both = torch.randn(256, generator=torch.Generator().manual_seed(9))
    mine = both + 0.3 * torch.randn(256, generator=torch.Generator().manual_seed(hvd.rank()))
    true = hvd.allreduce(mine, name="true")
    light = []
    for step in range(100):
        p.grad = None
        (p * mine).sum().backward()
        optimizer.step()
        if step >= 4:
            light.append(torch.clone(gradient_of(p)))
    # One step is off by the residual, which is divided by 1 - beta1.
    errors = [float((torch.stack(light[:n]).mean(0) - true).norm() / true.norm()) for n in (1, 96)]
    assert errors[1] < 0.07 < 0.12 < errors[0], errors


def test_all_of_the_gradients_arrives_if_late() -> None:
    run(gradients_arrive_in_the_sum)


def rare_rows_do_what_adam_does() -> None:
    """Rows whose first gradient comes in a light step move as under Adam, and spoil no others."""
    hvd.init()
    moved = {}
    ways = {"light": hvd.Compression.adam(4, 1000), "dense": hvd.Compression.none}
    for way, compression in ways.items():
        torch.manual_seed(1)
        table = nn.Embedding(8, 64)
        before = table.weight.detach().clone()
        named = [(f"{way}.{name}", p) for name, p in table.named_parameters()]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(table.parameters(), lr=1e-2), named, compression=compression
        )
        for step in range(12):
            rows = torch.tensor([0, 2, 4, 6] if step < 8 else [0, 1, 2])
            optimizer.zero_grad()
            (100.0 * table(rows).pow(2).sum()).backward()
            optimizer.step()
        moved[way] = (table.weight.detach() - before).abs()
    compressed, dense = moved["light"], moved["dense"]
    assert 1.0 < float(compressed[1].mean() / dense[1].mean()) < 6.0
    for row in (0, 2, 4, 6):
        assert 0.5 < float(compressed[row].mean() / dense[row].mean()) < 2.0, row
    assert float(compressed[[3, 5, 7]].max()) < 0.02


def test_rows_that_were_never_seen_do_what_adam_does() -> None:
    run(rare_rows_do_what_adam_does)


# -- State ----------------------------------------------------------------------------------------


def resume(folder: str) -> list[float]:
    """Trains 15 steps; then 10, saves, forgets everything, loads, and 5 more."""
    hvd.init()
    model = make_model()
    train(model, distributed(model), range(STEPS))
    expected = weights(model)
    hvd.shutdown()

    hvd.init()
    model = make_model()
    optimizer = distributed(model)
    train(model, optimizer, range(10))
    hvd.save_compression_state(folder)
    by_optimizer = pickle.dumps(optimizer.compression_state_dict())
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    hvd.shutdown()

    for source in ("folder", "optimizer"):
        hvd.init()
        model = make_model()
        optimizer = distributed(model)
        model.load_state_dict(checkpoint[0])
        optimizer.load_state_dict(copy.deepcopy(checkpoint[1]))
        if source == "folder":
            # Of four parameters: what is left of gradients, and of momenta.
            assert hvd.load_compression_state(folder) == 8
        else:
            optimizer.load_compression_state_dict(pickle.loads(by_optimizer))
        train(model, optimizer, range(10, STEPS))
        assert torch.equal(weights(model), expected), source
        hvd.shutdown()
    # The state is Adam's: without compression training goes on from it, too.
    hvd.init()
    model = make_model()
    plain = distributed(model, compression=hvd.Compression.none)
    model.load_state_dict(checkpoint[0])
    plain.load_state_dict(copy.deepcopy(checkpoint[1]))
    train(model, plain, range(10, STEPS))
    assert float((weights(model) - expected).norm() / expected.norm()) < 0.1
    return expected.tolist()


def test_training_resumes_with_the_same_bits(tmp_path: Path) -> None:
    results = run(resume, str(tmp_path))
    assert all(result == results[0] for result in results)


def a_dense_state_is_taken_over() -> None:
    """Past its warm-up, so the next step is a light one at once."""
    hvd.init()
    model = make_model()
    optimizer = distributed(model, compression=hvd.Compression.none)
    train(model, optimizer, range(9))
    state = copy.deepcopy(optimizer.state_dict())
    del optimizer  # And its hooks.
    light = distributed(model)
    light.load_state_dict(state)
    hvd.broadcast_optimizer_state(light, root_rank=0)
    before = hvd.stats()["compressed_sent_bytes"]
    train(model, light, range(9, 10))
    light_bytes = hvd.stats()["compressed_sent_bytes"] - before
    train(model, light, range(10, 12))
    whole_bytes = hvd.stats()["compressed_sent_bytes"] - before - 2 * light_bytes
    assert 0 < 3 * light_bytes < whole_bytes
    assert torch.isfinite(weights(model)).all()


def test_the_state_of_a_dense_training_is_taken_over() -> None:
    run(a_dense_state_is_taken_over)


def copies_train_alike() -> None:
    hvd.init()
    model = make_model()
    optimizer = distributed(model)
    train(model, optimizer, range(5))
    made, other = copy.deepcopy((model, optimizer))
    assert type(other).__name__ == "AdamW"
    train(made, other, range(5, 9))
    assert torch.isfinite(weights(made)).all()
    assert int(other.state[next(made.parameters())]["step"]) == 9


def test_a_copy_goes_on_from_where_the_original_was() -> None:
    run(copies_train_alike)


# -- Around the step ------------------------------------------------------------------------------


def clipped(way: str) -> tuple[list[float], list[str], int]:
    """Clips as the documentation says; returns weights, what was said, and bytes of a last step."""
    hvd.init()
    said = collect_log()
    compression = {"adam": hvd.Compression.adam(2, 100), "int4": hvd.Compression.int4}[way]
    model = make_model()
    optimizer = distributed(model, compression=compression)
    before = 0
    for step in range(8):
        x, y = batch(step)
        optimizer.zero_grad()
        before = hvd.stats()["compressed_sent_bytes"]
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with optimizer.skip_synchronize():
            optimizer.step()
    return weights(model).tolist(), said, hvd.stats()["compressed_sent_bytes"] - before


def test_clipped_gradients_travel_in_four_bits_which_is_said_once() -> None:
    adam, int4 = run(clipped, "adam"), run(clipped, "int4")
    assert all(result[0] == adam[0][0] for result in adam)
    torch.testing.assert_close(torch.tensor(adam[0][0]), torch.tensor(int4[0][0]))
    assert [len(said) for _, said, _ in adam] == [1, 0, 0, 0]
    assert "does not suit gradients that are changed" in adam[0][1][0]
    assert adam[0][2] == int4[0][2]


def joins_early(joins_at: int) -> tuple[list[list[float]], list[str], list[int]]:
    """Rank 3 ends its first epoch early. Returns weights after each of three epochs, what was
    said, and the bytes that each step of this rank sent.
    """
    hvd.init()
    said = collect_log()
    model = make_model()
    optimizer = distributed(model)
    sent: list[int] = []
    results: list[list[float]] = []
    for epoch in range(3):
        has_less = epoch == 0 and hvd.rank() == 3
        for step in range(joins_at if has_less else joins_at + 3):
            before = hvd.stats()["compressed_sent_bytes"]
            train(model, optimizer, range(100 * epoch + step, 100 * epoch + step + 1))
            sent.append(hvd.stats()["compressed_sent_bytes"] - before)
        if epoch == 0:
            assert torch.isfinite(weights(model)).all()
            last = hvd.join()
            hvd.broadcast_parameters(model.state_dict(), root_rank=last)
            hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        results.append(weights(model).tolist())
    # torch goes on, with its own correction of the second moment.
    assert all("second_moment_missing" not in optimizer.state[p] for p in model.parameters())
    return results, said, sent


@pytest.mark.parametrize("joins_at", [WARMUP + 1, EVERY * 2 - 1], ids=["light", "before whole"])
def test_ranks_that_join_early_end_light_steps_for_all(joins_at: int) -> None:
    results = run(joins_early, joins_at)
    assert all(result[0] == results[0][0] for result in results)
    assert [len(said) for _, said, _ in results] == [1, 0, 0, 0]
    assert "after join() ranks differ" in results[0][1][0]
    _, _, sent = results[0]
    assert min(sent[: joins_at + 3]) * 3 < max(sent)
    assert set(sent[joins_at + 3 :]) == {max(sent)}


def scaled_training() -> list[float]:
    """Scales are powers of two, so a scaled training is the same as one without, bit for bit."""
    hvd.init()
    plain = make_model()
    train(plain, distributed(plain), range(9))
    expected = weights(plain)
    hvd.shutdown()

    hvd.init()
    model = make_model()
    optimizer = distributed(model)
    scaler = hvd.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    step = 0
    overflows = [2, 5]
    while step < 9:
        x, y = batch(step)
        optimizer.zero_grad()
        loss = scaler.scale(nn.functional.mse_loss(model(x), y))
        if step in overflows and hvd.rank() == 3:
            loss = loss * float("inf")
        loss.backward()
        before = weights(model)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if step in overflows:
            assert torch.equal(weights(model), before)
            assert scaler.get_scale() == scale / 2
            overflows.remove(step)
        else:
            step += 1
    assert torch.equal(weights(model), expected)
    return expected.tolist()


def test_overflows_and_changes_of_scale_leave_no_trace() -> None:
    results = run(scaled_training)
    assert all(result == results[0] for result in results)


def a_scale_is_hidden(start: int) -> tuple[list[str], str]:
    """Uses torch's own GradScaler after some steps; returns what was said, and the error."""
    hvd.init()
    said = collect_log()
    model = make_model()
    optimizer = distributed(model)
    train(model, optimizer, range(start))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    error = ""
    for step in range(start, start + 3):
        x, y = batch(step)
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        try:
            scaler.step(optimizer)
        except ValueError as raised:
            error = str(raised)
            break
        scaler.update()
    hvd.barrier()
    return said, error


def test_a_scale_that_is_not_reported_is_noticed() -> None:
    (said, error), *others = run(a_scale_is_hidden, 0)
    assert len(said) == 1
    assert "use lightcc.torch.GradScaler" in said[0]
    assert "in 4 bits from now on" in said[0]
    assert error == ""
    assert others == [([], "")] * 3
    for said, error in run(a_scale_is_hidden, WARMUP):
        assert said == []
        assert "use lightcc.torch.GradScaler" in error


def passes_groups_and_frozen_parameters() -> list[float]:
    """Two passes a step, two groups with other settings, and a layer that is thawed meanwhile."""
    hvd.init()
    torch.manual_seed(7)
    middle = nn.Linear(64, 32)
    model = nn.Sequential(nn.Linear(16, 64), middle, nn.Linear(32, 4))
    for p in middle.parameters():
        p.requires_grad_(False)
    groups = [
        {"params": [*model[0].parameters(), *middle.parameters()], "lr": 1e-2},
        {"params": list(model[2].parameters()), "lr": 1e-3, "betas": (0.8, 0.9)},
    ]
    optimizer = distributed(
        model, torch.optim.AdamW(groups, weight_decay=0.1), backward_passes_per_step=2
    )
    frozen = middle.weight.detach().clone()
    for step in range(12):
        if step == 6:  # In the midst of light steps.
            assert torch.equal(middle.weight, frozen)
            for p in middle.parameters():
                p.requires_grad_(True)
        optimizer.zero_grad()
        for x, y in (batch(2 * step), batch(2 * step + 1)):
            nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert not torch.equal(middle.weight, frozen)
    assert int(optimizer.state[middle.weight]["step"]) == 6
    assert torch.isfinite(weights(model)).all()
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-3]
    return weights(model).tolist()


def test_passes_groups_and_parameters_that_are_thawed() -> None:
    results = run(passes_groups_and_frozen_parameters)
    assert all(result == results[0] for result in results)


def small_parameters_are_the_optimizers() -> None:
    """Biases are below the threshold here: their steps are Adam's own, in every bit."""
    hvd.init()
    model = make_model()
    optimizer = distributed(model)
    hooks: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: hooks.append("before"))
    optimizer.register_step_post_hook(lambda *_: hooks.append("after"))
    train(model, optimizer, range(6))
    assert hooks == ["before", "after"] * 6
    for name, p in model.named_parameters():
        state = optimizer.state[p]
        assert int(state["step"]) == 6, name
        assert ("second_moment_missing" in state) == (p.numel() * 4 >= 1024), name


def test_what_is_not_compressed_is_left_to_the_optimizer() -> None:
    run(small_parameters_are_the_optimizers, LIGHT_TOPK_THRESHOLD="1024")


def a_closure_is_evaluated() -> list[float]:
    hvd.init()
    plain, model = make_model(), make_model()
    train(plain, distributed(plain), range(8))
    hvd.barrier()
    optimizer = distributed(model)
    for step in range(8):
        x, y = batch(step)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)  # noqa: B023  called at once
            loss.backward()
            return loss

        assert float(optimizer.step(closure)) > 0
    return [float((weights(plain) - weights(model)).norm()), *weights(model).tolist()]


def test_a_closure_is_evaluated_once_with_gradients_of_all_ranks() -> None:
    results = run(a_closure_is_evaluated)
    assert all(result == results[0] for result in results)
    # The second optimizer goes on with what the first one's names kept back.
    assert results[0][0] < 1.0


def sums_have_the_momentum_of_averages() -> None:
    """The sum of all ranks' gradients is four times their mean, which Adam does not notice."""
    hvd.init()
    results = []
    for op in (hvd.Average, hvd.Sum):
        model = make_model()
        named = [(f"{op}.{name}", p) for name, p in model.named_parameters()]
        inner = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-30)
        optimizer = hvd.DistributedOptimizer(
            inner, named, op=op, compression=hvd.Compression.adam(WARMUP, EVERY)
        )
        train(model, optimizer, range(8))
        results.append(weights(model))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_sums_are_as_good_as_averages() -> None:
    run(sums_have_the_momentum_of_averages)


# -- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "SGD is neither torch.optim.Adam nor AdamW"),
        (lambda p: torch.optim.NAdam(p), "NAdam is neither torch.optim.Adam nor AdamW"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "Adam has the option amsgrad"),
        (lambda p: torch.optim.AdamW(p, maximize=True), "AdamW has the option maximize"),
        (lambda p: torch.optim.AdamW(p, fused=True), "AdamW has the option fused"),
        (lambda p: torch.optim.Adam(p, eps=0.0), "an eps or a beta2 of 0"),
    ],
)
def test_other_optimizers_are_refused_with_a_reason(make: Any, reason: str) -> None:
    hvd.init()
    model = make_model()
    with pytest.raises(ValueError, match=f"{reason}.*; use Compression.int4"):
        hvd.DistributedOptimizer(make(model.parameters()), compression=hvd.Compression.adam)
    hvd.shutdown()


def test_numbers_and_operations_that_make_no_sense_are_refused() -> None:
    for numbers in ((0, 32), (100, 1)):
        with pytest.raises(ValueError, match="expected a number of at least 1, and one of"):
            hvd.Compression.adam(*numbers)
    hvd.init()
    with pytest.raises(ValueError, match=r"for torch\.optim\.Adam and AdamW, behind"):
        hvd.allreduce(torch.zeros(8), name="x", compression=hvd.Compression.adam())
    with pytest.raises(ValueError, match="needs op=Average or op=Sum"):
        hvd.DistributedOptimizer(
            adamw(make_model()), compression=hvd.Compression.adam, op=hvd.Adasum
        )
    hvd.shutdown()
