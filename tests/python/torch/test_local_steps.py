"""LocalSteps: workers that train on their own, and combine what they have done every few steps."""

from __future__ import annotations

import copy
import os
import pickle
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
from replicas import batch, check_identical, joined_batch, make_model, mean_loss, sgd
from torch import nn

import lightcc.torch as hvd
from lightcc.testing import RankProcesses, spawn_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.multiproc

HOSTS = (0, 0, 1, 1)
EVERY, RATE, MOMENTUM = 3, 0.7, 0.9
ALL_SIZES = {"LIGHT_TOPK_THRESHOLD": "0"}  # May be compressed.


def run(program: Any, *arguments: Any, hosts: tuple[int, ...] = HOSTS, **env: str) -> list[Any]:
    return spawn_ranks(program, len(hosts), *arguments, env={**ALL_SIZES, **env}, hosts=hosts)


def local_steps(model: nn.Module, every: int = EVERY, **options: Any) -> hvd.LocalSteps:
    options.setdefault("compression", hvd.Compression.none)
    return hvd.LocalSteps(
        sgd(list(model.parameters())),
        model.named_parameters(),
        every=every,
        outer_lr=RATE,
        outer_momentum=MOMENTUM,
        **options,
    )


def train(model: nn.Module, optimizer: Any, steps: range, ranks: list[int] | None = None) -> None:
    for step in steps:
        optimizer.zero_grad()
        data = batch(step, hvd.rank()) if ranks is None else joined_batch(step, ranks)
        mean_loss(model, data).backward()
        optimizer.step()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# -- What it computes -----------------------------------------------------------------------------


def by_the_formulas(
    workers: list[list[int]], rounds: int, every: tuple[int, ...] = (EVERY, EVERY, EVERY, EVERY)
) -> torch.Tensor:
    """Trains all workers in this process, and returns the weights after the last outer step."""
    models = [make_model() for _ in workers]
    inner = [sgd(list(model.parameters())) for model in models]
    start, momentum = flat(models[0]), torch.zeros_like(flat(models[0]))
    steps = every[: len(workers)]
    for number in range(rounds):
        for model, optimizer, ranks, own in zip(models, inner, workers, steps, strict=True):
            train(model, optimizer, range(number * own, (number + 1) * own), ranks)
        moved = [own * (start - flat(model)) for model, own in zip(models, steps, strict=True)]
        delta = sum(moved) / sum(steps)
        momentum = MOMENTUM * momentum + delta
        start = start - RATE * (delta + MOMENTUM * momentum)
        for model in models:
            nn.utils.vector_to_parameters(start.clone(), model.parameters())
    return start


def trained_by_hosts_and_by_ranks() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    hvd.init()
    pairs = []
    for workers, lists in (("hosts", [[0, 1], [2, 3]]), ("ranks", [[0], [1], [2], [3]])):
        model = make_model()
        train(model, local_steps(model, workers=workers), range(3 * EVERY))
        check_identical(model)
        pairs.append((flat(model), by_the_formulas(lists, 3)))
    return pairs


def test_weights_are_those_of_the_formulas() -> None:
    for pairs in run(trained_by_hosts_and_by_ranks):
        for actual, expected in pairs:
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def with_workers_that_differ() -> None:
    """A slow worker makes fewer steps, and weighs less. One that has joined is left out."""
    hvd.init()
    every, model = (2, 4)[hvd.rank()], make_model()
    train(model, local_steps(model, every=every), range(2 * every))
    expected = by_the_formulas([[0], [1]], 2, (2, 4))
    torch.testing.assert_close(flat(model), expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="`every` is from 2 to 9 on these ranks"):
        train(model, local_steps(model, every=(2, 9)[hvd.rank()]), range(9))
    alone = make_model()
    optimizer = local_steps(alone)
    if hvd.rank() == 0:
        train(alone, optimizer, range(EVERY))
        torch.testing.assert_close(flat(alone), by_the_formulas([[0]], 1), rtol=1e-9, atol=1e-9)
    hvd.join()


def beside_the_next_step() -> None:
    """What a worker does while an exchange is under way is added to where that ends."""
    hvd.init()
    model, own = make_model(), make_model()
    optimizer = local_steps(model, overlap=True)
    train(model, optimizer, range(EVERY))
    inner = sgd(list(own.parameters()))
    train(own, inner, range(EVERY))
    begun = flat(own)
    assert torch.equal(flat(model), begun)  # Still this worker's.
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(EVERY, EVERY + 1))
    train(own, inner, range(EVERY, EVERY + 1))
    expected = by_the_formulas([[0], [1]], 1) + flat(own) - begun
    torch.testing.assert_close(flat(model), expected, rtol=1e-9, atol=1e-9)
    train(model, optimizer, range(EVERY + 1, 2 * EVERY))
    optimizer.outer_step()  # Waits for the second one, of which nothing is left.
    check_identical(model)
    # An exchange under way is no part of a state: it is made again.
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    optimizer.outer_step()
    torch.testing.assert_close(flat(model), by_the_formulas([[0], [1]], 1), rtol=1e-9, atol=1e-9)


def with_one_that_is_new() -> None:
    """It starts where the others combine what they have done, and is left out of their mean."""
    hvd.init()
    model = make_model()
    start = flat(model).clone()
    optimizer = local_steps(model)
    if hvd.rank() < 2:
        train(model, optimizer, range(1 + hvd.rank()))
    else:
        with torch.no_grad():
            next(model.parameters()).fill_(7.0)
    moved = hvd.allgather((start - flat(model))[None])
    optimizer.take_over(0)
    delta = (moved[0] + 2 * moved[1]) / 3
    expected = start - RATE * (1 + MOMENTUM) * delta
    torch.testing.assert_close(flat(model), expected, rtol=1e-9, atol=1e-9)
    check_identical(model)
    train(model, optimizer, range(EVERY))
    check_identical(model)


@pytest.mark.parametrize(
    ("program", "count"),
    [(with_workers_that_differ, 2), (beside_the_next_step, 2), (with_one_that_is_new, 3)],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_outer_steps(program: Any, count: int) -> None:
    run(program, hosts=tuple(range(count)))


def dense_first() -> None:
    """Gradients of all ranks, then those of a worker; a state goes into the phase that it is of."""
    hvd.init()
    model, other = make_model(), make_model()
    optimizer = local_steps(model, dense_steps=4)
    train(model, optimizer, range(2))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(2, 4))
    train(other, hvd.DistributedOptimizer(sgd(list(other.parameters()))), range(4))
    assert torch.equal(flat(model), flat(other))
    check_identical(model)
    momenta = [optimizer.state[p]["momentum_buffer"].flatten() for p in model.parameters()]
    everybody = hvd.allgather(torch.cat(momenta)[None])
    assert torch.equal(everybody, everybody[:1].expand_as(everybody))
    train(model, optimizer, range(4, 5))
    apart = hvd.allgather(flat(model)[None])
    assert torch.equal(apart[0], apart[1])
    assert not torch.equal(apart[0], apart[2])
    train(model, optimizer, range(5, 4 + EVERY))
    check_identical(model)
    # Back into the dense phase, and on from there.
    again = make_model()
    again.load_state_dict(saved[0])
    restored = local_steps(again, dense_steps=4)
    restored.load_state_dict(optimizer.state_dict())
    restored.load_state_dict(saved[1])
    train(again, restored, range(2, 4 + EVERY))
    assert torch.equal(flat(model), flat(again))


def with_two_optimizers() -> None:
    """One for matrices, and one for the rest, are as one for all where they are of one kind."""
    hvd.init()
    ends = []
    optimizer: Any = None
    alone: Any = None
    for several in (False, True):
        alone, model = optimizer, make_model()
        parts = [
            [p for p in model.parameters() if (p.ndim > 1) == whole] for whole in (True, False)
        ]
        given: Any = [sgd(part) for part in parts] if several else sgd(list(model.parameters()))
        optimizer = hvd.LocalSteps(
            given,
            model.named_parameters(),
            every=2,
            dense_steps=2,
            compression=hvd.Compression.none,
        )
        train(model, optimizer, range(3))
        state = pickle.loads(pickle.dumps(optimizer.state_dict()))
        optimizer.load_state_dict(state)
        hvd.broadcast_optimizer_state(optimizer, 0)
        train(model, optimizer, range(3, 6))
        ends.append(flat(model))
    torch.testing.assert_close(ends[0], ends[1])
    with pytest.raises(ValueError, match=r"has 2 optimizers: step.. takes no closure"):
        optimizer.step(lambda: None)
    with pytest.raises(ValueError, match="has 2 optimizers: the state is of 1"):
        optimizer.load_state_dict(alone.state_dict())


@pytest.mark.parametrize("program", [dense_first, with_two_optimizers], ids=lambda it: it.__name__)
def test_training_goes_on(program: Any) -> None:
    run(program)


def between_outer_steps() -> tuple[bytes, bytes, int]:
    hvd.init()
    model = make_model(torch.float32)
    optimizer = local_steps(model, compression=hvd.Compression.int8)
    for step in range(EVERY + 1):
        optimizer.zero_grad()
        mean_loss(model, batch(step, hvd.rank(), torch.float32)).backward()
        optimizer.step()
    apart = flat(model).numpy().tobytes()
    optimizer.outer_step()
    optimizer.outer_step()  # Has nothing to do.
    return apart, flat(model).numpy().tobytes(), hvd.stats()["compressed_tensors"]


def test_workers_are_apart_between_outer_steps_and_the_same_after_one() -> None:
    """The variable would compress gradients between hosts; within one nothing is."""
    results = run(between_outer_steps, LIGHT_TOPK_ALLREDUCE="1")
    apart = [result[0] for result in results]
    assert apart[0] == apart[1] != apart[2] == apart[3]
    assert len({result[1] for result in results}) == 1
    assert [result[2] for result in results] == [2] * 4  # A row each time.


def bf16_weights() -> tuple[float, bool]:
    hvd.init()
    model = nn.Linear(8, 8, bias=False).to(torch.bfloat16)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.LocalSteps(
        torch.optim.SGD(model.parameters(), lr=1.0),
        model.named_parameters(),
        every=1,
        compression=hvd.Compression.int8,
    )
    with torch.no_grad():
        model.weight.fill_(256.0)
    for _ in range(4):  # Steps that bfloat16 cannot tell from none, after halving by two ranks.
        model.weight.grad = torch.full_like(model.weight, 1.0 if hvd.rank() == 0 else 0.0)
        optimizer.step()
    return float(model.weight[0, 0]), bool((model.weight == model.weight[0, 0]).all())


def test_outer_steps_too_small_for_bfloat16_add_up() -> None:
    assert run(bf16_weights, hosts=(0, 1)) == [(254.0, True)] * 2


# -- State ----------------------------------------------------------------------------------------


def continued_from_state() -> tuple[torch.Tensor, torch.Tensor]:
    hvd.init()
    model = make_model()
    optimizer = local_steps(model)
    train(model, optimizer, range(EVERY + 1))
    other = copy.deepcopy(model)
    restored = local_steps(other)
    restored.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    train(model, optimizer, range(EVERY + 1, 2 * EVERY))
    train(other, restored, range(EVERY + 1, 2 * EVERY))
    return flat(model), flat(other)


def state_from_rank_0() -> torch.Tensor:
    hvd.init()
    model = make_model()
    optimizer = local_steps(model, workers="ranks")
    if hvd.rank() == 0:  # As a job that rank 0 has read from a file.
        alone = make_model()
        saved = sgd(list(alone.parameters()))
        train(alone, saved, range(2))
        model.load_state_dict(alone.state_dict())
        optimizer.load_state_dict(saved.state_dict())
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    train(model, optimizer, range(EVERY))
    check_identical(model)
    return torch.cat([optimizer.state[p]["momentum_buffer"].flatten() for p in model.parameters()])


def restored_by_an_elastic_state() -> list[torch.Tensor]:
    hvd.init()
    model = make_model()
    optimizer = local_steps(model, workers="ranks")
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
    train(model, optimizer, range(EVERY + 1))
    state.save()
    ends = []
    for _ in range(3):
        train(model, optimizer, range(EVERY + 1, 2 * EVERY))
        ends.append(flat(model).clone())
        state.restore()
    return ends


def states() -> tuple[Any, ...]:
    found: list[Any] = []
    for get in (continued_from_state, state_from_rank_0, restored_by_an_elastic_state):
        found.append(get())
        hvd.barrier()
        hvd.shutdown()
    return tuple(found)


def test_states_go_on_bit_for_bit_are_broadcast_and_go_back() -> None:
    results = run(states, hosts=(0, 1))
    for (expected, actual), _, ends in results:
        assert torch.equal(expected, actual)
        assert torch.equal(ends[0], ends[1])
        assert torch.equal(ends[0], ends[2])
    momenta = [result[1] for result in results]
    assert not torch.equal(momenta[0], momenta[1])  # Each worker's own.


SPARSE: dict[str, Any] = {"compression": hvd.Compression.topk(0.25, values="2bit")}


def saved_after_an_outer_step(folder: Path) -> None:
    hvd.init()
    model = make_model(torch.float32)
    optimizer = local_steps(model, **SPARSE)
    for step in range(EVERY):
        optimizer.zero_grad()
        mean_loss(model, batch(step, hvd.rank(), torch.float32)).backward()
        optimizer.step()
    if hvd.rank() == 0:
        torch.save((model.state_dict(), optimizer.state_dict()), folder / "checkpoint")
    hvd.save_compression_state(folder)


def loaded_on_other_hosts(folder: Path) -> None:
    hvd.init()
    model = make_model(torch.float32)
    optimizer = local_steps(model, **SPARSE)
    parameters, state = torch.load(folder / "checkpoint")
    model.load_state_dict(parameters)
    optimizer.load_state_dict(state)
    assert hvd.load_compression_state(folder) == 1  # The row's residual.
    for step in range(EVERY):
        optimizer.zero_grad()
        mean_loss(model, batch(step, hvd.rank(), torch.float32)).backward()
        optimizer.step()
    check_identical(model)


def test_a_checkpoint_goes_on_with_another_number_of_hosts(tmp_path: Path) -> None:
    run(saved_after_an_outer_step, tmp_path)
    run(loaded_on_other_hosts, tmp_path, hosts=(0, 1, 2))


@pytest.mark.usefixtures("world")
def test_a_state_of_other_parameters_is_refused() -> None:
    state = local_steps(make_model()).state_dict()
    state["local_steps"]["starts"][0] = torch.zeros(2)
    optimizer = local_steps(make_model())
    with pytest.raises(ValueError, match=r"has a tensor of shape \(2,\).* for parameter 0"):
        optimizer.load_state_dict(state)


# -- Around it ------------------------------------------------------------------------------------


def scaled_with_an_overflow() -> tuple[torch.Tensor, float]:
    hvd.init()
    model = make_model()
    optimizer = local_steps(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(2 * EVERY):
        optimizer.zero_grad()
        loss = mean_loss(model, batch(step, hvd.rank()))
        if step == 1 and hvd.rank() == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    check_identical(model)
    return flat(model), scaler.get_scale()


def clipped_and_scheduled() -> tuple[float, float]:
    hvd.init()
    model = make_model()
    optimizer = local_steps(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    mean_loss(model, batch(0, hvd.rank())).backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with optimizer.skip_synchronize():
        optimizer.step()
    scheduler.step()
    hvd.barrier()
    return float(norm), optimizer.optimizer.param_groups[0]["lr"]


def scaled_clipped_and_scheduled() -> tuple[Any, Any]:
    scaled = scaled_with_an_overflow()
    hvd.barrier()
    hvd.shutdown()
    return scaled, clipped_and_scheduled()


def test_a_skipped_step_counts_on_all_hosts_and_clipping_is_of_the_worker() -> None:
    found = run(scaled_clipped_and_scheduled)
    scaled = [result[0] for result in found]
    assert all(bool(torch.isfinite(weights).all()) for weights, _ in scaled)
    assert [scale for _, scale in scaled] == [2.0, 2.0, 4.0, 4.0]
    results = [result[1] for result in found]
    norms = [norm for norm, _ in results]
    assert norms[0] == norms[1] != norms[2] == norms[3]
    assert [rate for _, rate in results] == [0.05] * 4


def until_a_rank_dies() -> tuple[bool, int]:
    hvd.init()
    model = make_model()
    optimizer = local_steps(model)
    train(model, optimizer, range(EVERY))
    train(model, optimizer, range(EVERY, 2 * EVERY - 1))
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    own = make_model()
    own.load_state_dict(model.state_dict())
    inner = sgd(list(own.parameters()))
    inner.load_state_dict(copy.deepcopy(optimizer.optimizer.state_dict()))
    train(own, inner, range(2 * EVERY - 1, 2 * EVERY))
    with pytest.raises(hvd.HorovodInternalError):
        train(model, optimizer, range(2 * EVERY - 1, 2 * EVERY))
    return torch.equal(flat(model), flat(own)), optimizer.state_dict()["local_steps"]["count"]


def test_a_dead_worker_leaves_the_others_with_their_own_steps() -> None:
    with RankProcesses(until_a_rank_dies, 3, env=ALL_SIZES, hosts=(0, 1, 2)) as ranks:
        results = ranks.wait(60)
    assert [results[rank].value for rank in (0, 2)] == [(True, EVERY)] * 2


def refused() -> list[str]:
    hvd.init()
    model = make_model()
    texts = []

    def refuse(error: type[Exception], optimizer: Any = None, **options: Any) -> None:
        optimizer = optimizer or sgd(list(model.parameters()))
        with pytest.raises(error) as caught:
            hvd.LocalSteps(optimizer, model.named_parameters(), **options)
        texts.append(str(caught.value))

    refuse(ValueError, every=0)
    refuse(ValueError, outer_lr=0.0)
    refuse(ValueError, outer_momentum=1.0)
    refuse(ValueError, dense_steps=-1)
    refuse(ValueError, workers="nodes")
    refuse(ValueError, compression=hvd.Compression.auto())
    refuse(TypeError, compression="int8")
    refuse(TypeError, model)
    made = local_steps(model)
    refuse(ValueError, made)
    refuse(ValueError, made.optimizer)
    refuse(ValueError, dense_steps=100, total_steps=100)
    for copier in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError) as caught:
            copier(made)
        texts.append(str(caught.value))
    return texts


def test_what_does_not_suit_is_refused_with_what_is_allowed() -> None:
    texts = run(refused, hosts=(0, 0))[0]
    for part, text in zip(
        [
            "every is 0",
            "outer_lr is 0.0",
            "outer_momentum is 1.0",
            "dense_steps is -1",
            "'hosts', 'ranks', and what fsdp.replicate() returned",
            "auto compression is for DistributedOptimizer",
            "compression is 'int8'",
            "expected a torch.optim.Optimizer",
            "distributed already",
            "distributed already",
            "total_steps is 100: expected more than the 100 dense steps",
            "state_dict()",
            "state_dict()",
        ],
        texts,
        strict=True,
    ):
        assert part in text
