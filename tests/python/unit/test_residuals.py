"""What is said of residuals that begin at zero, where a world begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightcc.elastic._residuals import tell

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([(0, 0), (0, 0)], []),  # All ranks are new, or nothing is compressed.
        ([(4, 4), (4, 4)], []),
        ([(4, 4), (4, 4), (0, 0)], ["of tensors: 4 on rank 2"]),
        ([(4, 4), (4, 0), (4, 4), (3, 3)], ["of tensors: 4 on rank 1, 1 on rank 3"]),
    ],
)
def test_one_line_names_each_rank_and_how_many_tensors(
    counts: Sequence[tuple[int, int]], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    tell(counts)
    assert caplog.messages == [f"residuals of compression begin at zero, {it}" for it in said]
