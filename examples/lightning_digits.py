"""Trains on handwritten digits with Lightning, whose ranks talk through lightcc.

    torchrun --nproc-per-node 2 examples/lightning_digits.py [--topk 0.05]

`process_group_backend="lightcc"` of the strategy is all that lightcc needs. `--topk` adds DDP's
hook, which sends a share of each gradient's elements between hosts.
"""

import argparse

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightcc.torch import ddp_hooks


class Digits(lightning.LightningModule):
    def __init__(self, topk):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.topk = topk

    def on_train_start(self):
        if self.topk:
            replica = self.trainer.strategy.model
            state = ddp_hooks.TopKState(self, ratio=self.topk)
            replica.register_comm_hook(state, ddp_hooks.topk_2d_hook)

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch):
        right = (self.layers(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", right, sync_dist=True)
        self.log("ranks", float(dist.get_world_size()))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


parser = argparse.ArgumentParser()
parser.add_argument("--topk", type=float, help="share of a gradient's elements that is sent")
arguments = parser.parse_args()
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).flatten(1)
rows = TensorDataset(images, torch.tensor(digits.target))
train, test = torch.utils.data.random_split(rows, [1437, 360], torch.Generator().manual_seed(0))
strategy = DDPStrategy(process_group_backend="lightcc")  # The line for lightcc.
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=10, **quiet)
trainer.fit(Digits(arguments.topk), DataLoader(train, 32, shuffle=True), DataLoader(test, 180))
found, ranks = trainer.callback_metrics["accuracy"].item(), dist.get_world_size()
if trainer.is_global_zero:
    print(f"{dist.get_backend()}, {ranks} ranks: accuracy {found:.3f} on 360 images")
