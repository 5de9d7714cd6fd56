"""LocalSteps: workers train on their own, and combine how far they have come every few steps.

For links on which even compressed gradients are too slow. A worker is a host, whose ranks combine
gradients in every step, or a single rank. All workers start from the same weights. They may train
as one for a while. Then, after `every` steps of the given optimizer, an outer step takes what they
have done as a gradient,

    delta = mean over workers of (start - weights)
    momentum = outer_momentum * momentum + delta
    start = start - outer_lr * (delta + outer_momentum * momentum)
    weights = start

which is SGD with Nesterov momentum. Between hosts an element thus travels once in `every` steps,
and then compressed: all of a device travel as one row, in which blocks that share a scale are of
one parameter (`lightcc.torch._outer_steps`).

Sources: Stich, "Local SGD Converges Fast and Communicates Little" (2019), for means; Douillard et
al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023), for momentum;
Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo" (2025), for top-k.
"""

from __future__ import annotations

import copy
import logging
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from lightcc import _world
from lightcc._low_communication import EVERY, losses_text
from lightcc.compression import TopKCompressor, check_compression, engine_spec
from lightcc.process_sets import HostProcessSet, ProcessSet, global_process_set
from lightcc.torch._adasum_optimizer import AdasumOptimizer
from lightcc.torch._loading import load_in_place
from lightcc.torch._outer_steps import OuterSteps, own_part
from lightcc.torch._parameters import check_named, name_parameters
from lightcc.torch._scaled_step import step_unless_infinite
from lightcc.torch.compression import Compression
from lightcc.torch.functions import broadcast_optimizer_state
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
_SEVERAL = "LocalSteps has {} optimizers: {}"


class LocalSteps(torch.optim.Optimizer):
    """An optimizer whose steps stay within a worker; now and then all workers make an outer step.

    It has the state, parameter groups and options of the given optimizer, which should not be used
    any more by itself. Until the next outer step workers have weights of their own; call
    `outer_step()` before an evaluation or a checkpoint that stands for all. Clipping, as after
    `synchronize()`, is that of a worker. Buffers, such as those of BatchNorm, are not combined.

    A worker that has joined (`join()`) is left out of the mean. So is one that an elastic job has
    lost: the others make an outer step when their next world begins, and a worker that is new
    starts where that ends. All workers then have the optimizer state of the state's source.

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
        every: int = EVERY,
        dense_steps: int = 0,
        outer_momentum: float | None = None,
        outer_lr: float | None = None,
        compression: Any = Compression.int4,
        dense_compression: Any = Compression.none,
        workers: str | Replicas = "hosts",
        backward_passes_per_step: int = 1,
        overlap: bool = False,
        total_steps: int | None = None,
    ) -> None:
        """Takes over an optimizer, or several that have a part of the parameters each.

        Weights must be the same on all ranks when the first step begins.

        Collective: every rank must call it.

        Args:
            optimizer: Any optimizer of torch, but no DistributedOptimizer; or a sequence of them,
                as Muon for matrices and AdamW for the rest.
            named_parameters: As of DistributedOptimizer. Needed where there are several optimizers.
            every: Steps from one outer step to the next, at least 1. A slow worker may make fewer
                of them than a fast one, down to a quarter; it then weighs less in the mean.
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
                trains on its own. What `fsdp.replicate()` returned: its replicas, whose ranks hold
                shards and exchange those; its `gradients` take the place of `dense_compression`.
            backward_passes_per_step: As of DistributedOptimizer, where ranks combine gradients.
            overlap: Whether an exchange goes on beside the next step. Then the workers' weights
                are not the same right after an outer step, but for one by `outer_step()`.
            total_steps: Of the training. Rank 0 logs what was measured in trainings as long.

        Raises:
            TypeError: `optimizer` is none, or a compression is no compressor.
            ValueError: A number is out of its range, `workers` is another word, the optimizer is
                distributed already, or several come without names. On the ranks that made the
                call.
        """
        given = (optimizer,) if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        topk = isinstance(compression, TopKCompressor)
        if outer_momentum is None:
            outer_momentum = 0.5 if every >= 10 and not topk else 0.0
        if outer_lr is None:
            outer_lr = 1.5 if topk else 0.8 if every >= 10 else 1.0
        self._given = _checked(given, named_parameters is not None)
        _check(every, dense_steps, outer_lr, outer_momentum, workers, total_steps)
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
        self._overlap = overlap
        for it in self._given:
            name_parameters(it.param_groups, self._named)  # Checks that all have names.
        self._replicas = None if isinstance(workers, str) else workers
        ranks = self._replicas.process_set if self._replicas else global_process_set
        self._outer = OuterSteps(outer_lr, outer_momentum, compression, every, ranks)
        self._worker: ProcessSet | None = None
        is_elastic = os.environ.get("HOROVOD_ELASTIC") == "1"  # Hosts may change.
        if workers == "hosts" and (is_elastic or any(len(it) > 1 for it in _world.current().hosts)):
            self._worker = HostProcessSet()
        self._is_taking_over = False
        self._combining: tuple[Any, ...] = ()  # The given ones, while ranks combine gradients.
        self._begin_phase()
        if _world.rank() == 0:
            level = logging.INFO if total_steps is None else logging.WARNING  # That was asked for.
            _log.log(level, "LocalSteps: %s", losses_text(every, dense_steps, topk, total_steps))
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
        names = self._trained()
        self._outer.note_starts(names)
        result = step_unless_infinite(self, self._step_worker, closure)
        self._outer.count += 1
        self._outer.finish()
        if self._outer.count >= self.every:
            self._outer.begin(names, goes_on=self._overlap)
            if not self._overlap:
                self._outer.finish()
        return result

    def _step_worker(self, closure: Callable[[], Any] | None = None) -> Any:
        if len(self._given) == 1:
            return self._optimizers[0].step(closure) if closure else self._optimizers[0].step()
        for it in self._optimizers:
            it.step()
        return None

    def outer_step(self) -> None:
        """Combines what workers have done since the last outer step; does nothing right after one.

        All workers have the same weights when it returns. What is under way ends before it.

        Collective: every rank must call it after the same number of steps.

        Raises:
            HorovodInternalError: A rank failed; nothing has changed. On all ranks.
        """
        self._outer.finish()
        if self._outer.count > 0:
            self._outer.begin(self._trained(), goes_on=False)
            self._outer.finish()

    def take_over(self, root: int) -> None:
        """Takes over the state of rank `root`, then combines what all workers have done since.

        An elastic state does so when a world begins. A worker that is new has done nothing, and is
        left out of the mean.

        Collective: every rank must call it.

        Args:
            root: World rank of one that is not new.

        Raises:
            HorovodInternalError: A rank failed. On all ranks.
        """
        self._outer.drop()
        before = copy.copy(self._outer)
        self._is_taking_over = True
        try:
            broadcast_optimizer_state(self, root)
        finally:
            self._is_taking_over = False
        self._begin_phase()  # On all ranks: those that are new come out of another one.
        if self._outer.starts:
            self._outer.take_over(before, self._trained())

    def _trained(self) -> dict[torch.Tensor, str]:
        names = name_parameters(self.param_groups, self._named)
        return {p: name for p, name in names.items() if p.requires_grad or p in self._outer.starts}

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
            "count": self._outer.count,
            "starts": {order[p]: start for p, start in self._outer.starts.items()},
            "momenta": {order[p]: momentum for p, momentum in self._outer.momenta.items()},
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
        self._outer.drop()
        self._outer.count = int(own["count"])
        self._outer.starts, self._outer.momenta = starts, momenta
        was_dense = self._is_dense
        self._steps = int(own.get("steps", self.dense_steps))  # Older states had no dense phase.
        if self._is_dense != was_dense and not self._is_taking_over:
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
    every: int,
    dense_steps: int,
    outer_lr: float,
    outer_momentum: float,
    workers: str | Replicas,
    total_steps: int | None,
) -> None:
    if every < 1 or dense_steps < 0 or not outer_lr > 0 or not 0 <= outer_momentum < 1:
        msg = (
            f"every is {every}, dense_steps is {dense_steps}, outer_lr is {outer_lr} and"
            f" outer_momentum is {outer_momentum}: expected at least 1, at least 0, a number above"
            " 0, and one of at least 0 and below 1"
        )
        raise ValueError(msg)
    if total_steps is not None and total_steps <= dense_steps:
        msg = f"total_steps is {total_steps}: expected more than the {dense_steps} dense steps"
        raise ValueError(msg)
    if workers not in ("hosts", "ranks") and not hasattr(workers, "average_gradients"):
        msg = (
            f"workers is {workers!r}; allowed are 'hosts', 'ranks', and what fsdp.replicate()"
            " returned"
        )
        raise ValueError(msg)


def _as_loaded(
    saved: dict[int, torch.Tensor], parameters: dict[int, torch.Tensor]
) -> dict[torch.Tensor, torch.Tensor]:
    for position, tensor in saved.items():
        p = parameters.get(position)
        if p is None or own_part(p).shape != tensor.shape:
            shape = "no such parameter" if p is None else f"the shape {tuple(own_part(p).shape)}"
            msg = (
                f"the state of LocalSteps has a tensor of shape {tuple(tensor.shape)} for parameter"
                f" {position}, and the optimizer has {shape}"
            )
            raise ValueError(msg)
    return {
        parameters[position]: tensor.detach().to(parameters[position].device, copy=True)
        for position, tensor in saved.items()
    }
