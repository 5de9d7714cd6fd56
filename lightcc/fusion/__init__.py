"""Which gradients travel together: the part of the fusion strategies that framework adapters share.

none, auto_fusion and horovod are rules of the engine's sequencer, which puts together what is
ready. piecewise_fusion and scopewise_fusion are plans that the user gives: lists of gradients by
name, the same on all ranks, each submitted as one group that the sequencer keeps to itself. Results
do not depend on any of it.

`choice` says which strategy is in force, `plans` makes plans (pure functions), and `planner` agrees
on the plan of one optimizer with the other ranks. An adapter makes a `Planner` and submits what its
`buckets` say.
"""

from __future__ import annotations

from lightcc.fusion.choice import STRATEGIES, FusionChoice, Rule, choose_fusion
from lightcc.fusion.planner import Planner
from lightcc.fusion.plans import BATCH_BYTES, Gradient, batches, digest_of, evenly

__all__ = [
    "BATCH_BYTES",
    "STRATEGIES",
    "FusionChoice",
    "Gradient",
    "Planner",
    "Rule",
    "batches",
    "choose_fusion",
    "digest_of",
    "evenly",
]
