"""Steps that torch.amp.GradScaler leaves to an optimizer, so that each rank makes every one.

GradScaler skips a step where gradients are not finite. Ranks whose gradients are their own would
then make different numbers of steps, and wait for one another. An optimizer that has
`_step_supports_amp_scaling` is called always, with `found_inf` and `grad_scale` set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def step_unless_infinite(optimizer: Any, step: Callable[..., Any], closure: Any) -> Any:
    """Makes a step, but where GradScaler has found gradients that are not finite.

    Args:
        optimizer: It has `param_groups`, and what GradScaler has set.
        step: Its step on this rank alone.
        closure: For `step`; `None`: there is none.

    Returns:
        What `step` returns; `None` where it was skipped.
    """
    own = optimizer.__dict__.get("_step_supports_amp_scaling", False)
    found_inf = None if own else getattr(optimizer, "found_inf", None)
    if found_inf is None:
        return step(closure) if closure is not None else step()
    if found_inf.item() != 0:
        return None
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        inverse = scale.double().reciprocal().float()
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(inverse.to(p.grad.device))
    # Done here, so not for the step to see. GradScaler deletes both afterwards.
    optimizer.grad_scale = optimizer.found_inf = None
    return step()
