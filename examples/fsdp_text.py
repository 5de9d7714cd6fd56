"""Trains a transformer on English text, sharded by FSDP2, with compression between hosts.

    torchrun --nproc-per-node 2 examples/fsdp_text.py [--hsdp] [--checkpoint FOLDER]

Each rank holds a part of the weights. With `--hsdp` each host has a replica, whose parts its ranks
hold. With `--checkpoint` a second run goes on where the first ended. The text is that of `help()`.
"""

import argparse
import math
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from lightcc.torch import fsdp

BATCH, LENGTH, WIDTH = 8, 64, 96
parser = argparse.ArgumentParser()
parser.add_argument("--hsdp", action="store_true", help="shard in a host, replicate between hosts")
parser.add_argument("--checkpoint", type=Path, help="a folder to load from and to save to")
parser.add_argument("--steps", type=int, default=100, help="in all, those of a checkpoint too")
args = parser.parse_args()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters, self.places = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2)
        self.output = nn.Linear(WIDTH, 128)

    def forward(self, rows):  # The bits that it needs for each character after the first.
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.characters(rows[:, :-1]) + self.places.weight
        scores = self.output(self.blocks(hidden, mask, is_causal=True))
        return nn.functional.cross_entropy(scores.mT, rows[:, 1:]) / math.log(2)


dist.init_process_group("lightcc")
torch.manual_seed(0)
model, mesh = Model(), fsdp.host_mesh()
for module in (*model.blocks.layers, model):
    fully_shard(module, mesh=mesh["shard"] if args.hsdp else None)
if args.hsdp:
    fsdp.replicate(model, mesh["replicate"], gradients="int4")
else:
    fsdp.compress(model, weights="int8", gradients="int4")
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

weights, moments = get_state_dict(model, optimizer)
state = {"model": weights, "optimizer": moments, "step": 0}
if args.checkpoint and args.checkpoint.exists():
    dcp.load(state, checkpoint_id=args.checkpoint)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
begin = state["step"]
text = torch.tensor(list("".join(topics[it] for it in sorted(topics)).encode("ascii", "ignore")))
train, test = text[:-8320], text[-8320:].view(-1, LENGTH + 1)
for step in range(begin, args.steps):
    torch.manual_seed(step * dist.get_world_size() + dist.get_rank())  # Other text on each rank.
    rows = train.unfold(0, LENGTH + 1, 1)[torch.randint(len(train) - LENGTH, (BATCH,))]
    optimizer.zero_grad()
    model(rows).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
with torch.no_grad():
    bits = model(test)
if args.checkpoint:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": args.steps}
    dcp.save(state, checkpoint_id=args.checkpoint)
if dist.get_rank() == 0:
    print(f"step {begin} to {args.steps}, {mesh.size()} ranks: {bits:.2f} bits/character")
dist.destroy_process_group()
