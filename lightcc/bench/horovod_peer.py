"""Horovod itself as a library under test, in one rank; loaded by `worker`, run by its path.

Horovod finds its ranks through a small web server, which its launcher runs and tells them of by
variables. Here rank 0 runs Horovod's own server, and the others read its port from a file: no
launcher has to reach into the hosts of the benchmark. All the rest is as the launcher leaves it:
Horovod's controller and operations over gloo, its cycle and its fusion buffer.

Its thread talks to the other ranks a thousand times a second, also while nobody asks for anything;
so the benchmark stops its ranks while others are measured.

`horovod` is also what programs call lightcc by (`lightcc.horovod.alias`); that is refused.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_PORT_S = 60.0
_PR_SET_PDEATHSIG = 1


class Horovod:
    """horovod.torch over gloo."""

    def __init__(self, call: Callable[..., Callable[[], Any]]) -> None:
        """Joins the other ranks; `call` is `worker.hvd_call`."""
        self._call = call
        die_with_parent()
        torch: Any = importlib.import_module("torch")
        torch.set_num_threads(1)
        check_real(importlib.import_module("horovod"))
        hvd: Any = importlib.import_module("horovod.torch")
        self._server = meet(Path(os.environ["BENCH_STORE"]))
        hvd.init()
        self.torch, self.hvd = torch, hvd
        self.rank, self.local_rank, self.size = hvd.rank(), hvd.local_rank(), hvd.size()
        version = importlib.import_module("horovod").__version__
        self.version = f"Horovod {version} on gloo, torch {torch.__version__}"

    def prepare(self, case: dict[str, Any], ins: list[Any], outs: list[Any]) -> Callable[[], Any]:
        """Returns the call of `case`."""
        del outs  # Horovod makes its outputs.
        return self._call(self.hvd, case, [self.torch.from_numpy(array) for array in ins])

    def carriers(self) -> dict[str, int]:
        """Returns nothing: it has no tensors of GPUs here."""
        return {}

    def sent_bytes(self) -> int:
        """Returns 0: Horovod does not say."""
        return 0

    def close(self) -> None:
        """Leaves the job."""
        self.hvd.shutdown()
        if self._server is not None:
            self._server.stop()


def die_with_parent() -> None:
    """Ends this process with the benchmark, which stops it most of the time.

    A stopped process does not see that its connection closed.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def check_real(module: Any) -> None:
    """Raises RuntimeError where `module`, called horovod, is lightcc."""
    if module.__name__ != "horovod":
        msg = f"the horovod of {sys.executable} is {module.__name__} ({module.__file__})"
        raise RuntimeError(msg)


def meet(store: Path) -> Any:
    """Starts the server on rank 0, tells this rank where it is, and returns it if it is here.

    Raises:
        RuntimeError: Rank 0 did not start it.
    """
    port_file = store.with_name("horovod-port")
    server: Any = None
    if os.environ["HOROVOD_RANK"] == "0":
        hosts: Any = importlib.import_module("horovod.runner.common.util.hosts")
        http: Any = importlib.import_module("horovod.runner.http.http_server")
        server = http.RendezvousServer(0)
        port = server.start()
        listed = hosts.parse_hosts(os.environ["BENCH_HOSTS"])
        server.init(hosts.get_host_assignments(listed, int(os.environ["HOROVOD_SIZE"])))
        unfinished = port_file.with_suffix(".new")
        unfinished.write_text(str(port), encoding="ascii")
        unfinished.rename(port_file)
    deadline = time.monotonic() + _PORT_S
    while not port_file.exists():
        if time.monotonic() > deadline:
            msg = f"rank 0 did not start Horovod's rendezvous server in {_PORT_S:g} s"
            raise RuntimeError(msg)
        time.sleep(0.01)
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = port_file.read_text(encoding="ascii")
    return server
