"""What an optimizer of Keras needs of the framework below it, and the arguments that it has."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lightcc._ops.reductions import Average
from lightcc.compression import TopKCompressor, check_compression, find_engine_compressor
from lightcc.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Settings(NamedTuple):
    """The arguments of DistributedOptimizer, which explains them.

    Attributes:
        fusion: `allreduce_type`, `fusion_type` and so on, by name; `None`: not given.
        squares: Whether the optimizer divides by squares of gradients; no argument, but known.
    """

    compression: Any
    name: str | None = None
    device_dense: str = ""
    device_sparse: str = ""
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = Average
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    groups: int | Sequence[Sequence[Any]] | None = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    fusion: Mapping[str, Any] = MappingProxyType({})
    squares: bool = False

    def check(self) -> None:
        """Raises ValueError or TypeError where an argument is not allowed."""
        check_compression(self.compression)
        if self.backward_passes_per_step <= 0:
            msg = "backward_passes_per_step must be > 0"
            raise ValueError(msg)
        compressor = find_engine_compressor(self.compression)
        if isinstance(compressor, TopKCompressor) and compressor.momentum_correction is True:
            msg = (
                "momentum_correction=True cannot take the momentum of an optimizer of Keras: give"
                " it as a number, and none to the optimizer"
            )
            raise ValueError(msg)


class Exchange(Protocol):
    """Combines lists of gradients over all ranks of a process set."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the gradients of all ranks, combined; `None` stays where there is none.

        Collective: every rank of the process set must call it with gradients of the same dtypes and
        shapes.
        """

    def scale(self, gradient: Any) -> Any:
        """Returns a gradient that stays this rank's own, divided by the number of ranks."""

    def choices(self) -> dict[str, str]:
        """Returns how `Compression.auto` has gradients travel now, by the variables' names."""


class Aggregation(Protocol):
    """Adds up the gradients of several passes before they are combined."""

    @property
    def counter(self) -> Any:
        """The passes that have been added since the last step."""

    def add(self, gradients: Sequence[Any]) -> list[Any]:
        """Adds gradients up; returns the combined sums in the last pass."""

    def step(
        self, apply: Callable[[], Any], gradients: Sequence[Any], otherwise: Callable[[], Any]
    ) -> Any:
        """Calls `apply` in the last pass and begins anew, and `otherwise` in the others."""


class Backend(Protocol):
    """The operations on tensors of the framework that Keras runs on."""

    def exchange(self, name: str, settings: Settings) -> Exchange:
        """Returns what combines the gradients of an optimizer; checks the settings for it."""

    def aggregation(
        self, passes: int, reduce: Callable[[list[Any]], list[Any]], *, average: bool, name: str
    ) -> Aggregation:
        """Returns what adds gradients up; raises NotImplementedError where that cannot be."""

    def key(self, variable: Any) -> Any:
        """Returns what tells this variable from others, in a set."""

    def differentiate(self, loss: Any, variables: list[Any], grad_loss: Any, tape: Any) -> Any:
        """Returns this rank's gradients of a loss; raises NotImplementedError without a tape."""

    def all_true(self, flag: Any, process_set: ProcessSet) -> Any:
        """Returns whether the flag is true on all ranks of a process set."""

    def outside_compilation(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function so that a compiler leaves it out.

        Raises:
            NotImplementedError: It is being compiled, and cannot be left out.
        """

    def compiles_collectives(self) -> bool:
        """Returns whether a step with collectives can be compiled as a whole."""

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int) -> None:
        """Gives variables of every rank the root's values."""
