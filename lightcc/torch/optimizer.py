"""DistributedOptimizer: an optimizer whose step uses the gradients of all ranks.

    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )

The result is an object of a class made for it, which inherits from the class of the given
optimizer: it *is* an SGD to learning-rate schedulers, GradScaler and whoever asks. It shares the
given optimizer's state and parameter groups, which should not be used any more by itself.

Gradients travel during the backward pass (`lightcc.torch._gradients`), `step()` waits for them.
Who wants to see the combined gradients before the step, to clip them for instance, writes

    loss.backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
"""

from __future__ import annotations

import copy
import os
import warnings
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from lightcc import _world
from lightcc._adapter import (
    CompressedGradients,
    CompressionTuner,
    check_groups,
    groups_or_number,
    plan_groups,
    warn_under_second_moment,
)
from lightcc._ops.basics import size
from lightcc._ops.reductions import Adasum, Average, Sum, check_op
from lightcc._warnings import say_where_nothing_is_compressed
from lightcc.compression import (
    AutoCompressor,
    Int8Compressor,
    check_compression,
    find_engine_compressor,
)
from lightcc.fusion import choose_fusion, digest_of
from lightcc.process_sets import HostProcessSet, ProcessSet, global_process_set, set_id
from lightcc.torch import mpi_ops
from lightcc.torch._adaptive import is_adaptive
from lightcc.torch._adasum_optimizer import AdasumOptimizer
from lightcc.torch._choice import choose_compression, make_guard, say_what_is_done
from lightcc.torch._compressed import Compressed
from lightcc.torch._copies import Copied
from lightcc.torch._gradients import GradientExchange
from lightcc.torch._momentum import momentum_to_take_over, without_momentum
from lightcc.torch._parameters import check_named, name_parameters
from lightcc.torch._private_names import PrivateNames
from lightcc.torch._start_check import StartCheck
from lightcc.torch.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lightcc._adapter import CompressionGuard
    from lightcc.fusion import FusionChoice
    from lightcc.torch._parameters import Groups

_SYNCHRONIZED_TWICE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after "
    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code."
)
_RACE = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
    "optimizer.synchronize(). This is prohibited as it can cause a race condition."
)


class _DistributedOptimizer(Compressed, Copied, PrivateNames):
    """What DistributedOptimizer adds to the class of an optimizer; comes first among its bases.

    Attributes:
        backward_passes_per_step: Set it with `set_backward_passes_per_step()`.
        op: How gradients are combined.
        gradient_predivide_factor: As of DistributedOptimizer.
        sparse_as_dense: As of DistributedOptimizer.
        process_set: The ranks whose gradients are combined.
    """

    def _distribute(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        compression: Any,
        backward_passes_per_step: int,
        op: int,
        gradient_predivide_factor: float,
        groups: Groups | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        fusion: FusionChoice,
    ) -> None:
        """Starts the work of this class on an object that has the state of the given optimizer."""
        self.backward_passes_per_step = backward_passes_per_step
        self.op = op
        self.gradient_predivide_factor = gradient_predivide_factor
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self._synchronized = False
        self._needs_no_warning = False  # The caller did not synchronize, but something else did.
        self._should_synchronize = True
        self._exchange: GradientExchange | None = None
        self._guard: CompressionGuard | None = None
        self._tuner: CompressionTuner[Any] | None = None
        self._named = None if named_parameters is None else check_named(named_parameters)
        names = name_parameters(self.param_groups, self._named)
        self._parameter_names = dict(names)
        self._compression = compression  # Not used here; Horovod's users read it.
        self._groups = groups
        self._fusion = fusion
        if groups is not None:
            check_groups(groups, "torch.Tensor", lambda p: isinstance(p, torch.Tensor))
        cls = type(self).__bases__[1]  # The given optimizer's class.
        is_exact = isinstance(process_set, HostProcessSet)  # Nothing is compressed within a host.
        chosen = compression if is_exact else choose_compression(compression, op, self.param_groups)
        compressor = find_engine_compressor(chosen)
        self._compressed = CompressedGradients(
            Int8Compressor if isinstance(compressor, AutoCompressor) else chosen,
            self._parameter_names,
            process_set,
            momentum_to_take_over(chosen, self.param_groups),
        )
        alone = size() == 1 and os.environ.get("HOROVOD_ELASTIC") != "1"
        if alone or not process_set.included():
            return
        if compressor is not None:
            say_where_nothing_is_compressed(_world.current(), set_id(process_set))
        if chosen is not compression:
            say_what_is_done(chosen, cls, self.param_groups, process_set)
            self._guard = make_guard(self._compressed, self.param_groups, process_set)
        elif is_adaptive(self.param_groups):
            sizes = (p.numel() * p.element_size() for p in self._parameter_names)
            warn_under_second_moment(compression, cls.__name__, sizes, process_set, stacklevel=4)
        trained = {p: name for p, name in names.items() if p.requires_grad}
        self._exchange = GradientExchange(
            names,
            plan_groups(groups, trained, process_set) if groups is not None else [],
            compression=chosen,
            spec=self._compressed.spec,
            passes=backward_passes_per_step,
            op=op,
            predivide_factor=gradient_predivide_factor,
            sparse_as_dense=sparse_as_dense,
            process_set=process_set,
            fusion=fusion,
            start_check=StartCheck(names, self.param_groups, process_set),
        )
        # The model may outlive this optimizer; then nobody would wait for its gradients.
        leave = weakref.finalize(self, self._exchange.remove_hooks)
        leave.atexit = False
        if isinstance(compressor, AutoCompressor):
            try:
                self._tuner = CompressionTuner(
                    compressor,
                    self._exchange.stream,
                    self._compressed.compresses,
                    process_set,
                    squares=is_adaptive(self.param_groups),
                )
            except ValueError:
                leave()  # Its budget is too small. Another optimizer may have the parameters.
                raise

    def _arguments(self, memo: dict[int, Any]) -> tuple[Any, ...]:
        return (
            self._compression,
            self.backward_passes_per_step,
            self.op,
            self.gradient_predivide_factor,
            copy.deepcopy(self._groups, memo),
            self.sparse_as_dense,
            self.process_set,
            self._fusion,
        )

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes are accumulated on each rank before gradients travel.

        Raises:
            ValueError: `passes` is not positive.
        """
        _check_passes(passes)
        self.backward_passes_per_step = passes
        if self._exchange is not None:
            self._exchange.stream.set_passes(passes)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, as in torch; their gradients are combined as well.

        They have the names of DistributedOptimizer's `named_parameters`, if it had any.

        Collective: every rank of the process set must call it.

        Raises:
            ValueError: As of torch; or there were `named_parameters`, but not for these; or
                gradients of them are on their way in another DistributedOptimizer.
        """
        super().add_param_group(param_group)
        if self._exchange is not None:
            last = len(self.param_groups) - 1
            try:
                names = name_parameters(self.param_groups[last:], self._named, last)
                self._exchange.add(names)
            except ValueError:
                self.param_groups.pop()
                raise
            self._parameter_names |= names

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Loads the state, as in torch, but the parameter groups stay the same objects.

        A learning-rate scheduler that was made with the given optimizer thus goes on.

        Gradients are left alone, as in torch: where some are on their way, they are awaited as by
        `synchronize()`, so that nothing arrives after the state, and a `step()` that comes next
        uses them. Those that a failure of the world has cut off are lost, and the log says so.

        Collective where gradients are on their way: every rank of the process set must call it, or
        `synchronize()`.
        """
        if self._exchange is not None:
            combined = self._exchange.settle()
            if combined is not None:
                self._synchronized = self._needs_no_warning = combined
        self._should_synchronize = True
        super().load_state_dict(*args, **kwargs)

    def synchronize(self) -> None:
        """Waits until the gradients are those of all ranks.

        Parameters without a gradient on this rank, where another may have one, get zeros and then
        the combined gradient.

        Collective: every rank of the process set must call it, or `step()`, which does.

        Raises:
            AssertionError: A gradient was changed on its way, by clipping for instance; on ranks
                where that is so.
            HorovodInternalError: A rank failed, or ranks disagree about a parameter. On all ranks.
            RuntimeError: Another DistributedOptimizer was made later for one of its parameters.
        """
        if self._exchange is not None:
            self._exchange.synchronize()
        self._synchronized = True
        self._needs_no_warning = False

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Makes `step()` not synchronize, because `synchronize()` was called before."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the gradients of all ranks, then does the step of the given optimizer.

        Args:
            closure: Computes the loss and its gradients again. Each time, the gradients of all
                ranks are awaited, and the loss is combined as they are, so that ranks take the same
                decisions (LBFGS). Not so within `skip_synchronize()`.

        Returns:
            What the given optimizer returns.

        Raises:
            AssertionError: As `synchronize()`; no parameter has changed.
            HorovodInternalError: As `synchronize()`.
        """
        if self._exchange is not None and self._should_synchronize:
            if closure is not None:
                self._synchronized = False
                return self._step(self._synchronizing(closure))
            if not self._has_synchronized():
                self.synchronize()
            elif not self._needs_no_warning:
                warnings.warn(_SYNCHRONIZED_TWICE, stacklevel=2)
        elif self._should_synchronize and self._synchronized:
            warnings.warn(_SYNCHRONIZED_TWICE, stacklevel=2)
        self._synchronized = False
        return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        """Does the step with the gradients that are there."""
        if self._guard is not None:
            self._guard.count_step()
        with without_momentum(self._compressed, self.param_groups):
            loss = super().step(closure) if closure is not None else super().step()
        if self._tuner is not None:
            self._tuner.count_step()
        return loss

    # torch wraps the step of a class that it has not seen before with its own step hooks; the
    # inherited step has them already.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, as in torch.

        Raises:
            AssertionError: Gradients are on their way.
        """
        if self._exchange is not None and self._exchange.stream.active:
            raise AssertionError(_RACE)
        self._synchronized = False
        super().zero_grad(set_to_none)

    def _has_synchronized(self) -> bool:
        """Whether `synchronize()` was called and no gradient came since."""
        return self._synchronized and not (
            self._exchange is not None and self._exchange.stream.active
        )

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False
            return self._combine_loss(loss)

        return evaluate

    def _combine_loss(self, loss: Any) -> Any:
        if loss is None:
            return None
        is_tensor = isinstance(loss, torch.Tensor)
        value = loss.detach().clone() if is_tensor else torch.tensor(loss, dtype=torch.float64)
        value = mpi_ops.allreduce_(
            value,
            # Named for this optimizer, as ranks may step optimizers in any order.
            name=f"DistributedOptimizer.loss.{digest_of(self._parameter_names.values())}",
            op=Sum if self.op == Sum else Average,
            process_set=self.process_set,
        )
        return value if is_tensor else value.item()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch.amp.GradScaler.step() asks before it looks at the gradients.

        It then divides them and skips the step where one is not finite, which is right only when
        they are those of all ranks: so this is where they are awaited.
        """
        if self._exchange is not None and self._should_synchronize and not self._has_synchronized():
            self.synchronize()
            self._needs_no_warning = True
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value


def is_distributed(optimizer: object) -> bool:
    """Returns whether `DistributedOptimizer()` made an optimizer that combines gradients."""
    return isinstance(optimizer, _DistributedOptimizer)


def _check_passes(passes: int) -> None:
    if passes <= 0:
        msg = "backward_passes_per_step must be > 0"
        raise ValueError(msg)


def _check_arguments(
    optimizer: object, passes: int, op: int, factor: float, process_set: ProcessSet
) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        msg = f"optimizer is a {type(optimizer).__name__}: expected a torch.optim.Optimizer"
        raise TypeError(msg)
    if isinstance(optimizer, (_DistributedOptimizer, AdasumOptimizer)):
        msg = "optimizer is a DistributedOptimizer already."
        raise ValueError(msg)  # noqa: TRY004  it is one of the right type, in a wrong state
    check_op(op)
    if factor != 1.0 and op != Average:
        msg = "gradient_predivide_factor not supported with op != Average"
        raise ValueError(msg)
    if not factor > 0:
        msg = f"gradient_predivide_factor is {factor}: expected a number > 0"
        raise ValueError(msg)
    _check_passes(passes)
    if not isinstance(process_set, HostProcessSet) and set_id(process_set) is None:
        msg = "Process set provided does not exist, or has not been registered."
        raise ValueError(msg)


def _with_class(optimizer: torch.optim.Optimizer, mixin: type[Any]) -> Any:
    """Returns an object with the state of `optimizer`, of a class that adds `mixin` to its own."""
    base = type(optimizer)
    cls = type(base.__name__, (mixin, base), {"__doc__": mixin.__doc__})
    distributed: Any = object.__new__(cls)
    # A learning-rate scheduler puts a step of its own, which belongs to the given object, there.
    state = {name: value for name, value in vars(optimizer).items() if name != "step"}
    vars(distributed).update(state)
    return distributed


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    fusion_type: str | None = None,
    auto_fusion_threshold: int | None = None,
    piecewise_fusion_schedule: str | None = None,
    scopewise_fusion_schedule: str | None = None,
) -> Any:
    """Returns `optimizer` with a step that uses the gradients of all ranks.

    Collective: must be called on every rank, with the same arguments and parameters. Gradients
    are matched by the names of the parameters. Start with `broadcast_parameters()` and
    `broadcast_optimizer_state()`. Ranks outside `process_set` use their own gradients.

    Args:
        optimizer: Any torch optimizer. Its state and parameter groups are shared, not copied.
        named_parameters: Tuples (name, parameter), as of `model.named_parameters()`; all
            parameters of `optimizer` must be among them. `None` names them by their position,
            so that only one such optimizer may have gradients in flight at a time.
        compression: What is sent for a gradient: `Compression.none`, `.fp16`, `.bf16`,
            `.topk(...)`, `.int8`, `.int4`, `.auto(...)`, which finds out, or a class with
            `compress()` and `decompress()`. With `Compression.none`, LIGHT_TOPK_ALLREDUCE=1 means
            what suits `optimizer`: `.int4` where it has a second moment, as Adam does, and else
            top-k after 2100 steps of int4.
        backward_passes_per_step: Gradients of that many backward passes are added up on each rank
            before they are combined.
        op: `Average`, `Sum`, `Min`, `Max`, `Product`; or `Adasum`: then each rank does a step with
            its own gradients, and what the steps changed is combined.
        gradient_predivide_factor: With `Average`: how much of the division by the number of ranks
            comes before the sum; the gradients are divided by it before and by size/it after.
        num_groups: Deprecated; use `groups`.
        groups: How many groups of parameters to make, or lists of parameters; the gradients of a
            group are combined all at once. Parameters that no list has travel by themselves.
        sparse_as_dense: Whether sparse gradients are combined as dense ones. Otherwise their
            elements are gathered, and every rank must have had such a gradient.
        process_set: The ranks whose gradients are combined.
        fusion_type: Which gradients travel in one bucket; results do not depend on it. The variable
            LIGHT_FUSION_STRATEGY counts before it, `None` is `"auto_fusion"`.

            - `"none"`: each alone.
            - `"auto_fusion"`: what is ready, up to `auto_fusion_threshold`.
            - `"piecewise_fusion"`: as `piecewise_fusion_schedule` cuts the list of parameters.
            - `"scopewise_fusion"`: by `scopewise_fusion_schedule`; the rest is one bucket.
            - `"horovod"`: as Horovod, by HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME.

            Parameters in `groups` stay in their groups; op=Adasum fuses nothing.
        auto_fusion_threshold: Bytes, the most that auto_fusion puts into one bucket. `None`:
            LIGHT_FUSION_THRESHOLD, which counts before it.
        piecewise_fusion_schedule: Ascending positions in the list of parameters where buckets
            begin: "2;6" makes the buckets 0-1, 2-5 and 6 to the end; `None` is "0", one bucket.
            LIGHT_FUSION_SCHEDULE counts before it.
        scopewise_fusion_schedule: Prefixes of names, a bucket for each: "encoder;decoder".
            LIGHT_FUSION_SCHEDULE counts before it.

    Returns:
        An object of a new class that inherits from the class of `optimizer`, with the methods
        `synchronize()`, `skip_synchronize()` and `set_backward_passes_per_step()` besides, and
        for compression `compression_state_dict()`, `load_compression_state_dict()` and
        `set_gradient_scale()`.

    Raises:
        ValueError: An argument is not allowed, lightcc is not initialized, or a gradient is on its
            way in another DistributedOptimizer, which this one takes over. On the ranks where that
            is so.
        TypeError: `optimizer`, `compression` or `process_set` is of another kind. Likewise.
        NotImplementedError: `Adasum` with another process set than all ranks.

    Example:
        >>> import torch, lightcc.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        >>> isinstance(optimizer, torch.optim.SGD)
        True
    """
    groups = groups_or_number(groups, num_groups)
    _check_arguments(
        optimizer, backward_passes_per_step, op, gradient_predivide_factor, process_set
    )
    check_compression(compression)
    compressor = find_engine_compressor(compression)
    if compressor is not None and op not in (Average, Sum):
        msg = f"{compressor.label} compression needs op=Average or op=Sum."
        raise ValueError(msg)
    fusion = choose_fusion(
        fusion_type, auto_fusion_threshold, piecewise_fusion_schedule, scopewise_fusion_schedule
    )
    if op == Adasum and size() > 1:
        if process_set is not global_process_set:
            msg = "Adasum does not support non-global process sets yet."
            raise NotImplementedError(msg)
        delta_optimizer = _with_class(optimizer, AdasumOptimizer)
        delta_optimizer._distribute(  # noqa: SLF001  not for users of the object
            named_parameters, compression, backward_passes_per_step
        )
        return delta_optimizer
    distributed = _with_class(optimizer, _DistributedOptimizer)
    distributed._distribute(  # noqa: SLF001  not for users of the object
        named_parameters,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        groups,
        sparse_as_dense,
        process_set,
        fusion,
    )
    return distributed
