"""Trains a network on handwritten digits twice: with whole gradients, and with compressed ones.

    LIGHT_2D_ALLREDUCE=1 LIGHT_INTRA_SIZE=2 LIGHT_TOPK_THRESHOLD=16K LIGHT_TCP_RATE=12M \\
        lightccrun -np 4 python examples/pytorch_compression.py [--compression int4]

The variables make two "hosts" of two ranks out of this machine, which share no memory and whose
ranks send each other 12 MiB a second at most: a link of 200 Mbit/s. Without them this runs on real
hosts as it is. Data, network and devices are those of pytorch_digits.py: ranks train on GPUs where
there are some, or on CPUs with `--no-cuda`.

Both trainings start with the same weights and see the same images. At the end there is a table:
accuracy, time, and what a rank sent to other hosts. The exit code is 0 if the accuracies agree
within `--margin` and all ranks hold the same weights.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from pytorch_digits import (
    BATCH,
    check_replicas,
    choose_device,
    load,
    log,
    make_model,
    mean_of_ranks,
)
from torch import nn

import lightcc.torch as hvd

WAYS = {
    "int8": hvd.Compression.int8,
    "int4": hvd.Compression.int4,
    "topk": hvd.Compression.topk(0.01),  # Sends 1% of the elements; long trainings need no more.
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument(
        "--compression", choices=WAYS, default="int4", help="of the second training"
    )
    parser.add_argument("--margin", type=float, default=0.02, help="between the two accuracies")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU")
    return parser.parse_args()


def train(name, compression, epochs, device):
    """Returns the accuracy, the seconds of a step, and the bytes that a rank sent in a step."""
    (images, labels), (test_images, test_labels) = load(device)
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
    steps = 1437 // hvd.size() // BATCH  # Of an epoch; the same on all ranks.

    torch.manual_seed(0)
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        # A residual belongs to a name.
        named_parameters=[(f"{name}.{key}", p) for key, p in model.named_parameters()],
        compression=compression,  # The only line that differs.
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, epochs * steps)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    sent = hvd.stats()["network_bytes_sent"]
    begin = time.perf_counter()
    for epoch in range(epochs):
        total = 0.0
        for batch in torch.randperm(len(labels))[: steps * BATCH].split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        if epoch % 4 == 3:
            log(f"{name}: epoch {epoch + 1:2}, loss {mean_of_ranks(total / steps, 'loss'):.4f}")
    seconds = time.perf_counter() - begin
    sent = hvd.stats()["network_bytes_sent"] - sent

    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    check_replicas(model)
    count = epochs * steps
    return accuracy, seconds / count, mean_of_ranks(sent / count, "sent")


def main():
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)
    parameters = sum(p.numel() for p in make_model().parameters())
    device = choose_device(args.no_cuda)
    log(f"{hvd.size()} ranks train {parameters} parameters on {device.type}, on 1437 digits, twice")

    ways = {"dense": hvd.Compression.none, args.compression: WAYS[args.compression]}
    results = {name: train(name, way, args.epochs, device) for name, way in ways.items()}

    log(f"\n{'':12}{'accuracy':>10}{'time of a step':>18}{'sent by a rank in a step':>28}")
    for name, (accuracy, seconds, sent) in results.items():
        log(f"{name:12}{accuracy:>10.3f}{1e3 * seconds:>15.1f} ms{sent / 1e3:>25.1f} kB")
    dense, small = results.values()
    log(f"{'ratio':12}{'':10}{dense[1] / small[1]:>15.1f} x {dense[2] / max(small[2], 1):>25.1f} x")
    log("all ranks hold the same weights, bit for bit")
    hvd.shutdown()
    return 0 if small[0] >= dense[0] - args.margin else 1


if __name__ == "__main__":
    sys.exit(main())
