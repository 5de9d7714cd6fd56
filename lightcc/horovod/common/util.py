"""`horovod.common.util`: what was built, and small helpers that programs import from there."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from lightcc._ops import basics
from lightcc._ops.reductions import Average, Sum
from lightcc.exceptions import HorovodVersionMismatchError as HorovodVersionMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lightcc._ops.reductions import ReduceOp

EXTENSIONS = ["tensorflow", "torch", "mxnet"]

P = ParamSpec("P")
T = TypeVar("T")


def get_ext_suffix() -> str:
    """Returns the suffix of extension modules of this interpreter, for example `.so`."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether the adapter to a framework can be imported, the framework being there.

    Args:
        ext_base_name: "torch", "tensorflow" or "mxnet".
        verbose: Whether to warn with the reason where it cannot.
    """
    try:
        importlib.import_module(f"lightcc.{ext_base_name}")
    except ImportError as error:
        if verbose:
            warnings.warn(f"lightcc.{ext_base_name}: {error}", RuntimeWarning, stacklevel=2)
        return False
    return True


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "", *args: str) -> None:
    """Raises ImportError where the adapter cannot be imported.

    Args:
        ext_name: For example "horovod.torch".
        ext_env_var: Horovod's, how to have it built; not used, as nothing is built for a framework.
        pkg_path: Not used either.
        args: Not used either.
    """
    del ext_env_var, pkg_path, args
    importlib.import_module(ext_name.replace("horovod.", "lightcc.", 1))


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether the framework sees a GPU."""
    if not extension_available(ext_base_name, verbose):
        return False
    framework = importlib.import_module(ext_base_name)
    if ext_base_name == "torch":
        return bool(framework.cuda.is_available())
    return bool(framework.config.list_physical_devices("GPU"))


def mpi_built(verbose: bool = False) -> bool:
    """Returns `lightcc.mpi_built()`."""
    del verbose
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """Returns `lightcc.gloo_built()`."""
    del verbose
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """Returns `lightcc.nccl_built()`."""
    del verbose
    return basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """Returns `lightcc.ddl_built()`."""
    del verbose
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """Returns `lightcc.ccl_built()`."""
    del verbose
    return basics.ccl_built()


def _cache(function: Callable[P, T]) -> Callable[P, T]:
    """Makes `function` remember its result for each list of arguments."""
    return functools.cache(function)  # type: ignore[return-value]


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Sets variables of the environment (`None` removes one) while the block runs."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def get_average_backwards_compatibility_fun(
    reduce_ops: Any,
) -> Callable[[ReduceOp | None, bool | None], ReduceOp]:
    """Returns a function of `op` and the old flag `average` that tells the reduction meant.

    Args:
        reduce_ops: Horovod's, an object with the attributes `Average` and `Sum`; not used.
    """
    del reduce_ops

    def reduction(op: ReduceOp | None, average: bool | None) -> ReduceOp:
        if op is not None and average is not None:
            msg = "The op parameter supersedes average. Please provide only one of them."
            raise ValueError(msg)
        if op is not None:
            return op
        return Sum if average is False else Average

    return reduction


def num_rank_is_power_2(num_rank: int) -> bool:
    """Returns whether `num_rank` is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    """Cuts a list into `num_parts` runs whose lengths differ by one at most, longer ones first."""
    short, longer = divmod(len(items), num_parts)
    starts = [part * short + min(part, longer) for part in range(num_parts + 1)]
    return [items[begin:end] for begin, end in itertools.pairwise(starts)]


def is_iterable(value: object) -> bool:
    """Returns whether `value` can be iterated over."""
    return isinstance(value, Iterable)


def is_version_greater_equal_than(version: str, target: str) -> bool:
    """Returns whether `version` is `target` or later; parts after the numbers do not count."""
    return _numbers(version) >= _numbers(target)


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Raises ImportError where package `name` is not installed in version `version`."""
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError as error:
        msg = f"{name} is not installed: expected version {version}"
        raise ImportError(msg) from exception or error
    if installed != version:
        msg = f"{name} {installed} is installed: expected version {version}"
        raise ImportError(msg) from exception


def _numbers(version: str) -> list[int]:
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", version)
    if match is None:
        msg = f"'{version}' is not a version: expected numbers separated by dots"
        raise ValueError(msg)
    numbers = [int(part) for part in match[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return numbers
