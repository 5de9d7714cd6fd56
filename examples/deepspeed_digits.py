"""Trains on handwritten digits with DeepSpeed's ZeRO, whose ranks talk through lightcc.

    torchrun --nproc-per-node 2 examples/deepspeed_digits.py [--stage 1] [--backend gloo]

ZeRO-1 shards the optimizer's state over the ranks, ZeRO-2 the gradients too, and ZeRO-3 the weights
as well. The backend's name is all that lightcc needs. On CPUs DeepSpeed also compiles an operation
of its own for shared memory, which takes minutes at the first start. ZeRO does not use it, so the
line before leaves it out.
"""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, choices=range(4), default=2, help="ZeRO's stage")
parser.add_argument("--backend", default="lightcc", help="gloo: to compare with")
parser.add_argument("--epochs", type=int, default=5)
arguments = parser.parse_args()

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(arguments.backend)  # The line for lightcc.

digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).flatten(1)
labels = torch.tensor(digits.target)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
engine, _, batches, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
    training_data=TensorDataset(images[360:], labels[360:]),
    config={
        "train_micro_batch_size_per_gpu": 32,
        "zero_optimization": {"stage": arguments.stage},
        "zero_allow_untested_optimizer": True,
    },
)
for _ in range(arguments.epochs):
    for x, y in batches:
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()

with torch.no_grad():
    right = (engine(images[:360]).argmax(1) == labels[:360]).sum()
if dist.get_rank() == 0:
    ranks = f"{dist.get_backend()}, {dist.get_world_size()} ranks"
    print(f"{ranks}: accuracy {right.item() / 360:.3f} on 360 images with ZeRO-{arguments.stage}")
dist.destroy_process_group()
