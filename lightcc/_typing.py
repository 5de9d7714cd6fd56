"""Types that only type checkers see: this module is imported by none other at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import tensorflow as tf
    import torch
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
    Splits: TypeAlias = NDArray[Any] | torch.Tensor | Sequence[int]


class CudaArray(Protocol):
    """An array in CUDA memory, of any library."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 2 or 3."""


#: What an operation takes and gives back: `numpy.ndarray`, `torch.Tensor`, `tf.Tensor` or an array
#: in CUDA memory. A numpy scalar is taken as well, and what comes back for it is a 0-dimensional
#: array; for a `tf.Variable` that is only read it is a `tf.Tensor`. An array in CUDA memory of
#: another library than CuPy gets a `lightcc._core.CudaArray`.
Tensor = TypeVar("Tensor", bound="NDArray[Any] | np.generic | torch.Tensor | tf.Tensor | CudaArray")

Result = TypeVar("Result")


class Handle(int, Generic[Result]):
    """A handle, as type checkers see it: it knows what `synchronize()` will return.

    At run time handles are plain integers.
    """
