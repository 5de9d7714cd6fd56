"""Where Keras 3 must know of distributed optimizers that it does not ask.

- A model whose optimizer has collectives is not compiled by XLA, which does not know them. Keras
  asks `model_supports_jit()`: for "auto" it then leaves compilation out, and for True it warns.
- LossScaleOptimizer, which Keras itself puts around an optimizer in mixed precision, looks at this
  rank's gradients only. All ranks must take or skip a step together.

Models and optimizers that are not distributed are treated as before.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc._keras.backend import Backend

_log = logging.getLogger(__name__)

_MARK = "_lightcc_hook"


def install(is_distributed: Callable[[Any], bool], backend: Backend) -> None:
    """Puts the hooks into Keras 3, once in a process.

    Args:
        is_distributed: Returns whether an optimizer is distributed, or has such a one within it.
        backend: The framework below Keras.
    """
    trainer: Any = importlib.import_module("keras.src.trainers.trainer")
    supports = getattr(trainer, "model_supports_jit", None)
    if supports is None:
        _log.warning("this Keras cannot be told what to compile: compile with jit_compile=False")
    elif not hasattr(supports, _MARK):
        trainer.model_supports_jit = _supporting(supports, is_distributed, backend)
    optimizers: Any = importlib.import_module("keras.optimizers")
    loss_scale = optimizers.LossScaleOptimizer
    check = getattr(loss_scale, "check_finite", None)
    if check is not None and not hasattr(check, _MARK):
        loss_scale.check_finite = _checking(check, is_distributed)


def _supporting(
    supports: Callable[[Any], bool], is_distributed: Callable[[Any], bool], backend: Backend
) -> Callable[[Any], bool]:
    @functools.wraps(supports)
    def model_supports_jit(model: Any) -> bool:
        has_collectives = is_distributed(getattr(model, "optimizer", None))
        if has_collectives and not backend.compiles_collectives():
            return False
        return supports(model)

    setattr(model_supports_jit, _MARK, True)
    return model_supports_jit


def _checking(
    check: Callable[[Any, Any], Any], is_distributed: Callable[[Any], bool]
) -> Callable[[Any, Any], Any]:
    @functools.wraps(check)
    def check_finite(self: Any, grads: Any) -> Any:
        finite = check(self, grads)
        if is_distributed(self.inner_optimizer):
            # The gradients are combined afterwards, by the optimizer within.
            finite = self.inner_optimizer._all_ranks_finite(finite)  # noqa: SLF001
        return finite

    setattr(check_finite, _MARK, True)
    return check_finite
