"""A sampler that deals what is left of an epoch among the ranks that are there."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import torch.utils.data

from lightcc._ops import basics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deals the indices of a dataset to the ranks; after a reset, those not yet processed.

    Put it into a `TorchState`, call `record_batch` after each batch, and `set_epoch` at the end of
    an epoch (not at its beginning, where a part of it may have been processed).

    Attributes:
        epoch: Which order the indices have, where they are shuffled.
        processed_num: How many indices all ranks have processed in this epoch.
        remaining_indices: The others, in the order of this epoch.
        num_samples: How many of them each rank gets, the last ones being repeated to make it even.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Makes the sampler of this rank.

        Args:
            dataset: What has the indices; its length does not change.
            shuffle: Whether each epoch has an order of its own.
            seed: Of the orders; the same on all ranks.

        Raises:
            ValueError: lightcc is not initialized.
        """
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 0
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins epoch `epoch`, of which nothing has been processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_index: int, batch_size: int) -> None:  # noqa: ARG002  Horovod's
        """Counts a batch of `batch_size` indices as processed on every rank."""
        self.processed_num += batch_size * self.num_replicas

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what `state_dict()` returned, and deals what is left."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch, and how much of it has been processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def reset(self) -> None:
        """Deals what is left of the epoch among the ranks of the current world."""
        self.num_replicas = basics.size()
        self.rank = basics.rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)  # noqa: S311  an order
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """Returns this rank's indices."""
        missing = self.total_size - len(self.remaining_indices)
        padded = self.remaining_indices + self.remaining_indices[:missing]
        # Fewer indices than ranks: they are repeated until each rank has one.
        while 0 < len(padded) < self.total_size:
            padded += self.remaining_indices[: self.total_size - len(padded)]
        return iter(padded[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        """Returns how many indices this rank gets."""
        return self.num_samples
