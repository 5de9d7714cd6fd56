"""What is built on torch.distributed runs on the backend: replicas, shards, pipelines, and more."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from groups import start
from processes import run_to_end
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook as post_local,
    powerSGD_hook as power,
    quantization_hooks as quantization,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

import lightcc.torch as hvd
from lightcc.testing import RankProcesses, spawn_ranks
from lightcc.torch import ddp_hooks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, pytest.mark.filterwarnings("ignore::FutureWarning")]

STEPS = 4


class Branches(nn.Module):
    """Three layers, of which a pass may leave out one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.aside, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, aside: bool = True) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        out: torch.Tensor = self.last(torch.tanh(self.aside(hidden)) if aside else hidden)
        return out


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(5, 6, generator=generator), torch.randn(5, 2, generator=generator)


def train(model: Any, optimizer: Any, rank: int, size: int, **options: Any) -> None:
    """Trains on this rank's batches; with `size`, on those of all ranks, as one process would."""
    for step in range(STEPS):
        optimizer.zero_grad()
        for each in range(size) if size else [rank]:
            x, y = batch(step, each)
            (nn.functional.mse_loss(model(x, **options), y) / (size or 1)).backward()
        optimizer.step()


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def alone(size: int, **options: Any) -> torch.Tensor:
    """Returns the weights that one process gets from the batches of all ranks."""
    model = Branches()
    train(model, torch.optim.SGD(model.parameters(), lr=0.2), 0, size, **options)
    return weights(model)


def replicas(store: str) -> None:
    rank, size = start(store)
    for options in (
        {},
        {"static_graph": True},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001},
        {"find_unused_parameters": True},
    ):
        model = DistributedDataParallel(Branches(), **options)
        arguments = {"aside": False} if "find_unused_parameters" in options else {}
        train(model, torch.optim.SGD(model.parameters(), lr=0.2), rank, 0, **arguments)
        torch.testing.assert_close(weights(model), alone(size, **arguments))

    def hook(_: None, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        work: Any = dist.all_reduce(bucket.buffer().div_(size), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])  # type: ignore[no-any-return]

    model = DistributedDataParallel(Branches())
    hook.__annotations__.clear()
    model.register_comm_hook(None, hook)
    train(model, torch.optim.SGD(model.parameters(), lr=0.2), rank, 0)
    torch.testing.assert_close(weights(model), alone(size))

    # All ranks share this host, so that what is compressed is sent whole.
    model = DistributedDataParallel(Branches())
    model.register_comm_hook(ddp_hooks.TopKState(model, 0.1), ddp_hooks.topk_2d_hook)
    train(model, torch.optim.SGD(model.parameters(), lr=0.2), rank, 0)
    torch.testing.assert_close(weights(model), alone(size))


def gathered_shards(store: str) -> None:
    rank, size = start(store)
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{it}/cpu" for it in range(size)])
    sharded = sharded_tensor.zeros(spec, 2 * size, 3)
    sharded.local_shards()[0].tensor.fill_(rank + 1)
    whole = torch.empty(2 * size, 3)
    sharded.gather(0, whole if rank == 0 else None)
    if rank == 0:
        assert whole[:, 0].tolist() == [1, 1, 2, 2]


def test_shards_are_gathered_where_there_is_no_gpu(tmp_path: Path) -> None:
    spawn_ranks(gathered_shards, 2, os.fspath(tmp_path / "store"))


def test_ddp(tmp_path: Path) -> None:
    spawn_ranks(replicas, 2, os.fspath(tmp_path / "store"))


def hook_of(name: str, group: Any) -> tuple[Any, Any]:
    """Returns a hook of torch and its state, which belongs to `group`."""
    if name == "post_local":
        alone, _ = dist.new_subgroups(1)
        return post_local.PostLocalSGDState(group, alone, 2), post_local.post_localSGD_hook
    if "powerSGD" in name:
        state = power.PowerSGDState(group, 1, start_powerSGD_iter=2, min_compression_rate=0.5)
        hook: Any = getattr(power, name.removesuffix(" in fp16"))
        return state, default_hooks.fp16_compress_wrapper(hook) if "fp16" in name else hook
    return group, getattr(quantization if "quantization" in name else default_hooks, name)


def trained_by(name: str, group: Any, **options: Any) -> torch.Tensor:
    torch.manual_seed(5)  # PowerSGD draws numbers.
    model = DistributedDataParallel(Branches(), process_group=group, **options)
    model.register_comm_hook(*hook_of(name, group))
    train(model, torch.optim.SGD(model.parameters(), lr=0.2), dist.get_rank(), 0)
    return weights(model)


def hooks_of_torch(store: str) -> None:
    _, size = start(store)
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    for name in (
        "allreduce_hook",
        "fp16_compress_hook",
        "powerSGD_hook",
        "powerSGD_hook in fp16",
        "quantization_pertensor_hook",
        "quantization_perchannel_hook",
        "post_local",
    ):
        if "quantization" in name:  # Hooks that do not run on gloo.
            torch.testing.assert_close(trained_by(name, ours), alone(size), atol=0.02, rtol=0)
        else:
            torch.testing.assert_close(trained_by(name, ours), trained_by(name, gloo))
        # Callbacks of several buckets start their operations in any order.
        several = trained_by(name, ours, bucket_cap_mb=0.0001, static_graph=True)
        if name != "post_local":
            copies = [torch.empty_like(several) for _ in range(size)]
            dist.all_gather(copies, several)
            assert torch.equal(copies[0], copies[1]), name
    model = DistributedDataParallel(Branches())
    model._register_fused_optim(torch.optim.SGD, lr=0.2)
    train(model, torch.optim.SGD(model.parameters(), lr=0.0), dist.get_rank(), 0)
    torch.testing.assert_close(weights(model), alone(size))


def test_ddp_with_hooks_of_torch(tmp_path: Path) -> None:
    spawn_ranks(hooks_of_torch, 2, os.fspath(tmp_path / "store"))


def joins(store: str) -> None:
    rank, _ = start(store)
    model = DistributedDataParallel(Branches())
    with model.join():
        for step in range(2 + rank):
            x, y = batch(step, rank)
            nn.functional.mse_loss(model(x), y).backward()
    embedding = DistributedDataParallel(nn.Embedding(5, 2, sparse=True))
    embedding(torch.tensor([rank, 4])).sum().backward()
    gradient = embedding.module.weight.grad.to_dense()
    assert gradient[:, 0].tolist() == [0.5, 0.5, 0.0, 0.0, 1.0]


def test_ddp_with_uneven_inputs_and_sparse_gradients(tmp_path: Path) -> None:
    spawn_ranks(joins, 2, os.fspath(tmp_path / "store"))


def dead_replica(store: str) -> str:
    rank, _ = start(store)
    model = DistributedDataParallel(Branches())
    if rank == 1:
        os._exit(3)
    x, y = batch(0, rank)
    loss = nn.functional.mse_loss(model(x), y)
    with pytest.raises(RuntimeError, match=r"PeerFailedError|rank 1") as caught:
        loss.backward()
    return str(caught.value)


def test_ddp_where_a_rank_dies(tmp_path: Path) -> None:
    with RankProcesses(dead_replica, 2, os.fspath(tmp_path / "store")) as ranks:
        results = ranks.wait(timeout_s=60)
    assert "rank 1" in (results[0].value or ""), results[0].describe()


def shards(store: str) -> None:
    from torch.distributed.fsdp import fully_shard

    rank, size = start(store)
    model: Any = Branches()
    for layer in (model.first, model.aside, model.last):
        fully_shard(layer)
    fully_shard(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.2), rank, 0)
    whole = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(whole, alone(size))


def test_fsdp2(tmp_path: Path) -> None:
    spawn_ranks(shards, 2, os.fspath(tmp_path / "store"))


def tensor_parallel(store: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    _, size = start(store)
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(1)
    model: Any = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    x = torch.randn(3, 6)
    expected = model(x)
    expected.sum().backward()
    gradient = model[0].weight.grad.clone()
    model.zero_grad()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    got = model(x)
    got.sum().backward()
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(model[0].weight.grad.full_tensor(), gradient)
    norm: Any = parallelize_module(nn.LayerNorm(4), mesh, SequenceParallel())
    rows = torch.randn(2, 2 * size, 4, generator=torch.Generator().manual_seed(5))
    part = rows.chunk(size, dim=1)[dist.get_rank()]
    torch.testing.assert_close(norm(part).full_tensor(), nn.LayerNorm(4)(rows))


def test_tensor_parallel(tmp_path: Path) -> None:
    spawn_ranks(tensor_parallel, 2, os.fspath(tmp_path / "store"))


def pipeline(store: str) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank, size = start(store)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(7))
    y = torch.zeros(8, 6)
    for schedule_of in (ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(2)
        layers = [nn.Linear(6, 6) for _ in range(size)]
        whole = nn.Sequential(*layers)
        nn.functional.mse_loss(whole(x), y).backward()
        expected = layers[rank].weight.grad
        assert expected is not None
        expected = expected.clone()
        whole.zero_grad()
        stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
        schedule = schedule_of(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=y)
        else:
            schedule.step()
        torch.testing.assert_close(layers[rank].weight.grad, expected)


def test_pipelines(tmp_path: Path) -> None:
    spawn_ranks(pipeline, 3, os.fspath(tmp_path / "store"))


def optimizer_shards(store: str, folder: str) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank, size = start(store)
    model = DistributedDataParallel(Branches())
    optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, optimizer, rank, 0)
    plain = Branches()
    train(plain, torch.optim.Adam(plain.parameters(), lr=0.01), 0, size)
    torch.testing.assert_close(weights(model), weights(plain))
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        assert len(optimizer.state_dict()["state"]) == 6

    dcp: Any = checkpoint
    sharded: Any = fully_shard(plain)
    dcp.save({"model": sharded.state_dict()}, checkpoint_id=folder)
    fresh: Any = fully_shard(Branches())
    state = {"model": fresh.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    for ours, theirs in zip(fresh.parameters(), sharded.parameters(), strict=True):
        assert torch.equal(ours.full_tensor(), theirs.full_tensor())


def test_zero_redundancy_and_checkpoints(tmp_path: Path) -> None:
    spawn_ranks(optimizer_shards, 2, os.fspath(tmp_path / "store"), os.fspath(tmp_path / "saved"))


def reduce_or_fail() -> tuple[float, int]:
    dist.init_process_group("lightcc")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
        os._exit(5)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor.item(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def launch_as_torchrun() -> dict[int, tuple[float, int]]:
    """Returns what the ranks return, which torchrun's agent forks from this process."""
    for name in [name for name in os.environ if name.startswith(("LIGHT_", "HOROVOD_"))]:
        del os.environ[name]  # This process is no rank of theirs.
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=1,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
    )
    results: dict[int, tuple[float, int]] = elastic_launch(config, reduce_or_fail)()
    return results


def test_ranks_that_the_agent_of_torchrun_starts_anew_meet() -> None:
    assert spawn_ranks(launch_as_torchrun, 1) == [{0: (2.0, 1), 1: (2.0, 1)}]


PROGRAM = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("lightcc")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    os._exit(5)
import lightcc.torch as hvd
t = torch.ones(1)
dist.all_reduce(t)
sys.stdout.write(f"rank {dist.get_rank()} {t.item()} {hvd.size()}\\n")
dist.destroy_process_group()
"""


@pytest.mark.slow  # The same with fresh processes, each of which imports torch.
def test_torchrun_starts_anew_after_a_failure(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    done = run_to_end([*command, "--standalone", "--max-restarts=1", program], timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {line for line in done.stdout.splitlines() if line.startswith("rank")} == {
        "rank 0 2.0 2",
        "rank 1 2.0 2",
    }


def beside_horovods_names(store: str) -> None:
    rank, size = start(store)
    model = Branches()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.2), model.named_parameters()
    )
    train(model, optimizer, rank, 0)
    torch.testing.assert_close(weights(model), alone(size))
    dist.barrier()


def test_the_names_of_horovod_work_on_the_same_ranks(tmp_path: Path) -> None:
    spawn_ranks(beside_horovods_names, 2, os.fspath(tmp_path / "store"))
