"""Sharded training by torch's FSDP2, with gradients that are compressed between hosts.

    dist.init_process_group("lightcc")
    mesh = fsdp.host_mesh()
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh["shard"])
    fsdp.replicate(model, mesh["replicate"], gradients="int4")

Each host then has a replica of the model, whose shards its ranks hold (HSDP). See
docs/guides/sharded.md.
"""

from lightcc.torch.fsdp._replicas import host_mesh, replicate

__all__ = ["host_mesh", "replicate"]
