"""How long torch.topk takes on a GPU: run as a program, which `gpus` asks.

It takes the GPU's number, elements, k, rounds, and calls in each round. It writes one JSON object:
`objection`, why torch has no GPU here, or ""; and `seconds` of one call, in each round.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from lightcc.bench.cuda_tensors import objections


def measure(device: int, elements: int, k: int, rounds: int, calls: int) -> list[float]:
    """Returns the time of a call in each round, by the GPU's clock.

    Args:
        device: The GPU's number.
        elements: Of the tensor, which has float32 magnitudes.
        k: How many are selected, in no order.
        rounds: How many times are returned.
        calls: How many of them follow one another in each round.
    """
    import torch

    with torch.cuda.device(device):
        magnitudes = torch.randn(elements, device="cuda").abs_()
        torch.topk(magnitudes, k, sorted=False)
        seconds = []
        for _ in range(rounds):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for _ in range(calls):
                torch.topk(magnitudes, k, sorted=False)
            last.record()
            last.synchronize()
            seconds.append(first.elapsed_time(last) * 1e-3 / calls)
        return seconds


def main(words: list[str]) -> None:
    """Writes what was measured, or why nothing was."""
    device, elements, k, rounds, calls = (int(word) for word in words)
    objection = objections()["torch"]
    seconds = [] if objection else measure(device, elements, k, rounds, calls)
    answer: dict[str, Any] = {"objection": objection, "seconds": seconds}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
