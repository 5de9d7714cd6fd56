"""Has torch with a device `cuda` in a process that ranks are forked from. Opens no driver."""

import cuda_torch

cuda_torch.load_guard(cuda_torch.build_guard())

import torch  # noqa: E402  after the guard

cuda_torch.finish(torch)
