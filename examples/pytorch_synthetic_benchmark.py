"""Measures how fast random data trains a known model, data-parallel.

    lightccrun -np 2 python examples/pytorch_synthetic_benchmark.py --model resnet50 --batch-size 8

Flags and output are those of Horovod's script of this name. Models: resnet50, resnet101, vgg16,
inception_v3 (an odd number of images of 299 pixels is fine, one is not), and transformer_xl, whose
items are sequences of 128 characters. The batch is one rank's. Each rank computes on a GPU where
there is one; ranks share GPUs where there are fewer on their host.
"""

from __future__ import annotations

import argparse
import os
import timeit

import numpy as np
import torch
from models import MODELS

import lightcc.torch as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="PyTorch Synthetic Benchmark",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--fp16-allreduce", action="store_true", help="use fp16 compression during allreduce")
    add("--model", default="resnet50", choices=list(MODELS), help="model to benchmark")
    add("--batch-size", type=int, default=4, help="input batch size")
    add("--num-warmup-batches", type=int, default=2, help="warm-up batches, not measured")
    add("--num-batches-per-iter", type=int, default=2, help="batches of one measurement")
    add("--num-iters", type=int, default=5, help="number of measurements")
    add("--no-cuda", action="store_true", help="compute on the CPU, where there is a GPU, too")
    add("--use-adasum", action="store_true", help="use the adasum algorithm to do reduction")
    return parser.parse_args()


def log(text):
    if hvd.rank() == 0:
        print(text, flush=True)


def main():
    args = parse_arguments()
    hvd.init()
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(max(1, cores // hvd.local_size()))

    kind = "CPU" if args.no_cuda or not torch.cuda.is_available() else "GPU"
    device = torch.device("cpu")
    if kind == "GPU":
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
        torch.backends.cudnn.benchmark = True
        device = torch.device("cuda")

    model = MODELS[args.model]().to(device)
    # Without Adasum the batch grows with the number of ranks, and the rate with it.
    rate = 0.01 * (1 if args.use_adasum else hvd.size())
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    batch = [part.to(device) for part in model.inputs(args.batch_size)]

    def train_one_batch():
        optimizer.zero_grad()
        model.loss(*batch).backward()
        optimizer.step()

    unit = getattr(model, "unit", "img")
    log(f"Model: {args.model}")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of {kind}s: {hvd.size()}")
    log("Running warmup...")
    timeit.timeit(train_one_batch, number=args.num_warmup_batches)

    log("Running benchmark...")
    speeds = []
    for i in range(args.num_iters):
        seconds = timeit.timeit(train_one_batch, number=args.num_batches_per_iter)
        speeds.append(args.batch_size * args.num_batches_per_iter / seconds)
        log(f"Iter #{i}: {speeds[-1]:.1f} {unit}/sec per {kind}")

    mean, deviation = np.mean(speeds), 1.96 * np.std(speeds)
    ranks = hvd.size()
    log(f"{unit.capitalize()}/sec per {kind}: {mean:.1f} +-{deviation:.1f}")
    log(f"Total {unit}/sec on {ranks} {kind}(s): {ranks * mean:.1f} +-{ranks * deviation:.1f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
