"""Whether replicas begin alike: compared after the first step, and with one warning at most.

It waits for nobody: hashes are sent at the end of the second step, and are looked at after the
third, whose gradients no rank hands in before it has sent its own. One rank alone may end its step
at another place than the others, when it loads a checkpoint for instance.

Compared are hashes: one for a sample of each parameter, and one for each option of the optimizer.
They travel in a single small all-reduce, the maximum of each hash and of its negative: the two
agree where all ranks have the same. Besides, each rank has an element of its own, which says who
has what. The time is the second step, as scripts for Horovod may broadcast after the first batch:
the second of a world, and again after a join, because ranks count no others alike.

What it does not see: buffers, the optimizer's state, elements beyond the sample, and ranks that
come to differ later (`check_replicas` of elastic jobs does).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from lightcc import _world
from lightcc._ops.reductions import Max
from lightcc.elastic._replicas import sample
from lightcc.exceptions import RankMismatchError, ShutDownError
from lightcc.fusion import digest_of
from lightcc.torch import mpi_ops

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightcc.process_sets import ProcessSet

_log = logging.getLogger(__name__)

_OPTIONS = 64  # Elements for options: ranks may have different ones, but must send as many.
_SHOWN = 3


class StartCheck:
    """Compares the replicas of one optimizer."""

    def __init__(
        self,
        names: Mapping[torch.Tensor, str],
        param_groups: Sequence[Mapping[str, Any]],
        process_set: ProcessSet,
    ) -> None:
        """Takes what is compared, of which nothing is looked at yet.

        Args:
            names: Of the parameters, the same on all ranks.
            param_groups: The optimizer's, with its options.
            process_set: The ranks; this one is a member.
        """
        self._names = dict(names)
        self._param_groups = param_groups
        self._process_set = process_set
        self._epoch = -1
        self._steps = 0
        self._handle: int | None = None
        self._slots: dict[str, int] = {}  # By option: the element that was sent for it.
        self._has_warned = False

    def add(self, names: Mapping[torch.Tensor, str]) -> None:
        """Takes in more parameters."""
        self._names |= names

    def count_step(self) -> None:
        """Counts a step whose gradients were combined; sends hashes at the second, then compares.

        Raises:
            HorovodInternalError: A rank failed; on all ranks.
        """
        # After a join() ranks have made different numbers of steps, so they count anew.
        if self._epoch != _world.counting_epoch():
            self._epoch, self._steps, self._handle = _world.counting_epoch(), 0, None
        self._steps += 1
        if self._steps == 2 and self._process_set.size() != 1:
            self._send()
        elif self._handle is not None:
            self._compare(self._handle)
            self._handle = None

    def _send(self) -> None:
        weights = [_hash(_bytes_of(p)) for p in self._names]
        options, self._slots = self._options()
        own = torch.tensor(weights + options, dtype=torch.int64)
        whole = torch.zeros(self._process_set.size() or 1, dtype=torch.int64)
        whole[self._process_set.rank() or 0] = _hash(own.numpy().tobytes())
        # A rank whose training ends with this step may have left already.
        with contextlib.suppress(ShutDownError):
            self._handle = mpi_ops.allreduce_async_(
                torch.cat([own, -own, whole]),
                name=f"DistributedOptimizer.start.{digest_of(self._names.values())}",
                op=Max,
                process_set=self._process_set,
            )

    def _compare(self, handle: int) -> None:
        try:
            found = mpi_ops.synchronize(handle)
        except RankMismatchError:  # Ranks have joined, or parameters differ, which others say.
            return
        ranks = found[-(self._process_set.size() or 1) :]
        highest, lowest = found[: -ranks.numel()].chunk(2)
        is_apart = bool(ranks.all()) and not torch.equal(highest, -lowest)
        if (self._process_set.rank() or 0) == 0 and is_apart and not self._has_warned:
            self._has_warned = True
            differs = (highest != -lowest).tolist()
            count = len(differs) - _OPTIONS
            names = list(self._names.values())[:count]
            of_names = [n for n, is_other in zip(names, differs, strict=False) if is_other]
            of_options = [n for n, slot in self._slots.items() if differs[count + slot]]
            self._warn(ranks.tolist(), of_names, of_options)

    def _options(self) -> tuple[list[int], dict[str, int]]:
        """Returns hashes of the options, and which one each is part of."""
        found = [1] * _OPTIONS
        slots: dict[str, int] = {}
        for group in self._param_groups:
            for key, value in group.items():
                plain = value.tolist() if isinstance(value, torch.Tensor) else value
                if key.startswith("param") or not _is_plain(plain):
                    continue
                slots[key] = zlib.crc32(key.encode()) % _OPTIONS
                text = f"{found[slots[key]]} {key} {plain!r}"
                found[slots[key]] = _hash(text.encode())
        return found, slots

    def _warn(self, hashes: list[int], names: list[str], options: list[str]) -> None:
        counts = Counter(hashes)
        common = max(counts, key=counts.__getitem__)
        members = self._process_set.ranks or range(len(hashes))
        others = [r for r, found in zip(members, hashes, strict=True) if found != common]
        what = []
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
            what.append(f"the parameters {shown}{more} (broadcast_parameters() gives all the same)")
        if options:
            what.append(f"the optimizer's {', '.join(options)} (broadcast_optimizer_state() does)")
        _log.warning(
            "replicas train apart: after the first step, ranks %s differ from the others in %s",
            others,
            " and in ".join(what),
        )


def _is_plain(value: Any) -> bool:
    """Whether what `repr` says of a value is the same in another process."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, complex, str))


def _bytes_of(parameter: torch.Tensor) -> bytes:
    flat = parameter.detach().reshape(-1)
    part = sample(flat, flat.numel(), 0).contiguous().cpu()
    data: bytes = part.view(torch.uint8).numpy().tobytes()
    return data


def _hash(data: bytes) -> int:
    """Returns a number above zero, so that a rank that sends zeros has none."""
    digest = hashlib.blake2b(data, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 1) | 1
