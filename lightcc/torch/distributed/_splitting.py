"""What `torch.distributed.split_group()` does, without the accelerator that it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from lightcc.torch.distributed._process_group import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


def split_group(
    parent_pg: Any = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    group_desc: str | None = None,
) -> ProcessGroup | None:
    """Splits a group of ranks. Collective among the ranks of each part, which waits for no other.

    `torch.distributed.split_group()` takes groups that are bound to an accelerator only.

    Args:
        parent_pg: A process group of this backend; `None` is the default one.
        split_ranks: Ranks of `parent_pg` for each part, in any order; a rank is in one part at
            most. The same on all ranks.
        timeout: Of the new groups; that of `parent_pg` by default.
        group_desc: A text for people.

    Returns:
        The group of this rank's part, which torch.distributed knows; `None` where it is in none.
        Its ranks are in ascending order.

    Raises:
        ValueError: A part is empty, or has ranks that `parent_pg` lacks or that occur twice. Or the
            group is of another backend.
    """
    parent: Any = dist.group.WORLD if parent_pg is None else parent_pg
    if not isinstance(parent, ProcessGroup):
        msg = f"The group is of another backend than lightcc: a {type(parent).__name__}."
        raise ValueError(msg)  # noqa: TRY004  as torch's functions do
    size = dist.get_world_size(parent)
    parts = [list(part) for part in split_ranks or ()]
    every = [rank for part in parts for rank in part]
    known = set(range(size))
    if not parts or not all(parts) or len(set(every)) != len(every) or not set(every) <= known:
        msg = (
            f"split_ranks is {split_ranks}: expected lists of ranks from 0 to {size - 1}, none "
            "empty, and no rank twice."
        )
        raise ValueError(msg)
    own = dist.get_rank(parent)
    part = next((sorted(part) for part in parts if own in part), None)
    if part is None:
        return None
    name = f"{parent.group_name}/split:{','.join(map(str, part))}"
    counts = parent.splits  # The ranks of a part count alike.
    counts[name] = counts.get(name, 0) + 1
    group = parent.split_group(part, timeout, None, f"{name}/{counts[name]}", group_desc)
    _register(group, [dist.get_global_rank(parent, rank) for rank in part])
    return group


def _register(group: Any, global_ranks: list[int]) -> None:
    """Makes torch.distributed know a group, as `new_group()` does with those that it makes."""
    known: Any = c10d._world  # noqa: SLF001  torch has no public way
    name = group.group_name
    tag = f"ptd:{name}"
    known.pg_map[group] = ("lightcc", c10d.PrefixStore(f"{name}/", c10d._get_default_store()))  # noqa: SLF001
    known.pg_names[group] = name
    known.pg_backend_config[group] = "cpu:lightcc,cuda:lightcc"
    known.pg_group_ranks[group] = {rank: i for i, rank in enumerate(global_ranks)}
    known.pg_to_tag[group] = tag
    known.tags_to_pg.setdefault(tag, []).append(group)
    c10d._register_process_group(name, group)  # type: ignore[attr-defined]  # noqa: SLF001
