"""LocalSteps: workers train on their own, and combine how far they have come every few steps.

For links on which even compressed gradients are too slow. A worker is a host, whose ranks combine
gradients in every step, or a single rank. All workers start from the same weights. They may train
as one for a while. Then, after `every` steps of the given optimizer, an outer step takes what they
have done as a gradient,

    delta = mean over ranks of (start - weights)
    momentum = outer_momentum * momentum + delta
    start = start - outer_lr * (delta + outer_momentum * momentum)
    weights = start

which is SGD with Nesterov momentum. Between hosts an element thus travels once in `every` steps,
and then compressed: all of a device travel as one row, in which blocks that share a scale are of
one parameter.

Sources: Stich, "Local SGD Converges Fast and Communicates Little" (2019), for means; Douillard et
al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023), for momentum;
Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo" (2025), for top-k.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from lightcc import _world
from lightcc._ops.reductions import Average
from lightcc.compression import TopKCompressor, check_compression, engine_spec
from lightcc.fusion import digest_of
from lightcc.process_sets import ProcessSet, global_process_set, host_process_set
from lightcc.torch import mpi_ops
from lightcc.torch._adasum_optimizer import AdasumOptimizer
from lightcc.torch._loading import load_in_place
from lightcc.torch._parameters import check_named, name_parameters
from lightcc.torch._rows import join, parts_of
from lightcc.torch._scaled_step import step_unless_infinite
from lightcc.torch.compression import Compression
from lightcc.torch.optimizer import DistributedOptimizer, is_distributed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from lightcc.torch.fsdp import Replicas

_log = logging.getLogger(__name__)
_STATE = "local_steps"
_NO_COPY = (
    "LocalSteps can neither be copied nor pickled, because it belongs to this process's world:"
    " save its state_dict() and load that into a new one"
)
_ELASTIC = (
    "in an elastic job hosts may change, so a host cannot be the worker of LocalSteps: use"
    " workers='ranks'"
)
_SEVERAL = "LocalSteps has {} optimizers: {}"


class LocalSteps(torch.optim.Optimizer):
    """An optimizer whose steps stay within a worker; now and then all workers make an outer step.

    It has the state, parameter groups and options of the given optimizer, which should not be used
    any more by itself. Until the next outer step workers have weights of their own; call
    `outer_step()` before an evaluation or a checkpoint that stands for all. Clipping, as after
    `synchronize()`, is that of a worker. Buffers, such as those of BatchNorm, are not combined.

    A worker that has joined (`join()`) counts as one that has not moved.

    Attributes:
        optimizer: The given one, as a DistributedOptimizer while several ranks combine gradients.
            A tuple, where several were given.
        every: Steps from one outer step to the next.
        dense_steps: Steps of the dense phase.
        outer_lr: The rate of an outer step.
        outer_momentum: The momentum of an outer step.

    Example:
        >>> import torch
        >>> import lightcc.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(4, 1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> adamw = torch.optim.AdamW(model.parameters())
        >>> optimizer = hvd.LocalSteps(adamw, model.named_parameters(), dense_steps=1000)
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        *,
        every: int = 15,
        dense_steps: int = 0,
        outer_momentum: float | None = None,
        outer_lr: float | None = None,
        compression: Any = Compression.int4,
        dense_compression: Any = Compression.none,
        workers: str | Replicas = "hosts",
        backward_passes_per_step: int = 1,
    ) -> None:
        """Takes over an optimizer, or several that have a part of the parameters each.

        Weights must be the same on all ranks when the first step begins.

        Collective: every rank must call it.

        Args:
            optimizer: Any optimizer of torch, but no DistributedOptimizer; or a sequence of them,
                as Muon for matrices and AdamW for the rest.
            named_parameters: As of DistributedOptimizer. Needed where there are several optimizers.
            every: Steps from one outer step to the next, at least 1.
            dense_steps: Steps in which all ranks combine gradients, before workers train on their
                own. A fifth of all steps makes most of the loss up that local steps cost.
            outer_momentum: The momentum of an outer step, at least 0 and below 1. `None`: 0.5 where
                `every` is 10 or more and `compression` is not top-k, else 0.
            outer_lr: The rate of an outer step, above 0. `None`: 0.8 where `every` is 10 or more,
                else 1; 1.5 with top-k.
            compression: What travels in an outer step between hosts: `Compression.int4`,
                `.int8`, `.topk(...)`, `.fp16`, `.bf16` or `.none`.
            dense_compression: How gradients travel in the dense phase, as of DistributedOptimizer.
            workers: "hosts": ranks of a host combine gradients in every step. "ranks": each rank
                trains on its own, as it has to in an elastic job. What `fsdp.replicate()` returned:
                its replicas, whose ranks hold shards and exchange those; its `gradients` take the
                place of `dense_compression`.
            backward_passes_per_step: As of DistributedOptimizer, where ranks combine gradients.

        Raises:
            TypeError: `optimizer` is none, or a compression is no compressor.
            ValueError: A number is out of its range, `workers` is another word, the optimizer is
                distributed already, several come without names, or hosts may change. On the ranks
                that made the call.
        """
        given = (optimizer,) if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        topk = isinstance(compression, TopKCompressor)
        if outer_momentum is None:
            outer_momentum = 0.5 if every >= 10 and not topk else 0.0
        if outer_lr is None:
            outer_lr = 1.5 if topk else 0.8 if every >= 10 else 1.0
        self._given = _checked(given, named_parameters is not None)
        _check(every, dense_steps, outer_lr, outer_momentum, workers)
        for it in (compression, dense_compression):
            check_compression(it)
        engine_spec(compression)  # Raises ValueError where a compressor is for gradients alone.
        self.every = every
        self.dense_steps = dense_steps
        self.outer_lr = outer_lr
        self.outer_momentum = outer_momentum
        self._compression = compression
        self._dense_compression = dense_compression
        self._passes = backward_passes_per_step
        self._named = None if named_parameters is None else check_named(named_parameters)
        self._steps = 0  # The dense phase has had so many.
        self._count = 0  # Steps since the last outer one.
        self._starts: dict[torch.Tensor, torch.Tensor] = {}
        self._momenta: dict[torch.Tensor, torch.Tensor] = {}
        for it in self._given:
            name_parameters(it.param_groups, self._named)  # Checks that all have names.
        self._replicas = None if isinstance(workers, str) else workers
        self._worker: ProcessSet | None = None
        if workers == "hosts" and any(len(ranks) > 1 for ranks in _world.current().hosts):
            if os.environ.get("HOROVOD_ELASTIC") == "1":
                raise ValueError(_ELASTIC)
            self._worker = host_process_set()
        self._combining: tuple[Any, ...] = ()  # The given ones, while ranks combine gradients.
        self._begin_phase()
        if dense_steps == 0 and _world.rank() == 0:
            _log.info(
                "LocalSteps: workers train on their own from the first step on. With a fifth of all"
                " steps as dense_steps, trainings end closer to dense ones (docs/convergence.md)."
            )
        super().__setstate__({})  # Hooks of steps; everything else is the given optimizer's.

    def _begin_phase(self) -> None:
        """Has those combine gradients that do in the phase of the next step."""
        for it in self._combining:
            if it._exchange is not None:  # noqa: SLF001  another one takes its parameters
                it._exchange.remove_hooks()  # noqa: SLF001
        ranks = global_process_set if self._is_dense else self._worker
        compression = self._dense_compression if self._is_dense else Compression.none
        self._combining = ()
        if self._replicas is not None:
            self._replicas.average_gradients(self._is_dense)
        elif ranks is not None:
            self._combining = tuple(
                DistributedOptimizer(
                    it,
                    None if self._named is None else self._named_of(it),
                    compression,
                    self._passes,
                    process_set=ranks,
                )
                for it in self._given
            )

    def _named_of(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
        names = name_parameters(optimizer.param_groups, self._named)
        return [(name, p) for p, name in names.items()]

    @property
    def _is_dense(self) -> bool:
        """Whether the next step is one of the dense phase."""
        return self._steps < self.dense_steps

    @property
    def _optimizers(self) -> tuple[Any, ...]:
        return self._combining or self._given

    @property
    def optimizer(self) -> Any:
        """What makes the steps: one optimizer, or a tuple of them."""
        return self._optimizers[0] if len(self._given) == 1 else self._optimizers

    # -- What is the given optimizer's ------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameters and their options, as of the given optimizer."""
        if len(self._given) == 1:
            return self._given[0].param_groups
        return [group for it in self._given for group in it.param_groups]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of each parameter, as of the given optimizer."""
        if len(self._given) == 1:
            return self._given[0].state
        return {p: state for it in self._given for p, state in it.state.items()}

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The options of new parameter groups, as of the given optimizer."""
        return self._given[0].defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, as DistributedOptimizer does. Collective: every rank must call it.

        Raises:
            ValueError: There are several optimizers. On the ranks that made the call.
        """
        if len(self._given) > 1:
            raise ValueError(_SEVERAL.format(len(self._given), "add parameters to one of them"))
        self._optimizers[0].add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, as in torch."""
        for it in self._optimizers:
            it.zero_grad(set_to_none)

    def synchronize(self) -> None:
        """Waits until the gradients are those of the worker, as DistributedOptimizer does."""
        for it in self._combining:
            it.synchronize()

    def skip_synchronize(self) -> AbstractContextManager[Any]:
        """Makes `step()` not synchronize, because `synchronize()` was called before."""
        skipping = ExitStack()
        for it in self._combining:
            skipping.enter_context(it.skip_synchronize())
        return skipping

    # -- Steps ------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Does a step of the worker, and an outer step where it is time for one.

        Collective: every rank must call it as often as the others. A step that
        torch.amp.GradScaler skips counts, too.

        Args:
            closure: Computes the loss and its gradients again, as in torch; not with several
                optimizers.

        Returns:
            What the given optimizer returns; `None` where there are several.

        Raises:
            HorovodInternalError: A rank failed. The worker's weights are those of its last step,
                and nothing of an outer step has been done. On all ranks.
            ValueError: There are several optimizers, and a closure.
        """
        if closure is not None and len(self._given) > 1:
            raise ValueError(_SEVERAL.format(len(self._given), "step() takes no closure"))
        if self._is_dense:
            result = step_unless_infinite(self, self._step_worker, closure)
            self._steps += 1
            if self._steps == self.dense_steps:
                self._begin_phase()
            return result
        self._take_starts()
        result = step_unless_infinite(self, self._step_worker, closure)
        self._count += 1
        if self._count >= self.every:
            self.outer_step()
        return result

    def _step_worker(self, closure: Callable[[], Any] | None = None) -> Any:
        if len(self._given) == 1:
            return self._optimizers[0].step(closure) if closure else self._optimizers[0].step()
        for it in self._optimizers:
            it.step()
        return None

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
        deltas = self._combined({p: _moved(self._starts[p], _own(p)) for p in names}, names)
        for p, delta in deltas.items():
            if self.outer_momentum > 0:
                momentum = self._momenta.setdefault(p, torch.zeros_like(delta))
                momentum.mul_(self.outer_momentum).add_(delta)
                delta.add_(momentum, alpha=self.outer_momentum)
            _own(p).copy_(self._starts[p].sub_(delta, alpha=self.outer_lr))
        self._count = 0

    def _combined(
        self, moved: dict[torch.Tensor, torch.Tensor], names: dict[torch.Tensor, str]
    ) -> dict[torch.Tensor, torch.Tensor]:
        """Returns the means over all ranks."""
        rows: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for p, delta in moved.items():
            rows.setdefault((delta.dtype, delta.device), []).append(p)
        parts = [[moved[p] for p in parameters] for parameters in rows.values()]
        means = mpi_ops.grouped_allreduce(
            [join(it) for it in parts],
            name=f"LocalSteps.{digest_of(names.values())}",
            compression=self._compression,
            op=Average,
            process_set=self._replicas.process_set if self._replicas else global_process_set,
        )
        return {
            p: part
            for parameters, mean, its in zip(rows.values(), means, parts, strict=True)
            for p, part in zip(parameters, parts_of(mean, its), strict=True)
        }

    def _take_starts(self) -> None:
        """Notes the weights of parameters that have not been stepped yet."""
        for p in self._trained():
            if p not in self._starts:
                self._starts[p] = _wide(_own(p))

    def _trained(self) -> dict[torch.Tensor, str]:
        names = name_parameters(self.param_groups, self._named)
        return {p: name for p, name in names.items() if p.requires_grad or p in self._starts}

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Tells torch.amp.GradScaler to leave the decision about infinite gradients to `step()`.

        It looks at gradients next, which then have to be those of all ranks of the worker.
        """
        for it in self._combining:
            _ = it._step_supports_amp_scaling  # noqa: SLF001  torch's name
        return True

    # -- State ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the given optimizer's state, and where workers started.

        Residuals of compression are not part of it; see `save_compression_state()`.
        """
        order = self._order()
        own = {
            "steps": self._steps,
            "count": self._count,
            "starts": {order[p]: start for p, start in self._starts.items()},
            "momenta": {order[p]: momentum for p, momentum in self._momenta.items()},
        }
        states = [it.state_dict() for it in self._optimizers]
        return {**(states[0] if len(states) == 1 else {"optimizers": states}), _STATE: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict()` returned, or the state of the given optimizer alone.

        In the second case the outer steps begin anew, from the weights of the next step, and so
        does the dense phase.

        Raises:
            ValueError: The state is that of other parameters, or of another number of optimizers;
                nothing is loaded.
        """
        state = dict(state_dict)
        own = state.pop(_STATE, {"steps": 0, "count": 0, "starts": {}, "momenta": {}})
        states = state.get("optimizers", [state])
        if len(states) != len(self._given):
            text = f"the state is of {len(states)}"
            raise ValueError(_SEVERAL.format(len(self._given), text))
        parameters = {position: p for p, position in self._order().items()}
        starts = _as_loaded(own["starts"], parameters)
        momenta = _as_loaded(own["momenta"], parameters)
        for it, its in zip(self._optimizers, states, strict=True):
            load_in_place(it, its, it.load_state_dict)
        self._count, self._starts, self._momenta = int(own["count"]), starts, momenta
        was_dense = self._is_dense
        self._steps = int(own.get("steps", self.dense_steps))  # Older states had no dense phase.
        if self._is_dense != was_dense:
            self._begin_phase()

    def _order(self) -> dict[torch.Tensor, int]:
        parameters = (p for group in self.param_groups for p in group["params"])
        return {p: position for position, p in enumerate(parameters)}

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        """Raises TypeError."""
        raise TypeError(_NO_COPY)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raises TypeError."""
        raise TypeError(_NO_COPY)


def _checked(optimizers: Any, is_named: bool) -> tuple[torch.optim.Optimizer, ...]:
    """Returns the optimizers of one rank that were given."""
    is_sequence = isinstance(optimizers, (tuple, list)) and len(optimizers) > 0
    for it in optimizers if is_sequence else [optimizers]:
        if not isinstance(it, torch.optim.Optimizer):
            msg = (
                f"optimizer is a {type(it).__name__}: expected a torch.optim.Optimizer, or a"
                " sequence of them"
            )
            raise TypeError(msg)
        if is_distributed(it) or isinstance(it, (AdasumOptimizer, LocalSteps)):
            msg = (
                "optimizer is distributed already: give LocalSteps the optimizer of one rank, and"
                " it combines gradients within a host itself"
            )
            raise ValueError(msg)
    if len(optimizers) > 1 and not is_named:
        raise ValueError(_SEVERAL.format(len(optimizers), "named_parameters is needed"))
    return tuple(optimizers)


def _check(
    every: int, dense_steps: int, outer_lr: float, outer_momentum: float, workers: str | Replicas
) -> None:
    if every < 1 or dense_steps < 0 or not outer_lr > 0 or not 0 <= outer_momentum < 1:
        msg = (
            f"every is {every}, dense_steps is {dense_steps}, outer_lr is {outer_lr} and"
            f" outer_momentum is {outer_momentum}: expected at least 1, at least 0, a number above"
            " 0, and one of at least 0 and below 1"
        )
        raise ValueError(msg)
    if workers not in ("hosts", "ranks") and not hasattr(workers, "average_gradients"):
        msg = (
            f"workers is {workers!r}; allowed are 'hosts', 'ranks', and what fsdp.replicate()"
            " returned"
        )
        raise ValueError(msg)


def _own(p: torch.Tensor) -> torch.Tensor:
    """Returns what this rank has of a parameter: its shard, or all of it."""
    shard: torch.Tensor = p.to_local() if hasattr(p, "to_local") else p  # A DTensor has it.
    return shard


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
        if p is None or _own(p).shape != tensor.shape:
            shape = "no such parameter" if p is None else f"the shape {tuple(_own(p).shape)}"
            msg = (
                f"the state of LocalSteps has a tensor of shape {tuple(tensor.shape)} for parameter"
                f" {position}, and the optimizer has {shape}"
            )
            raise ValueError(msg)
    return {
        parameters[position]: tensor.detach().to(parameters[position].device, copy=True)
        for position, tensor in saved.items()
    }
