"""Has the fake NCCL keep what it was given from running, in ranks."""

from __future__ import annotations

import ctypes
import threading
import time


def set_nccl(settings: str) -> None:
    """Changes how this rank's NCCL behaves. With "behind=0" nothing runs on the GPU."""
    ctypes.CDLL("libnccl.so.2").lightcc_fake_nccl_set(settings.encode())


def release_later(released: threading.Event) -> threading.Thread:
    """Has NCCL go on soon, and sets `released` just before; returns the thread that does so."""

    def release() -> None:
        time.sleep(0.2)
        released.set()
        set_nccl("")

    thread = threading.Thread(target=release)
    thread.start()
    return thread
