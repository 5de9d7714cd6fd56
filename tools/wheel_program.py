"""Runs collectives, and under torch a training, and prints digests of the results' bits as JSON.

`lightccrun -np 4 python wheel_program.py` under several versions of Python, numpy and torch, and on
several kinds of processor, must give the same digests. So inputs are made of integers and powers of
two, and the model's gradients of single multiplications: their bits are the same in every version,
and any difference comes from lightcc. Its own results must be rounded, or the digests would prove
little.

Output, of rank 0: {"python": ..., "numpy": ..., "torch": ... or null, "machine": ..., "digests":
{name: digest}}. What torch tensors give must be what numpy arrays give, and has their name. --numpy
leaves torch out. bfloat16 arrays take part where ml_dtypes is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import lightcc

DTYPES = ("float16", "float32", "float64", "int32")
COUNTS = (1, 1000, 300_001)  # One element, several chunks, several windows.
STEPS = 5
RATE = 0.125  # A power of two, as all factors are: multiplying by it does not round.


def numbers(count: int, seed: int) -> npt.NDArray[np.float64]:
    """Returns `count` numbers of 24 bits, of magnitudes between 2**-6 and 2**9."""
    index = np.arange(count, dtype=np.uint64) + np.uint64(seed * 1_000_003 + 1)
    mixed = ((index * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)).astype(np.int64)
    exponent = (mixed % 16).astype(np.int32) - 29
    made: npt.NDArray[np.float64] = np.ldexp((mixed - 2**23).astype(np.float64), exponent)
    return made


def bits(tensor: Any) -> bytes:
    """Returns the bytes of a numpy array or a torch tensor."""
    if isinstance(tensor, np.ndarray):
        return tensor.tobytes()
    import torch

    return bytes(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())


def results(hvd: Any, inputs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the name and the result on this rank of each collective on each input.

    Collective: all ranks must run it to its end.
    """
    calls: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "sum": (hvd.allreduce, {"op": hvd.Sum}),
        "max": (hvd.allreduce, {"op": hvd.Max}),
        "allgather": (hvd.allgather, {}),
        "broadcast": (hvd.broadcast, {"root_rank": 1}),
        "reducescatter": (hvd.reducescatter, {"op": hvd.Sum}),
    }
    scaled = {"op": hvd.Sum, "prescale_factor": 1 / 3, "postscale_factor": 0.7}
    calls_of_floats = calls | {
        "average": (hvd.allreduce, {"op": hvd.Average}),
        "adasum": (hvd.allreduce, {"op": hvd.Adasum}),
        "scaled": (hvd.allreduce, scaled),
    }
    for name, tensor in inputs.items():
        chosen = calls_of_floats if "float" in name else calls
        for operation, (collective, options) in chosen.items():
            key = f"{operation} of {name}"
            yield key, collective(tensor, name=key, **options)


def compressed() -> Iterator[tuple[str, Any]]:
    """Yields the averages of each compressor in every step: later ones show what was kept back.

    Collective. Ranks of one block send nothing compressed.
    """
    chosen = lightcc.Compression
    for label, compressor in (
        ("int8", chosen.int8),
        ("int4", chosen.int4),
        ("topk", chosen.topk(0.01)),
        ("topk in 2 bits", chosen.topk(0.01, values="2bit")),
    ):
        for dtype in ("float16", "float32"):
            name = f"{label} of {dtype}"
            for step in range(STEPS):
                tensor = numbers(COUNTS[-1], step * lightcc.size() + lightcc.rank()).astype(dtype)
                yield (
                    f"{name}, step {step}",
                    lightcc.allreduce(tensor, name=name, compression=compressor),
                )


def trainings() -> Iterator[tuple[str, Any]]:
    """Yields each parameter of small models that a DistributedOptimizer has trained.

    Every weight has an input and a target of its own, so no gradient is a sum, which versions of
    torch might add up in different orders.
    """
    import torch

    import lightcc.torch as hvd

    dtypes = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
    for compression in ("none", "fp16", "bf16"):
        named = {
            dtype: torch.nn.Parameter(torch.from_numpy(numbers(997, hvd.rank()) / 512).to(kind))
            for dtype, kind in dtypes.items()
        }
        hvd.broadcast_parameters(named, root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(list(named.values()), lr=RATE, momentum=0.5),
            named_parameters=list(named.items()),
            compression=getattr(hvd.Compression, compression),
        )
        for step in range(STEPS):
            seed = 100 + step * hvd.size() + hvd.rank()
            optimizer.zero_grad()
            for weight in named.values():
                x = torch.from_numpy(numbers(997, seed) / 512).to(weight.dtype)
                error = weight * x - 1
                (error * error * 0.5).sum().backward()
            optimizer.step()
        for dtype, weight in named.items():
            yield f"training, {dtype}, compression {compression}", weight


def digests(found: Iterator[tuple[str, Any]]) -> dict[str, str]:
    """Returns a digest of each result's bits on all ranks. Collective."""
    mine = {name: hashlib.sha256(bits(result)).hexdigest() for name, result in found}
    of_ranks = lightcc.allgather_object(mine)
    return {
        name: hashlib.sha256(" ".join(of_rank[name] for of_rank in of_ranks).encode()).hexdigest()
        for name in mine
    }


def main() -> int:
    """Returns 1 where torch tensors give other bits than numpy arrays."""
    lightcc.init()
    inputs = {
        f"{dtype}[{count}]": numbers(count, lightcc.rank()).astype(dtype)
        for dtype in DTYPES
        for count in COUNTS
    }
    arrays = dict(inputs)
    if importlib.util.find_spec("ml_dtypes") is not None:
        import ml_dtypes

        arrays |= {
            f"bfloat16[{count}]": numbers(count, lightcc.rank()).astype(ml_dtypes.bfloat16)
            for count in COUNTS
        }
    found = digests(results(lightcc, arrays)) | digests(compressed())
    versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": None}
    differing: list[str] = []
    if "--numpy" not in sys.argv and importlib.util.find_spec("torch") is not None:
        import torch

        from lightcc import torch as lightcc_torch

        versions["torch"] = torch.__version__
        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        by_torch = digests(results(lightcc_torch, tensors))
        differing = [name for name in by_torch if found[name] != by_torch[name]]
        found |= digests(trainings())
    if lightcc.rank() == 0:
        sys.stdout.write(
            json.dumps({**versions, "machine": platform.machine(), "digests": found}) + "\n"
        )
    if differing:
        sys.stderr.write(f"torch tensors give other bits than arrays: {differing}\n")
    lightcc.shutdown()
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
