"""Adam and AdamW whose gradients travel as `Compression.adam` says (see `AdamCompressor`).

A step is whole or light. In a whole step gradients travel in 4 bits and the optimizer does all that
Adam does. In a light one a rank sends, in 1 bit, what Adam would do with its gradient alone,

    x = (beta1 * m + (1 - beta1) * gradient) / d,   d = sqrt(v / (1 - missing)) + eps

The mean of all ranks is the new momentum over d, since m and d are the same on all ranks. From it
`gradient` gets the gradient that leads there, so clipping, scaling and hooks find what they expect.
The step updates m and the weights, and leaves v alone. v is thus learnt from one step in `every`:
its decay is beta2 ** every, but at most 0.95, or it would forget too fast. `missing` is the share
of v that is still the zeros it began with; of Adam that is beta2 ** step.

x is kept within sqrt(ranks), by which one rank's noise exceeds that of all, times the larger one of

- 1, which is what Adam does with gradients that are always the same;
- (1 - beta1) sqrt((1 - missing) / (1 - beta2)), which it does with an element's first gradient.

So an element that v does not know yet moves about as under Adam, and does not spoil its block.

What is kept back of gradients and of x has names of its own, since their units differ. m, v and
steps are where torch has them, so a `state_dict()` fits Adam without compression, too. Where torch
goes on with them, v is multiplied so that torch's correction of its beginning gives the same d.

A rank that has joined sends zeros. In a light step these are zeros of x, so the mean has less of m,
too: the others move less until all have joined. Ranks then differ in their number of steps, and so
in what they would send. From then on gradients travel in 4 bits.
"""

from __future__ import annotations

import logging
import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lightcc import _world
from lightcc._core import CompressionSpec
from lightcc.reductions import Sum

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightcc._adapter import CompressedGradients, GradientStream
    from lightcc.compression import AdamCompressor
    from lightcc.process_sets import ProcessSet

_log = logging.getLogger(__name__)

#: Ends of names: of what travels in whole steps, and in light ones.
SUFFIXES = ("", ".momentum")
_LARGEST_DECAY = 0.95
_MISSING = "second_moment_missing"
_JOINED = (
    "after join() ranks differ in the number of steps that they have done, by which 1-bit Adam"
    " compression decides what travels"
)
#: What changes Adam's arithmetic, or who does it.
_OPTIONS = ("amsgrad", "maximize", "capturable", "differentiable", "fused")


class _Terms(NamedTuple):
    """What x of a parameter is computed with."""

    momentum: torch.Tensor
    denominator: torch.Tensor
    beta1: float
    bound: float  # Of x.


def why_not(cls: type[Any], groups: Iterable[dict[str, Any]]) -> str | None:
    """Returns why this module does not suit an optimizer of class `cls`; `None`: it does."""
    if cls not in (torch.optim.Adam, torch.optim.AdamW):
        return f"{cls.__name__} is neither torch.optim.Adam nor AdamW"
    for group in groups:
        options = [option for option in _OPTIONS if group.get(option)]
        if options:
            return f"{cls.__name__} has the option {options[0]}"
        if not (group["eps"] > 0 and float(group["betas"][1]) > 0):
            return f"{cls.__name__} has an eps or a beta2 of 0"
    return None


class CompressedAdam:
    """The steps of one Adam or AdamW.

    Attributes:
        suffix: End of the names of what travels in light steps.
        is_active: Until something shows that this does not suit.
        is_on: Whether steps are done here; see `turn()`.
    """

    suffix = SUFFIXES[1]

    def __init__(
        self,
        optimizer: Any,
        compressor: AdamCompressor,
        compressed: CompressedGradients,
        process_set: ProcessSet,
        *,
        is_on: bool = True,
    ) -> None:
        """Takes a DistributedOptimizer, which has its `op` and parameter groups.

        Not `is_on`: somebody else says how gradients travel, and turns this on and off.
        """
        self.is_active = True
        self.is_on = is_on
        self._is_chosen = not is_on
        self._optimizer = weakref.ref(optimizer)  # Hooks of parameters lead here.
        self._compressor = compressor
        self._compressed = compressed
        self._process_set = process_set
        size = process_set.size() or 1
        self._share = 1.0 / size if optimizer.op == Sum else 1.0
        self._largest = math.sqrt(size) * self._share
        self._stream: GradientStream[Any] | None = None
        self._world = self._era = -1
        self._chosen: dict[torch.Tensor, bool] = {}  # Whether they are compressed.
        self._steps = 0  # Of the parameter that has done the maximum of them.
        self._newest = 0  # Steps of the one that has done the minimum.
        self._is_whole = True
        self._may_owe = True  # Whether the second moment may have another correction than torch's.
        self._terms: dict[torch.Tensor, _Terms] = {}
        self._denominators: dict[torch.Tensor, torch.Tensor] = {}
        self._noted: dict[torch.Tensor, tuple[int, int]] = {}

    # -- Steps ------------------------------------------------------------------------------------

    def start(self, stream: GradientStream[Any] | None = None) -> None:
        """Finds out where the training is; for a new optimizer, and when it has loaded its state.

        Args:
            stream: Of the gradients, none of which is on its way; `None`: the one before.
        """
        self._stream = stream or self._stream
        self._may_owe = True
        self._denominators.clear()
        state = self._state
        steps = [_steps_of(state, p) for p in self._parameters() if p.requires_grad]
        self._steps, self._newest = max(steps, default=0), min(steps, default=0)
        self._prepare()

    def turn(self, on: bool) -> None:
        """Begins to do the steps, or leaves them to the optimizer; between two of them.

        Where it was on and is off, the caller then says how gradients travel. What was kept back of
        momentum when it was on before is of another time, and is forgotten.
        """
        was_on, self.is_on = self.is_on, on
        if not on and not was_on:
            return
        if not was_on:
            self._compressed.forget(self.suffix)
        self.start()
        if not on and self._stream is not None:
            self._stream.travel(CompressionSpec.quantized(4), SUFFIXES[0])

    def finish(self, stepped: list[torch.Tensor]) -> None:
        """The step is over that has updated some parameters."""
        if stepped:
            state = self._state
            steps = [_steps_of(state, p) for p in stepped]
            self._steps, self._newest = max(steps), min(steps)
        self._prepare()

    def _prepare(self) -> None:
        """Makes ready for the next step."""
        if self._world == _world.number() and self._era != _world.era():
            self.give_up(_JOINED)
        self._world, self._era = _world.number(), _world.era()
        self._terms.clear()
        number = self._steps + 1
        self._is_whole = (
            not self._does_steps or self._is_warming_up() or number % self._compressor.every == 0
        )
        if not self._does_steps:
            self._hand_over()
        if self._is_whole:
            self._denominators.clear()
        else:
            for group in self._groups:
                beta1, beta2 = map(float, group["betas"])
                for p in filter(self._compresses, group["params"]):
                    present = 1.0 - _missing(self._state, p, beta2)
                    if present > 0.0:
                        of_first = (1.0 - beta1) * math.sqrt(present / (1.0 - beta2))
                        self._terms[p] = _Terms(
                            self._state[p]["exp_avg"],
                            self._denominator(p, group),
                            beta1,
                            max(1.0, of_first) * self._largest,
                        )
        if self._stream is not None and self.is_on:
            bits = 4 if self._is_whole else 1
            self._stream.travel(CompressionSpec.quantized(bits), SUFFIXES[bits == 1])

    @property
    def _does_steps(self) -> bool:
        return self.is_active and self.is_on

    def _hand_over(self) -> None:
        """Leaves second moments behind as the optimizer's own correction expects them."""
        if not self._may_owe:
            return
        self._may_owe = False
        state = self._state
        for group in self._groups:
            beta2 = float(group["betas"][1])
            for p in group["params"]:
                missing = state[p].pop(_MISSING, None) if p in state else None
                if missing is not None and missing < 1.0:
                    expected = 1.0 - beta2 ** _steps_of(state, p)
                    state[p]["exp_avg_sq"].mul_(expected / (1.0 - missing))

    def _is_warming_up(self) -> bool:
        return self._newest < self._compressor.warmup_steps

    # -- Gradients --------------------------------------------------------------------------------

    def shortens(self, p: torch.Tensor) -> bool:
        """Returns whether x of a parameter travels in this step, instead of its gradient."""
        if self._era != _world.era():
            self._chosen.clear()
            self.start()  # In another world other parameters may be compressed.
        return not self._is_whole and self._compresses(p)

    def shorten(self, p: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Returns x of a gradient; NaN where the gradient is not finite.

        It is 0 where nothing is known of the second moment: a parameter that is new in a light step
        begins with the next one, which is whole.
        """
        terms = self._terms.get(p)
        if terms is None:
            return torch.zeros_like(gradient)
        scale = self._compressed.scale or 1.0
        bound = terms.bound * scale
        x = torch.mul(gradient, 1.0 - terms.beta1)
        x.add_(terms.momentum, alpha=terms.beta1 * scale * self._share).div_(terms.denominator)
        return x.clamp_(-bound, bound).add_(gradient, alpha=0.0)

    def restore(self, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Returns the gradient for the combined x, in its memory."""
        terms = self._terms.get(p)
        if terms is None:
            return x
        scale = self._compressed.scale or 1.0
        x.mul_(terms.denominator).add_(terms.momentum, alpha=-terms.beta1 * scale)
        return x.div_(1.0 - terms.beta1)

    # -- What does not suit -----------------------------------------------------------------------

    def note(self) -> None:
        """Notes the combined gradients, so that a change of them is seen."""
        if self.is_active:
            self._noted = {p: _identity(p) for p in self._parameters() if p.grad is not None}

    def check_changes(self) -> None:
        """Gives up where somebody has changed combined gradients, as clipping does."""
        if any(p.grad is not None and _identity(p) != seen for p, seen in self._noted.items()):
            self.give_up(
                "1-bit Adam compression does not suit gradients that are changed between"
                " synchronize() and step(), as clipping does: their norm is not known in 1 bit"
            )
        self._noted.clear()

    def check_scaler(self) -> None:
        """Gives up where a GradScaler has a scale that it did not report.

        Raises:
            ValueError: What travels now is computed for another scale already.
        """
        if not self.is_active or self._compressed.scale is not None:
            return
        reason = (
            "1-bit Adam compression has to know by what the loss is multiplied: use"
            " lightcc.torch.GradScaler in the place of torch's"
        )
        if not self._is_whole:
            raise ValueError(reason)
        self.give_up(reason)
        self._prepare()

    def give_up(self, reason: str) -> None:
        """Lets gradients travel whole from the next step on, and the optimizer update all."""
        if not self.is_active:
            return
        self.is_active = False
        if self._process_set.rank() != 0:
            return
        if self._is_chosen:
            _log.info("Compression.auto: 1-bit Adam is no choice any more: %s", reason)
        else:
            _log.warning("%s. Gradients travel in 4 bits from now on.", reason)

    # -- Updates ----------------------------------------------------------------------------------

    @torch.no_grad()
    def update(self) -> list[torch.Tensor]:
        """Steps the compressed parameters and returns them; the others are the optimizer's."""
        stepped: list[torch.Tensor] = []
        if not self.is_on:
            return stepped
        self._may_owe = True
        for group in self._groups:
            parameters = [
                p
                for p in group["params"]
                if p.grad is not None and not p.grad.is_sparse and self._compresses(p)
            ]
            if parameters:
                self._update(parameters, group)
            stepped += parameters
        return stepped

    def _update(self, parameters: list[torch.Tensor], group: dict[str, Any]) -> None:
        state = self._state
        beta1, beta2 = map(float, group["betas"])
        rate, decay = float(group["lr"]), group["weight_decay"]
        gradients: Any = [p.grad for p in parameters]
        for p in parameters:
            if not state[p]:
                state[p]["step"] = torch.tensor(0.0)
                state[p]["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                state[p]["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state[p][_MISSING] = _missing(state, p, beta2)
            state[p]["step"] += 1
        if decay != 0 and self._is_decoupled(group):
            torch._foreach_mul_(parameters, 1.0 - rate * decay)
        elif decay != 0:
            gradients = [g.add(p, alpha=decay) for g, p in zip(gradients, parameters, strict=True)]
        torch._foreach_lerp_([state[p]["exp_avg"] for p in parameters], gradients, 1.0 - beta1)
        if self._is_whole:
            self._learn(parameters, gradients, beta2)
        moved = [p for p in parameters if state[p][_MISSING] < 1.0]
        if moved:
            torch._foreach_addcdiv_(
                moved,
                [state[p]["exp_avg"] for p in moved],
                [self._denominator(p, group) for p in moved],
                [-rate / (1.0 - beta1 ** _steps_of(state, p)) for p in moved],
            )

    def _learn(
        self, parameters: list[torch.Tensor], gradients: list[torch.Tensor], beta2: float
    ) -> None:
        """Updates the second moment, for the light steps since the last whole one, too."""
        if not self._is_warming_up():
            beta2 = min(beta2**self._compressor.every, _LARGEST_DECAY)
        moments = [self._state[p]["exp_avg_sq"] for p in parameters]
        torch._foreach_mul_(moments, beta2)
        torch._foreach_addcmul_(moments, gradients, gradients, 1.0 - beta2)
        for p in parameters:
            self._state[p][_MISSING] *= beta2
            self._denominators.pop(p, None)

    def _denominator(self, p: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        found = self._denominators.get(p)
        if found is None:
            present = 1.0 - _missing(self._state, p, float(group["betas"][1]))
            found = self._state[p]["exp_avg_sq"].div(present).sqrt_().add_(group["eps"])
            self._denominators[p] = found
        return found

    # -- The optimizer ----------------------------------------------------------------------------

    @property
    def _groups(self) -> list[dict[str, Any]]:
        optimizer = self._optimizer()
        return [] if optimizer is None else optimizer.param_groups

    @property
    def _state(self) -> Any:
        optimizer = self._optimizer()
        return {} if optimizer is None else optimizer.state

    def _is_decoupled(self, group: dict[str, Any]) -> bool:
        decoupled = isinstance(self._optimizer(), torch.optim.AdamW)  # Before torch 2.7 no option.
        return bool(group.get("decoupled_weight_decay", decoupled))

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self._groups for p in group["params"] if self._compresses(p)]

    def _compresses(self, p: torch.Tensor) -> bool:
        found = self._chosen.get(p)
        if found is None:
            num_bytes = p.numel() * p.element_size()
            found = p.is_floating_point() and self._compressed.compresses(num_bytes)
            self._chosen[p] = found
        return found


def _steps_of(state: Any, p: torch.Tensor) -> int:
    return int(state[p]["step"]) if p in state and "step" in state[p] else 0


def _missing(state: Any, p: torch.Tensor, beta2: float) -> float:
    """Returns the share of the second moment that is still what it began with."""
    return float(state.get(p, {}).get(_MISSING, beta2 ** _steps_of(state, p)))


def _identity(p: torch.Tensor) -> tuple[int, int]:
    return id(p.grad), p.grad._version  # type: ignore[union-attr]  # noqa: SLF001
