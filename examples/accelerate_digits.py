"""Trains on handwritten digits with Hugging Face accelerate, whose ranks talk through lightcc.

    torchrun --nproc-per-node 2 examples/accelerate_digits.py [--topk 0.05]

accelerate knows the backends of CPUs by name, so the process group is made before the Accelerator,
which takes it as it is. That line is all that lightcc needs. `--topk` adds DDP's hook, which sends
a share of each gradient's elements between hosts.
"""

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightcc.torch import ddp_hooks

parser = argparse.ArgumentParser()
parser.add_argument("--topk", type=float, help="share of a gradient's elements that is sent")
parser.add_argument("--epochs", type=int, default=10)
arguments = parser.parse_args()

dist.init_process_group("lightcc")  # The line for lightcc.
accelerator = Accelerator(cpu=True)

digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).flatten(1)
labels = torch.tensor(digits.target)
batches = DataLoader(TensorDataset(images[360:], labels[360:]), batch_size=32, shuffle=True)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
if arguments.topk:
    model.register_comm_hook(
        ddp_hooks.TopKState(model, ratio=arguments.topk), ddp_hooks.topk_2d_hook
    )

for _ in range(arguments.epochs):
    for x, y in batches:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()

with torch.no_grad():
    right = (model(images[:360]).argmax(1) == labels[:360]).sum()
right = accelerator.reduce(right, "sum") / accelerator.num_processes
backend, ranks = dist.get_backend(), accelerator.num_processes
accelerator.print(f"{backend}, {ranks} ranks: accuracy {right.item() / 360:.3f} on 360 images")
accelerator.end_training()
