"""What torch's reductions are in the engine's terms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from lightcc._ops.reductions import Average, Max, Min, Product, Sum

_KINDS: Any = dist.ReduceOp.RedOpType
_PREMUL_SUM = 8
# By number, which torch tells in an eighth of the time of a name.
_NAMES = {kind.value: name for name, kind in _KINDS.__members__.items()}
_ENGINE = {"SUM": Sum, "AVG": Average, "MIN": Min, "MAX": Max, "PRODUCT": Product}
_BITWISE = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
# A bool is true or false: sums and products are "any" and "all".
_BOOL = {"SUM": Max, "MAX": Max, "MIN": Min, "PRODUCT": Min}


@dataclass(frozen=True)
class Reduction:
    """How contributions are combined.

    Attributes:
        op: The engine's reduction.
        factor: What each contribution is multiplied with first.
        bitwise: Combines two tensors where the engine cannot; `op` means nothing then.
        scatters: Whether the engine has it as a reduce-scatter.
        as_real: Whether complex numbers are to be taken as pairs of real ones.
    """

    op: int
    factor: float = 1.0
    bitwise: Any = None
    scatters: bool = False
    as_real: bool = False


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """Returns what torch's `op` is for tensors of `dtype`.

    Raises:
        ValueError: There is no such reduction of that dtype.
    """
    number = getattr(op, "op", op).value
    if number == _PREMUL_SUM:
        return _premultiplied(op, dtype)
    return _plain(number, dtype)


@cache
def _plain(number: int, dtype: torch.dtype) -> Reduction:
    name = _NAMES[number]
    if name in _BITWISE:
        if dtype.is_floating_point or dtype.is_complex:
            raise ValueError(_refusal(name, dtype))
        return Reduction(Sum, bitwise=_BITWISE[name])
    if dtype == torch.bool:
        if name not in _BOOL:
            raise ValueError(_refusal(name, dtype))
        return Reduction(_BOOL[name])
    if dtype.is_complex and name not in ("SUM", "AVG"):
        raise ValueError(_refusal(name, dtype))
    return Reduction(_ENGINE[name], scatters=name in ("SUM", "AVG"), as_real=dtype.is_complex)


def _premultiplied(op: Any, dtype: torch.dtype) -> Reduction:
    if not dtype.is_floating_point and not dtype.is_complex:
        raise ValueError(_refusal("PREMUL_SUM", dtype))
    factor = op.__getstate__()[1]
    return Reduction(Sum, factor=float(factor), scatters=True, as_real=dtype.is_complex)


def _refusal(name: str, dtype: torch.dtype) -> str:
    return f"ReduceOp.{name} is not possible with tensors of {dtype}."


def numbers(tensor: torch.Tensor, how: Reduction, written: bool = False) -> torch.Tensor:
    """Returns `tensor` as the numbers that are combined: a view, where it is `written`.

    Raises:
        RuntimeError: It is a conjugate view, which cannot be written.
    """
    if not how.as_real:
        return tensor
    return torch.view_as_real(tensor.detach() if written else tensor.detach().resolve_conj())
