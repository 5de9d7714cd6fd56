"""Trains a convolutional network on handwritten digits with torch, data-parallel.

    lightccrun -np 2 python examples/pytorch_digits.py [--epochs 12] [--accuracy 0.96]

The data are the 1797 images that scikit-learn ships (UCI's digits, 8 x 8 pixels); 360 of them are
kept for the test. Each rank trains on a GPU where there is one, or on the CPU with `--no-cuda`. At
the end all ranks prove that they hold the same weights, bit for bit, and say how much of the time
that gradients were on their way was hidden behind the backward pass. The exit code is 0 if the
accuracy was reached and the weights agree.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import lightcc.torch as hvd

BATCH = 32  # Images of one rank.
EPOCHS = 12


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--accuracy", type=float, help="to show in the test (0.96; 0 if shorter)")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU")
    args = parser.parse_args()
    if args.accuracy is None:
        args.accuracy = 0.96 if args.epochs >= EPOCHS else 0.0
    return args


def choose_device(no_cuda):
    """Returns the GPU of this rank's number on its host, or the CPU. Ranks may share GPUs."""
    if no_cuda or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    return torch.device("cuda")


def load(device):
    """Returns (images, labels) for training, and for the test; the same on all ranks."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16, dtype=torch.float32, device=device)
    images, labels = images.unsqueeze(1), torch.tensor(digits.target[order], device=device)
    return (images[360:], labels[360:]), (images[:360], labels[:360])


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


class Stopwatch:
    """Adds up how long gradients are on their way, and how long step() waits for them.

    A step's gradients are on their way from the moment that the first one, the last layer's, is
    there, until synchronize() returns.
    """

    def __init__(self, last_parameter):
        self.in_flight = self.waited = self._start = 0.0
        last_parameter.register_post_accumulate_grad_hook(self._first_gradient)

    def _first_gradient(self, _):
        self._start = time.perf_counter()

    def synchronize(self, optimizer):
        begin = time.perf_counter()
        optimizer.synchronize()
        end = time.perf_counter()
        self.waited += end - begin
        self.in_flight += end - self._start

    def hidden(self):
        return 1 - self.waited / self.in_flight


def mean_of_ranks(value, name):
    return hvd.allreduce(torch.tensor(float(value)), name=name).item()


def log(text):
    if hvd.rank() == 0:
        print(text, flush=True)


def check_replicas(model):
    """Returns the digest of the weights; ends the job where ranks differ."""
    state = b"".join(tensor.cpu().numpy().tobytes() for tensor in model.state_dict().values())
    digests = hvd.allgather_object(hashlib.sha256(state).hexdigest())
    if len(set(digests)) != 1:
        sys.exit(f"weights differ between ranks: {digests}")
    return digests[0]


def main():
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    device = choose_device(args.no_cuda)
    (images, labels), (test_images, test_labels) = load(device)
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
    steps = 1437 // hvd.size() // BATCH  # The same on all ranks.

    torch.manual_seed(hvd.rank())  # Other weights on each rank ...
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # ... until here.
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    stopwatch = Stopwatch(list(model.parameters())[-1])

    parameters = sum(p.numel() for p in model.parameters())
    log(f"{hvd.size()} ranks train {parameters} parameters on {device.type}, on 1437 digits")
    begin = time.perf_counter()
    for epoch in range(args.epochs):
        total = 0.0
        for batch in torch.randperm(len(labels))[: steps * BATCH].split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()  # Sends each gradient as soon as it is there.
            stopwatch.synchronize(optimizer)  # step() would do it; here it is timed.
            with optimizer.skip_synchronize():
                optimizer.step()
            total += loss.item()
        log(f"epoch {epoch + 1:2}: loss {mean_of_ranks(total / steps, 'loss'):.4f}")
    seconds = time.perf_counter() - begin

    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    digest = check_replicas(model)
    hidden = mean_of_ranks(stopwatch.hidden(), "hidden")
    in_flight = mean_of_ranks(stopwatch.in_flight, "in_flight")
    waited = mean_of_ranks(stopwatch.waited, "waited")
    log(f"accuracy {accuracy:.3f} on 360 images not seen before ({args.accuracy:g} is asked for)")
    log(f"{args.epochs * steps * BATCH * hvd.size() / seconds:.0f} samples/s on {hvd.size()} ranks")
    log(
        f"gradients were on their way for {in_flight:.2f} s, and step() waited {waited:.2f} s for "
        f"them: {100 * hidden:.0f} % hidden behind the backward pass"
    )
    log(f"all ranks hold the same weights, bit for bit: {digest[:16]}")
    hvd.shutdown()
    return 0 if accuracy >= args.accuracy else 1


if __name__ == "__main__":
    sys.exit(main())
