"""Which gradients travel together: the part of the fusion strategies that framework adapters share.

none, auto_fusion and horovod are rules of the engine's sequencer, which puts together what is
ready. piecewise_fusion, scopewise_fusion, arrival and model are plans: lists of gradients by name,
the same on all ranks, each submitted as one group that the sequencer keeps to itself. Results do
not depend on any of it.

`choice` says which strategy is in force, `plans` makes plans (pure functions), and `planner` keeps
the plan of one optimizer, which two of the strategies learn from its first steps (`learning`). An
adapter makes a `Planner`, submits what `buckets` says, and calls `end_step()` after each step.
"""

from __future__ import annotations

from lightcc.fusion.choice import STRATEGIES, FusionChoice, Rule, choose_fusion
from lightcc.fusion.planner import Planner
from lightcc.fusion.plans import Gradient, digest_of

__all__ = [
    "STRATEGIES",
    "FusionChoice",
    "Gradient",
    "Planner",
    "Rule",
    "choose_fusion",
    "digest_of",
]
