"""Rows of GPUs in timelines of real ranks, through `import lightcc`: on the fakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpu_timeline
import pytest
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

from lightcc.testing import spawn_ranks
from lightcc.timeline import __main__ as tool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]

FAKE_NCCL = FAKE_CUDA.parent / "libnccl.so.2"


def record(path: Path, **more: str) -> None:
    settings: list[Mapping[str, str]] = [
        {
            "HOROVOD_TIMELINE": str(path),
            "LIGHT_NCCL_LIBRARY": str(FAKE_NCCL),
            "LIGHTCC_FAKE_CUDA": f"delay_us=300,bus={rank + 1}",
            **more,
        }
        for rank in range(2)
    ]
    spawn_ranks(gpu_timeline.reduce_steps, 2, str(FAKE_CUDA), env=settings)


@pytest.mark.parametrize("by_nccl", [False, True])
def test_a_timeline_says_what_gpus_hid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by_nccl: bool
) -> None:
    path = tmp_path / "t.json"
    record(path, **({"HOROVOD_GPU_OPERATIONS": "NCCL"} if by_nccl else {}))
    row = "GPU 0 NCCL" if by_nccl else "GPU 0 to device"
    text = gpu_timeline.check(path, row, gpu_timeline.STEPS)
    assert "GPUs communicated for " in text
    assert tool.main(["summary", "--steps", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("GPU hidden GPU exposed")
    assert len(lines) >= 1 + gpu_timeline.STEPS
