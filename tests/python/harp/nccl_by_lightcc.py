"""As nccl_probe.py, after lightcc has pointed NCCL to HARP: nccl_by_lightcc.py LIBNCCL_SO."""

from __future__ import annotations

import nccl_probe

from lightcc._ops import nccl_net

if __name__ == "__main__":
    nccl_net.open_nccl()
    nccl_probe.main()
