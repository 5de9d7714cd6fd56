"""Gives the ranks of a benchmark a torch with a device `cuda` (cuda_torch.py), and a fake GPU each.

Ranks share the GPUs that LIGHTCC_FAKE_CUDA says there are, where these are fewer. Python imports
this at its start, where the folder is in PYTHONPATH. Programs that do not use torch are left as
they are.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_USERS = {"worker.py", "cuda_tensors.py"}  # Of lightcc.bench.


def _make_cuda() -> None:
    asked = re.search(r"devices=(\d+)", os.environ.get("LIGHTCC_FAKE_CUDA", ""))
    devices = int(asked[1]) if asked else 1
    rank = int(os.environ.get("LIGHT_RANK", "0"))
    os.environ["LIGHTCC_FAKE_CUDA"] = f"unified=1,bus={rank % devices + 1}"
    from cuda_torch import build_guard, cuda_torch

    torch = cuda_torch(build_guard())
    torch.cuda.is_available = lambda: True
    torch.cuda.set_device = lambda _device: None
    torch.cuda.synchronize = lambda: None  # Its operators run at once, and lightcc waits itself.


if _USERS & {Path(word).name for word in sys.orig_argv}:
    _make_cuda()
