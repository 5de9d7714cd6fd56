"""Trains on handwritten digits with pytorch-ignite, whose ranks talk through lightcc.

    lightccrun --horovod -np 2 python examples/ignite_digits.py [--topk 0.05]

It is a script for Horovod, and no line is lightcc's. `--topk` sends a share of each gradient's
elements between hosts.
"""

import argparse

import horovod.torch as hvd
import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--topk", type=float, help="share of a gradient's elements that is sent")
arguments = parser.parse_args()


def train(_local_rank):
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).flatten(1)
    rows = TensorDataset(images, torch.tensor(digits.target))
    parts = random_split(rows, [1437, 360], torch.Generator().manual_seed(0))
    batches = idist.auto_dataloader(parts[0], batch_size=64, shuffle=True)
    tests = idist.auto_dataloader(parts[1], batch_size=360)

    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = idist.auto_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    more = {"compression": hvd.Compression.topk(arguments.topk)} if arguments.topk else {}
    optimizer = idist.auto_optim(optimizer, named_parameters=model.named_parameters(), **more)

    trainer = create_supervised_trainer(model, optimizer, nn.functional.cross_entropy)
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})

    @trainer.on(Events.COMPLETED)
    def report(_engine):
        accuracy = evaluator.run(tests).metrics["accuracy"]  # Of all ranks.
        if idist.get_rank() == 0:
            ranks = f"{idist.backend()}, {idist.get_world_size()} ranks"
            print(f"{ranks}: accuracy {accuracy:.3f} on 360 images")

    trainer.run(batches, max_epochs=10)


with idist.Parallel(backend="horovod") as parallel:
    parallel.run(train)
