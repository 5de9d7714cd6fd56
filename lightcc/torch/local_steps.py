"""LocalSteps: workers train on their own, and combine how far they have come every few steps.

For links on which even compressed gradients are too slow. A worker is a host, whose ranks combine
gradients in every step, or a single rank. All workers start from the same weights. After `every`
steps of the given optimizer an outer step takes what they have done as a gradient,

    delta = mean over ranks of (start - weights)
    momentum = outer_momentum * momentum + delta
    start = start - outer_lr * (delta + outer_momentum * momentum)
    weights = start

which is SGD with Nesterov momentum. By default there is none and the rate is 1, so that workers go
on from the mean of their weights. Between hosts an element thus travels once in `every` steps, and
then compressed.

Sources: Stich, "Local SGD Converges Fast and Communicates Little" (2019), for means; Douillard et
al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023), for momentum; int8
as in Jaghouar et al., "OpenDiLoCo" (2024), there float16.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from lightcc import _world
from lightcc._ops.reductions import Average
from lightcc.compression import check_compression, engine_spec
from lightcc.fusion import digest_of
from lightcc.process_sets import host_process_set
from lightcc.torch import mpi_ops
from lightcc.torch._adasum_optimizer import AdasumOptimizer
from lightcc.torch._loading import load_in_place
from lightcc.torch._parameters import check_named, name_parameters
from lightcc.torch._scaled_step import step_unless_infinite
from lightcc.torch.compression import Compression
from lightcc.torch.optimizer import DistributedOptimizer, is_distributed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

_STATE = "local_steps"
_NO_COPY = (
    "LocalSteps can neither be copied nor pickled, because it belongs to this process's world:"
    " save its state_dict() and load that into a new one"
)
_ELASTIC = (
    "in an elastic job hosts may change, so a host cannot be the worker of LocalSteps: use"
    " workers='ranks'"
)


class LocalSteps(torch.optim.Optimizer):
    """An optimizer whose steps stay within a worker; now and then all workers make an outer step.

    It has the state, parameter groups and options of the given optimizer, which should not be used
    any more by itself. Until the next outer step workers have weights of their own; call
    `outer_step()` before an evaluation or a checkpoint that stands for all. Clipping, as after
    `synchronize()`, is that of a worker. Buffers, such as those of BatchNorm, are not combined.

    A worker that has joined (`join()`) counts as one that has not moved.

    Attributes:
        optimizer: The given one; where a worker has several ranks, as a DistributedOptimizer.
        every: Steps from one outer step to the next.
        outer_lr: The rate of an outer step.
        outer_momentum: The momentum of an outer step.

    Example:
        >>> import torch
        >>> import lightcc.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(4, 1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> adamw = torch.optim.AdamW(model.parameters())
        >>> optimizer = hvd.LocalSteps(adamw, model.named_parameters(), every=16)
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        *,
        every: int = 16,
        outer_lr: float = 1.0,
        outer_momentum: float = 0.0,
        compression: Any = Compression.int8,
        workers: str = "hosts",
        backward_passes_per_step: int = 1,
    ) -> None:
        """Takes over an optimizer.

        Weights must be the same on all ranks when the first step begins.

        Collective: every rank must call it.

        Args:
            optimizer: Any optimizer of torch, but no DistributedOptimizer.
            named_parameters: As of DistributedOptimizer.
            every: Steps from one outer step to the next, at least 1.
            outer_lr: The rate of an outer step, above 0. DiLoCo has 0.7.
            outer_momentum: The momentum of an outer step, at least 0 and below 1. DiLoCo has 0.9,
                with hundreds of steps between outer ones; with few it does harm
                (docs/convergence.md).
            compression: What travels in an outer step between hosts: `Compression.int8`,
                `.int4`, `.topk(...)`, `.fp16`, `.bf16` or `.none`.
            workers: "hosts": ranks of a host combine gradients in every step. "ranks": each rank
                trains on its own, as it has to in an elastic job.
            backward_passes_per_step: As of DistributedOptimizer, where a worker has several ranks.

        Raises:
            TypeError: `optimizer` is none, or `compression` is no compressor.
            ValueError: A number is out of its range, `workers` is another word, the optimizer is
                distributed already, or hosts may change. On the ranks that made the call.
        """
        _check(optimizer, every, outer_lr, outer_momentum, compression, workers)
        self.every = every
        self.outer_lr = outer_lr
        self.outer_momentum = outer_momentum
        self._compression = compression
        named = None if named_parameters is None else check_named(named_parameters)
        self._named = named
        self._count = 0  # Steps since the last outer one.
        self._starts: dict[torch.Tensor, torch.Tensor] = {}
        self._momenta: dict[torch.Tensor, torch.Tensor] = {}
        name_parameters(optimizer.param_groups, named)  # Checks that all have names.
        self.optimizer = optimizer
        self._distributed: Any = None  # The same, where a worker has several ranks.
        if workers == "hosts" and any(len(ranks) > 1 for ranks in _world.current().hosts):
            if os.environ.get("HOROVOD_ELASTIC") == "1":
                raise ValueError(_ELASTIC)
            self.optimizer = self._distributed = DistributedOptimizer(
                optimizer,
                None if named is None else [(name, p) for p, name in named.items()],
                backward_passes_per_step=backward_passes_per_step,
                process_set=host_process_set(),
            )
        super().__setstate__({})  # Hooks of steps; everything else is the given optimizer's.

    # -- What is the given optimizer's ------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameters and their options, as of the given optimizer."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of each parameter, as of the given optimizer."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The options of new parameter groups, as of the given optimizer."""
        return self.optimizer.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, as DistributedOptimizer does. Collective: every rank must call it."""
        self.optimizer.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, as in torch."""
        self.optimizer.zero_grad(set_to_none)

    def synchronize(self) -> None:
        """Waits until the gradients are those of the worker, as DistributedOptimizer does."""
        if self._distributed is not None:
            self._distributed.synchronize()

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Makes `step()` not synchronize, because `synchronize()` was called before."""
        skipping: AbstractContextManager[None] = nullcontext()
        return skipping if self._distributed is None else self._distributed.skip_synchronize()

    # -- Steps ------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Does a step of the worker, and an outer step where it is time for one.

        Collective: every rank must call it as often as the others. A step that
        torch.amp.GradScaler skips counts, too.

        Args:
            closure: Computes the loss and its gradients again, as in torch.

        Returns:
            What the given optimizer returns.

        Raises:
            HorovodInternalError: A rank failed. The worker's weights are those of its last step,
                and nothing of an outer step has been done. On all ranks.
        """
        self._take_starts()
        result = step_unless_infinite(self, self.optimizer.step, closure)
        self._count += 1
        if self._count >= self.every:
            self.outer_step()
        return result

    @torch.no_grad()
    def outer_step(self) -> None:
        """Combines what workers have done since the last outer step; does nothing right after one.

        Collective: every rank must call it after the same number of steps.

        Raises:
            HorovodInternalError: A rank failed; nothing has changed. On all ranks.
        """
        if self._count == 0:
            return
        names = self._trained()
        deltas = mpi_ops.grouped_allreduce(
            [_moved(self._starts[p], p) for p in names],
            name=f"LocalSteps.{digest_of(names.values())}",
            compression=self._compression,
            op=Average,
        )
        for p, delta in zip(names, deltas, strict=True):
            if self.outer_momentum > 0:
                momentum = self._momenta.setdefault(p, torch.zeros_like(delta))
                momentum.mul_(self.outer_momentum).add_(delta)
                delta.add_(momentum, alpha=self.outer_momentum)
            p.copy_(self._starts[p].sub_(delta, alpha=self.outer_lr))
        self._count = 0

    def _take_starts(self) -> None:
        """Notes the weights of parameters that have not been stepped yet."""
        for p in self._trained():
            if p not in self._starts:
                self._starts[p] = _wide(p)

    def _trained(self) -> dict[torch.Tensor, str]:
        names = name_parameters(self.param_groups, self._named)
        return {p: name for p, name in names.items() if p.requires_grad or p in self._starts}

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Tells torch.amp.GradScaler to leave the decision about infinite gradients to `step()`.

        It looks at gradients next, which then have to be those of all ranks of the worker.
        """
        if self._distributed is not None:
            _ = self._distributed._step_supports_amp_scaling  # noqa: SLF001  torch's name
        return True

    # -- State ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the given optimizer's state, and where workers started.

        Residuals of compression are not part of it; see `save_compression_state()`.
        """
        order = self._order()
        own = {
            "count": self._count,
            "starts": {order[p]: start for p, start in self._starts.items()},
            "momenta": {order[p]: momentum for p, momentum in self._momenta.items()},
        }
        return {**self.optimizer.state_dict(), _STATE: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict()` returned, or the state of the given optimizer alone.

        In the second case the outer steps begin anew, from the weights of the next step.

        Raises:
            ValueError: The state is that of other parameters; nothing is loaded.
        """
        state = dict(state_dict)
        own = state.pop(_STATE, {"count": 0, "starts": {}, "momenta": {}})
        parameters = {position: p for p, position in self._order().items()}
        starts = _as_loaded(own["starts"], parameters)
        momenta = _as_loaded(own["momenta"], parameters)
        load_in_place(self.optimizer, state, self.optimizer.load_state_dict)
        self._count, self._starts, self._momenta = int(own["count"]), starts, momenta

    def _order(self) -> dict[torch.Tensor, int]:
        parameters = (p for group in self.param_groups for p in group["params"])
        return {p: position for position, p in enumerate(parameters)}

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        """Raises TypeError."""
        raise TypeError(_NO_COPY)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raises TypeError."""
        raise TypeError(_NO_COPY)


def _check(
    optimizer: Any,
    every: int,
    outer_lr: float,
    outer_momentum: float,
    compression: Any,
    workers: str,
) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        msg = f"optimizer is a {type(optimizer).__name__}: expected a torch.optim.Optimizer"
        raise TypeError(msg)
    if is_distributed(optimizer) or isinstance(optimizer, (AdasumOptimizer, LocalSteps)):
        msg = (
            "optimizer is distributed already: give LocalSteps the optimizer of one rank, and it"
            " combines gradients within a host itself"
        )
        raise ValueError(msg)
    if every < 1 or not outer_lr > 0 or not 0 <= outer_momentum < 1:
        msg = (
            f"every is {every}, outer_lr is {outer_lr} and outer_momentum is {outer_momentum}:"
            " expected at least 1, a number above 0, and one of at least 0 and below 1"
        )
        raise ValueError(msg)
    if workers not in ("hosts", "ranks"):
        msg = f"workers is {workers!r}; allowed are 'hosts' and 'ranks'"
        raise ValueError(msg)
    check_compression(compression)
    engine_spec(compression)  # Raises ValueError where a compressor is for gradients alone.


def _wide(p: torch.Tensor) -> torch.Tensor:
    """Returns a copy, in float32 where `p` has fewer bits, so that small outer steps count."""
    dtype = torch.float32 if p.element_size() < 4 else p.dtype
    return p.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)


def _moved(start: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Returns how far `p` has come from where the worker began, which is `start` in its dtype."""
    return (start.to(p.dtype).to(start.dtype) - p).contiguous()


def _as_loaded(
    saved: dict[int, torch.Tensor], parameters: dict[int, torch.Tensor]
) -> dict[torch.Tensor, torch.Tensor]:
    for position, tensor in saved.items():
        p = parameters.get(position)
        if p is None or p.shape != tensor.shape:
            shape = "no such parameter" if p is None else f"the shape {tuple(p.shape)}"
            msg = (
                f"the state of LocalSteps has a tensor of shape {tuple(tensor.shape)} for parameter"
                f" {position}, and the optimizer has {shape}"
            )
            raise ValueError(msg)
    return {
        parameters[position]: tensor.detach().to(parameters[position].device, copy=True)
        for position, tensor in saved.items()
    }
