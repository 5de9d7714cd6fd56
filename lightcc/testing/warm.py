"""Starts programs as children of a warm process, which has imported what they need (`warm_main`).

A `WarmProcess` belongs to the process that made it. It starts at its first use, and ends with its
owner: no child outlives it. A `WarmChild` looks like a `subprocess.Popen` as far as `testing`
needs that.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc.testing import warm_main

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Modules read these while they are imported, the loader and the interpreter while they start. A
# child whose values differ from the warm process's needs a process of its own.
_READ_AT_START = (
    *("LD_", "PYTHON", "GLIBC_", "MALLOC_", "ASAN_", "UBSAN_", "TSAN_", "LSAN_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH_", "TF_", "KERAS_", "CUDA_", "NUMPY_", "NPY_", "LIGHTCC_HOROVOD"),
    *("LC_", "LANG", "TZ"),
)
# `path` and files instead of buffers; and what torch and scikit-learn write there by themselves.
_NOT_COMPARED = frozenset(
    {
        *("PYTHONPATH", "PYTHONUNBUFFERED"),
        *("TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),
    }
)
# A pool of threads would not survive the fork; and children write without a buffer.
_WARM_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "PYTHONUNBUFFERED": "1",
}
_CHUNK_BYTES = 1 << 16


class WarmChild:
    """A process that was forked from a warm one.

    Attributes:
        pid: Its process id, also the id of its session and process group.
        returncode: Exit code, or minus the signal; None until `wait()` has returned.
    """

    def __init__(self, report: socket.socket) -> None:
        self.returncode: int | None = None
        self._report = report.makefile("r")
        report.close()
        line = self._report.readline()
        if not line:
            msg = "the warm process that ranks are forked from has ended"
            raise RuntimeError(msg)
        self.pid = int(line)

    def wait(self) -> int:
        """Waits for the end; only one thread may."""
        if self.returncode is None:
            line = self._report.readline()
            # Without a line the warm process has died, and has taken its children along.
            self.returncode = os.waitstatus_to_exitcode(int(line)) if line else -signal.SIGKILL
            self._report.close()
        return self.returncode


def _has_ended(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


class WarmProcess:
    """A process that has imported `modules`, and forks a child for each `start()`."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = tuple(modules)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owner = 0
        self._environment: dict[str, str] = {}

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Whether `environment` has nothing that only a fresh process could obey."""
        mine = self._environment if self._is_running() else os.environ

        def read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
            return {
                name: value
                for name, value in variables.items()
                if name.startswith(_READ_AT_START) and name not in _NOT_COMPARED
            }

        return read_at_start(environment) == read_at_start(mine)

    def start(
        self, module: str, arguments: Sequence[str], *, environment: Mapping[str, str], output: int
    ) -> WarmChild:
        """Runs `module` as `python -m` does, with `output` as standard output and error.

        Raises:
            RuntimeError: The warm process could not import its modules, or has ended.
        """
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "path": sys.path,
            "directory": str(Path.cwd()),
        }
        data = json.dumps(request).encode() + b"\n"
        with self._lock, contextlib.ExitStack() as stack:
            asker = self._running()
            mine, its = socket.socketpair()
            stack.callback(mine.close)
            with its:
                sent = socket.send_fds(asker, [data], [output, its.fileno()])
                asker.sendall(data[sent:])
            stack.pop_all()
        return WarmChild(mine)

    @property
    def pid(self) -> int:
        """The warm process's id, which is started for that if need be."""
        with self._lock:
            self._running()
            assert self._process is not None  # noqa: S101 - `_running` has made it.
            return self._process.pid

    def stop(self) -> None:
        """Ends the warm process, and all its children."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None and self._owner == os.getpid():
            self._process.wait()
        atexit.unregister(self.stop)
        self._socket, self._process = None, None

    def _is_running(self) -> bool:
        # A child of the owner must not share its connection.
        return self._socket is not None and self._owner == os.getpid()

    def _running(self) -> socket.socket:
        """Returns the connection to the warm process, which is started if need be."""
        # It says nothing once it is ready, so that what can be read is its end. The kernel closes a
        # process's connections before a parent can reap it: `poll()` would see the end too late.
        if self._is_running():
            assert self._socket is not None  # noqa: S101 - for the type checker.
            if not _has_ended(self._socket):
                return self._socket
        self._stop()
        with contextlib.ExitStack() as stack:
            mine, its = socket.socketpair()
            stack.callback(mine.close)
            environment = dict(os.environ)
            argv = [sys.executable, "-s", str(Path(warm_main.__file__).resolve())]
            argv += [str(its.fileno()), json.dumps([p or "." for p in sys.path]), *self.modules]
            with its:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    env={**environment, **_WARM_ENVIRONMENT},
                    pass_fds=[its.fileno()],
                    start_new_session=True,
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
            said = b""
            while said != warm_main.READY and (data := mine.recv(_CHUNK_BYTES)):
                said += data
            if said != warm_main.READY:
                what = said.decode(errors="replace") or "it ended without a word"
                msg = f"no warm process with {', '.join(self.modules)}: {what}"
                raise RuntimeError(msg)
            stack.pop_all()
        self._process, self._socket, self._owner = process, mine, os.getpid()
        self._environment = environment
        atexit.register(self.stop)
        return mine
