"""Elastic training with torch: Horovod's `horovod.torch.elastic`.

Example:
    >>> import torch
    >>> import lightcc.torch as hvd
    >>> hvd.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    >>> state = hvd.elastic.TorchState(model, optimizer, batch=0)
    >>> @hvd.elastic.run
    ... def train(state):
    ...     while state.batch < 3:
    ...         optimizer.zero_grad()
    ...         model(torch.ones(4, 2)).square().mean().backward()
    ...         optimizer.step()
    ...         state.batch += 1
    ...         state.commit()
    >>> train(state)
"""

from __future__ import annotations

from lightcc.elastic import run
from lightcc.torch.elastic.sampler import ElasticSampler
from lightcc.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
