"""NCCL, opened for the engine, and HARP for NCCL.

With `LIGHT_NET=harp`, NCCL carries tensors of GPUs between hosts over HARP.

NCCL reads which network it uses from the environment when its first communicator is made. So it is
set before that, in this process. LD_LIBRARY_PATH would come too late, and is not needed: the plugin
is loaded first, and the dynamic linker then finds it by its name.
"""

from __future__ import annotations

import ctypes
import logging
import os
from typing import TYPE_CHECKING

from lightcc import harp
from lightcc._binding import _core
from lightcc._nccl_file import nccl_file
from lightcc.harp.nccl import SETTINGS

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_log = logging.getLogger(__name__)


def open_nccl(environment: MutableMapping[str, str] = os.environ) -> None:
    """Opens NCCL where it may carry tensors, and has it use HARP where LIGHT_NET asks for that.

    The engine takes the NCCL that is loaded. Nothing is set that is set already: then the user has
    chosen. What was done, or why nothing can be, is logged. Call it before the engine starts.
    """
    names = ("LIGHT_GPU_OPERATIONS", "HOROVOD_GPU_OPERATIONS")
    operations = next((environment[name] for name in names if environment.get(name)), "auto")
    if operations.lower() not in {"nccl", "auto"}:
        return
    try:
        if operations.lower() == "auto":
            _core.find_gpus()
        version = _core.find_nccl(nccl_file(environment))
    except NotImplementedError:
        return  # There is no GPU, or no NCCL of use, which the engine says itself.
    if environment.get("LIGHT_NET") != "harp":
        return
    try:
        plugin = harp.plugin_path()
    except FileNotFoundError as error:
        _log.warning("LIGHT_NET=harp: NCCL does not use HARP: %s", error)
        return
    found = f"{version // 10_000}.{version // 100 % 100}.{version % 100}"
    chosen = [name for name in SETTINGS if environment.get(name)]
    if all(environment.get(name) == value for name, value in SETTINGS.items()):
        return  # By the user, or by an init() before.
    if chosen:
        _log.info("LIGHT_NET=harp: NCCL %s uses what %s says", found, " and ".join(chosen))
        return
    try:
        ctypes.CDLL(plugin)  # It stays for as long as the process lives.
    except OSError as error:
        _log.warning("LIGHT_NET=harp: NCCL %s does not use HARP: %s", found, error)
        return
    environment.update(SETTINGS)
    settings = " ".join(f"{name}={value}" for name, value in SETTINGS.items())
    _log.info("LIGHT_NET=harp: NCCL %s uses HARP between hosts: %s", found, settings)
