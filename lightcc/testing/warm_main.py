"""A warm process: it has imported modules once, and forks a child for each program asked for.

`python warm_main.py DESCRIPTOR SYS_PATH MODULE...`. DESCRIPTOR is a connected Unix stream socket
to the process that asks (`warm`). Importing torch and its compiler takes three seconds of a core,
a fork takes milliseconds. The warm process has one thread and no world. It imports nothing of
lightcc by itself.

A request is a line of JSON (`module`, `arguments`, `environment`, `path`, `directory`) with two
descriptors: the child's standard output and error, and a socket on which its process id and then
its wait status are reported. A child is a session of its own and runs the module as `python -m`
does. End of file on DESCRIPTOR means that nobody asks any more: all children are killed.

Not as in a fresh process: hashes of strings have the same seed in all children, what modules read
from the environment while they were imported is the warm process's, and at the end neither the
interpreter nor what the warm process has made is taken apart (`leave`).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
import weakref
from pathlib import Path
from typing import Any, NoReturn

READY = b"ready\n"  # What the asker is told once the modules are there.
_PR_SET_PDEATHSIG = 1
_MAX_REQUEST_BYTES = 1 << 22
_CHUNK_BYTES = 1 << 16


class Server:
    """Serves requests until a fork has made this process a child, or nobody asks any more."""

    def __init__(self, asker: socket.socket) -> None:
        self._asker = asker
        self._children: dict[int, socket.socket] = {}
        self._received = bytearray()
        self._descriptors: list[int] = []
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> dict[str, Any] | None:
        """Returns the request in a child that has it to do, and None when the last asker left."""
        selector = selectors.DefaultSelector()
        selector.register(self._asker, selectors.EVENT_READ)
        selector.register(self._wake_read, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if self._wake_read in ready:
                os.read(self._wake_read, _CHUNK_BYTES)
                self._report_ends()
            if self._asker.fileno() not in ready:
                continue
            if not self._receive():
                self._kill_children()
                return None
            while (request := self._next_request()) is not None:
                output, report = self._descriptors[:2]
                del self._descriptors[:2]
                if self._fork(output, report):
                    selector.close()
                    return request

    def _receive(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._asker, _CHUNK_BYTES, 16)
        self._received += data
        self._descriptors += descriptors
        return bool(data) and len(self._received) <= _MAX_REQUEST_BYTES

    def _next_request(self) -> dict[str, Any] | None:
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return None
        self._received = bytearray(rest)
        request: dict[str, Any] = json.loads(line)
        return request

    def _fork(self, output: int, report: int) -> bool:
        """Forks; returns whether this is the child."""
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(server, output, report)
            return True
        os.close(output)
        reporter = socket.socket(fileno=report)
        self._children[pid] = reporter
        with contextlib.suppress(OSError):  # Who asked may be gone already.
            reporter.sendall(b"%d\n" % pid)
        return False

    def _become_child(self, server: int, output: int, report: int) -> None:
        """Takes leave of all that belongs to the warm process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != server:
            os._exit(1)
        os.dup2(output, 1)
        os.dup2(output, 2)
        self._asker.close()
        for reporter in self._children.values():
            reporter.close()
        for descriptor in (output, report, self._wake_read, self._wake_write, *self._descriptors):
            os.close(descriptor)
        # What finalizers take apart at the end is the warm process's, as its modules are.
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001
            finalizer.atexit = False

    def _report_ends(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._children.pop(pid) as reporter, contextlib.suppress(OSError):
                reporter.sendall(b"%d\n" % status)

    def _kill_children(self) -> None:
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def run_request(request: dict[str, Any]) -> int:
    """Runs the module that was asked for, as `python -m` does; returns the exit code."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.path[:] = request["path"]
    sys.argv[:] = [request["module"], *request["arguments"]]
    # What a fresh process would have drawn for itself; `random` does so by its own.
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - as the interpreter does.
        traceback.print_exc()
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """Ends the process after all exit handlers, but takes no module apart.

    With torch the handlers of C are left out as well: its libraries take ten times a fork's time.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - waits for threads.
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if "torch" not in sys.modules:
        ctypes.PyDLL(None).exit(code)
    os._exit(code & 0xFF)


def thread_count() -> int:
    """Returns how many threads this process has; only one of them would live on in a child."""
    return len(list(Path("/proc/self/task").iterdir()))


def main() -> None:
    """Imports, says that it is ready or why not, and serves."""
    asker = socket.socket(fileno=int(sys.argv[1]))
    sys.path[:] = json.loads(sys.argv[2])
    try:
        for name in sys.argv[3:]:
            importlib.import_module(name)
        if thread_count() != 1:
            message = f"importing {sys.argv[3:]} has started threads"
            raise RuntimeError(message)  # noqa: TRY301 - reported as what an import raises is.
    except BaseException:  # noqa: BLE001 - whatever it is, the asker raises it again.
        asker.sendall(traceback.format_exc().encode())
        return
    gc.collect()
    gc.freeze()  # No collection in a child need look at, and so copy, what all share.
    asker.sendall(READY)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks.
    request = Server(asker).run()
    if request is not None:
        leave(run_request(request))


if __name__ == "__main__":
    main()
