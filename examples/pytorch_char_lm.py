"""Trains a recurrent network to continue English text, character by character, data-parallel.

    lightccrun -np 2 python examples/pytorch_char_lm.py [--minutes 1]

The text is what every Python installation ships: the reference texts behind `help()`, of the module
pydoc_data.topics. Each rank reads other parts of it, and trains on a GPU where there is one, or on
the CPU with `--no-cuda`. Shown are bits per character of a part kept for the test, and what the
model would write; at the end all ranks prove that they hold the same weights. The exit code is 0 if
they do and the model does better than character frequencies would.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
import time
from pydoc_data.topics import topics

import torch
from torch import nn

import lightcc.torch as hvd

BATCH, LENGTH, WIDTH = 16, 64, 192


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to train")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU")
    return parser.parse_args()


def choose_device(no_cuda):
    """Returns the GPU of this rank's number on its host, or the CPU. Ranks may share GPUs."""
    if no_cuda or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    return torch.device("cuda")


def load():
    """Returns the characters, and the text as their numbers."""
    text = "".join(topics[name] for name in sorted(topics))
    text = text.encode("ascii", "ignore").decode("ascii")
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    return characters, torch.tensor([number[character] for character in text])


class Model(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.embedding = nn.Embedding(characters, WIDTH)
        self.recurrent = nn.GRU(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.output = nn.Linear(WIDTH, characters)

    def forward(self, text, state=None):
        hidden, state = self.recurrent(self.embedding(text), state)
        return self.output(hidden), state


def bits_per_character(model, text):
    """Returns the bits that the model needs for each character of `text`, after the first."""
    rows = text[: len(text) // 256 * 256].view(-1, 256)
    logits, _ = model(rows[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    return loss.item() / math.log(2)


def frequency_bits(train, text, count):
    """Returns the same for a model that knows only how frequent each character is."""
    share = (torch.bincount(train, minlength=count) + 1).double()
    share /= share.sum()
    return -share[text].log2().mean().item()


def continue_text(model, characters, start, length=120):
    text = [characters.index(character) for character in start]
    state = None
    device = model.output.weight.device
    given = torch.tensor([text], device=device)
    generator = torch.Generator().manual_seed(1)
    for _ in range(length):
        logits, state = model(given, state)
        choice = torch.multinomial((logits[0, -1].cpu() / 0.6).softmax(0), 1, generator=generator)
        text.append(choice.item())
        given = choice.view(1, 1).to(device)
    return "".join(characters[i] for i in text)


def log(text):
    if hvd.rank() == 0:
        print(text, flush=True)


def main():
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    characters, text = load()
    train, test = text[:-16384], text[-16384:]
    plain = frequency_bits(train, test, len(characters))
    log(f"{len(train)} characters to learn from; by frequency alone: {plain:.2f} bits/character")

    device = choose_device(args.no_cuda)
    train, test = train.to(device), test.to(device)
    torch.manual_seed(0)
    model = Model(len(characters)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    torch.manual_seed(hvd.rank())  # From here, other text on each rank.
    begin = shown = time.monotonic()
    step, over = 0, False
    while not over:
        starts = torch.randint(len(train) - LENGTH, (BATCH,))
        rows = torch.stack([train[s : s + LENGTH + 1] for s in starts])
        optimizer.zero_grad()
        logits, _ = model(rows[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        step += 1
        if step % 10 == 0:
            # All ranks end together, when the first one's time is up.
            now = time.monotonic()
            late = torch.tensor(now - begin > 60 * args.minutes, dtype=torch.int32)
            over = bool(hvd.allreduce(late, op=hvd.Max, name="over"))
            if over or now - shown > 10:
                shown = now
                with torch.no_grad():
                    log(f"step {step}: {bits_per_character(model, test):.2f} bits/character")

    with torch.no_grad():
        bits = bits_per_character(model, test)
        log(f"it writes: {continue_text(model, characters, 'The ')!r}")
    state = b"".join(tensor.cpu().numpy().tobytes() for tensor in model.state_dict().values())
    digests = hvd.allgather_object(hashlib.sha256(state).hexdigest())
    if len(set(digests)) != 1:
        sys.exit(f"weights differ between ranks: {digests}")
    log(f"{step * BATCH * LENGTH * hvd.size() / (time.monotonic() - begin):.0f} characters/s")
    log(f"all ranks hold the same weights, bit for bit: {digests[0][:16]}")
    hvd.shutdown()
    return 0 if bits < plain else 1


if __name__ == "__main__":
    sys.exit(main())
