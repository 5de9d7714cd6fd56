"""Sharded training by torch's FSDP2, with gradients that are compressed between hosts.

    dist.init_process_group("lightcc")
    mesh = fsdp.host_mesh()
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh["shard"])
    fsdp.replicate(model, mesh["replicate"], gradients="int4")

Each host then has a replica of the model, whose shards its ranks hold (HSDP). A model that is too
large for a host is sharded over all ranks:

    for module in (*model.layers, model):
        fully_shard(module)
    fsdp.compress(model, weights="int8", gradients="int4")

See docs/guides/sharded.md.
"""

from lightcc.torch.fsdp._replicas import Replicas, host_mesh, replicate
from lightcc.torch.fsdp._shards import compress

__all__ = ["Replicas", "compress", "host_mesh", "replicate"]
