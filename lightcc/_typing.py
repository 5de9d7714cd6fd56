"""Types that only type checkers see: this module is imported by none other at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
    ArrayOrScalar: TypeAlias = NDArray[Any] | np.generic

Result = TypeVar("Result")


class Handle(int, Generic[Result]):
    """A handle, as type checkers see it: it knows what `synchronize()` will return.

    At run time handles are plain integers.
    """
