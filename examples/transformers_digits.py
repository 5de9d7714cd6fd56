"""Trains on handwritten digits with transformers' Trainer, whose ranks talk through lightcc.

    torchrun --nproc-per-node 2 examples/transformers_digits.py [--topk 0.05]

The Trainer takes any module that returns a loss. On CPUs it knows one backend by name, so the
process group is made before its arguments, which take it as it is. That line is all that lightcc
needs. `--topk` adds DDP's hook, which sends a share of each gradient's elements between hosts.
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from lightcc.torch import ddp_hooks


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, pixels, labels):
        scores = self.layers(pixels)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


class TopK(TrainerCallback):
    def on_train_begin(self, *_, **__):
        state = ddp_hooks.TopKState(trainer.model_wrapped, ratio=arguments.topk)
        trainer.model_wrapped.register_comm_hook(state, ddp_hooks.topk_2d_hook)


parser = argparse.ArgumentParser()
parser.add_argument("--topk", type=float, help="share of a gradient's elements that is sent")
arguments = parser.parse_args()
dist.init_process_group("lightcc")  # The line for lightcc.

digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).flatten(1)
rows = [{"pixels": x, "labels": int(y)} for x, y in zip(images, digits.target, strict=True)]
with tempfile.TemporaryDirectory() as folder:
    options = {"learning_rate": 1e-2, "per_device_train_batch_size": 32, "use_cpu": True}
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    settings = TrainingArguments(folder, num_train_epochs=8, **options, **quiet)
    trainer = Trainer(Digits(), settings, train_dataset=rows[360:], eval_dataset=rows[:360])
    if arguments.topk:
        trainer.add_callback(TopK())
    trainer.train()
    found = trainer.predict(rows[:360])
accuracy = (found.predictions.argmax(1) == found.label_ids).mean()
backend, ranks = dist.get_backend(), settings.world_size
if trainer.is_world_process_zero():
    print(f"{backend}, {ranks} ranks: accuracy {accuracy:.3f} on 360 images")
dist.destroy_process_group()
