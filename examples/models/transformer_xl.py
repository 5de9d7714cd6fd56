"""Transformer-XL (Dai et al. 2019), the 12-layer model for characters with 41 million parameters.

Positions are relative: a query sees a key at distance d through a projection of the sinusoids of d.
Each layer also attends to its inputs of the segment before, which are kept without gradients.
"""

from __future__ import annotations

import math

import torch
from torch import nn

CHARACTERS = 204
WIDTH, HEADS, INNER, LAYERS = 512, 8, 2048, 12
HEAD = WIDTH // HEADS


def sinusoids(length):
    """Returns the sinusoids of the distances length-1 ... 0, shape (length, WIDTH)."""
    distances = torch.arange(length - 1, -1, -1.0)
    angles = distances[:, None] * 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    return torch.cat([angles.sin(), angles.cos()], 1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.queries = nn.Linear(WIDTH, WIDTH, bias=False)
        self.keys_values = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.distances = nn.Linear(WIDTH, WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(HEADS, 1, HEAD))
        self.distance_bias = nn.Parameter(torch.zeros(HEADS, 1, HEAD))

    def forward(self, x, memory):
        batch, length, _ = x.shape
        seen = torch.cat([memory, x], 1)
        total = seen.shape[1]

        def split(tensor):
            return tensor.view(*tensor.shape[:-1], HEADS, HEAD).transpose(-2, -3)

        queries = split(self.queries(x))  # (batch, heads, length, head)
        keys, values = (split(part) for part in self.keys_values(seen).chunk(2, -1))
        distances = split(self.distances(sinusoids(total).to(x)))  # (heads, total, head)
        scores = (queries + self.content_bias) @ keys.transpose(-1, -2)
        scores = scores + shifted((queries + self.distance_bias) @ distances.transpose(-1, -2))
        future = torch.ones(length, total, dtype=torch.bool, device=x.device).triu(
            total - length + 1
        )
        weights = (scores / math.sqrt(HEAD)).masked_fill(future, -math.inf).softmax(-1)
        return self.output((weights @ values).transpose(1, 2).reshape(batch, length, WIDTH))


def shifted(scores):
    """Moves row i of (..., rows, total) to the left by rows-1-i, so that distances meet keys."""
    *outer, rows, total = scores.shape
    padded = nn.functional.pad(scores, (1, 0)).view(*outer, total + 1, rows)
    return padded[..., 1:, :].reshape(*outer, rows, total)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, INNER), nn.ReLU(inplace=True), nn.Linear(INNER, WIDTH)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x, memory):
        x = self.norms[0](x + self.attention(x, memory))
        return self.norms[1](x + self.feed_forward(x))


class TransformerXL(nn.Module):
    """`length`: characters of a segment, and of the memory."""

    unit = "seq"

    def __init__(self, length=128):
        super().__init__()
        self.length = length
        self.embedding = nn.Embedding(CHARACTERS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.bias = nn.Parameter(torch.zeros(CHARACTERS))
        self.memories = None
        nn.init.normal_(self.embedding.weight, std=0.02)

    def inputs(self, batch_size):
        """Returns a batch of random segments and of the random characters that follow."""
        text = torch.randint(CHARACTERS, (batch_size, self.length + 1))
        return text[:, :-1], text[:, 1:]

    def forward(self, text):
        x = self.embedding(text) * math.sqrt(WIDTH)
        if self.memories is None or self.memories[0].shape[0] != x.shape[0]:
            self.memories = [x.new_zeros(x.shape)] * LAYERS
        memories = []
        for layer, memory in zip(self.layers, self.memories, strict=True):
            memories.append(x.detach())
            x = layer(x, memory)
        self.memories = memories
        return nn.functional.linear(x, self.embedding.weight, self.bias)

    def loss(self, text, following):
        return nn.functional.cross_entropy(self(text).flatten(0, 1), following.flatten())
