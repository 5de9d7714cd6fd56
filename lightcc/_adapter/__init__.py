"""What every framework's frontend needs; nothing here knows a framework.

- `GradientStream`: the gradients of a training step, from ready to combined.
- `plan_groups`: the caller's all-or-nothing groups.
- `CompressedGradients`: what compression keeps of an optimizer's gradients.
- `CompressionGuard`: warns where that is too much.
- `CompressionTuner`: finds out how gradients should travel; `TunedSteps` does without a stream.
- `choose_under_squares`, `say_choice`: what LIGHT_TOPK_ALLREDUCE means for an optimizer.
- `warn_under_second_moment`: warns where an optimizer squares what compression has changed.
- `take_apart` and `put_together`: nested state as bytes and tensors, for broadcasts.

A frontend says how its gradients are taken and put back (`GradientSource`), and when they are
ready.
"""

from lightcc._adapter.compressed_gradients import CompressedGradients
from lightcc._adapter.compression_guard import LIMIT, LIMIT_OF_SQUARES, CompressionGuard
from lightcc._adapter.compression_tuner import CompressionTuner, Int4First, ways_within
from lightcc._adapter.flag import choose_under_squares, knobs_of_flag, say_choice
from lightcc._adapter.gradient_stream import GradientSource, GradientStream, Slot
from lightcc._adapter.groups import check_groups, groups_or_number, plan_groups
from lightcc._adapter.second_moment import warn_under_second_moment
from lightcc._adapter.structure import put_together, take_apart
from lightcc._adapter.tuned_steps import TunedSteps, compresses_in

__all__ = [
    "LIMIT",
    "LIMIT_OF_SQUARES",
    "CompressedGradients",
    "CompressionGuard",
    "CompressionTuner",
    "GradientSource",
    "GradientStream",
    "Int4First",
    "Slot",
    "TunedSteps",
    "check_groups",
    "choose_under_squares",
    "compresses_in",
    "groups_or_number",
    "knobs_of_flag",
    "plan_groups",
    "put_together",
    "say_choice",
    "take_apart",
    "warn_under_second_moment",
    "ways_within",
]
