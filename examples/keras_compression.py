"""Trains handwritten digits with Keras on several hosts, dense and compressed, and compares.

    make demo FRAMEWORK=tensorflow

It runs keras_digits.py's training twice, with the same data, settings and devices, and prints a
table. The exit code is 0 if the compressed training reached the dense accuracy, but for a margin.
"""

from __future__ import annotations

import argparse
import sys

from keras_digits import choose_gpu, train

import lightcc.keras as hvd


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    ways = {"int8": hvd.Compression.int8, "int4": hvd.Compression.int4}
    ways["topk"] = hvd.Compression.topk(0.01)
    parser.add_argument(
        "--compression", choices=ways, default="int4", help="of the second training"
    )
    parser.add_argument("--margin", type=float, default=0.02, help="between the two accuracies")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU")
    args = parser.parse_args()
    hvd.init()
    choose_gpu()
    way = args.compression
    dense = train(args.epochs)
    small = train(args.epochs, ways[way], way)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks train on 1437 handwritten digits, twice\n")
        print(f"{'':12}{'accuracy':>10}{'time of a step':>18}{'sent by a rank in a step':>28}")
        for name, (accuracy, seconds, sent) in (("dense", dense), (way, small)):
            print(f"{name:12}{accuracy:>10.3f}{1e3 * seconds:>15.1f} ms{sent / 1e3:>25.1f} kB")
        print(f"{'ratio':12}{'':10}{dense[1] / small[1]:>15.1f} x {dense[2] / small[2]:>25.1f} x")
        print("all ranks hold the same weights, bit for bit", flush=True)
    hvd.shutdown()
    return 0 if small[0] >= dense[0] - args.margin else 1


if __name__ == "__main__":
    sys.exit(main())
