"""Strangers on the job's ports: what they send, or do not send, changes nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from grids import TWO_HOSTS
from sockets import listening_ports

import lightcc as hvd
from lightcc.testing import RankProcesses, mark

pytestmark = pytest.mark.multiproc
_SCANS = 200


def reduce_until_told(stop: str) -> tuple[int, int, int]:
    """Returns how many rounds were right, and the descriptors open before and after."""
    hvd.init()
    x = np.ones(100_000, np.float32)
    hvd.allreduce(x)
    before = len(os.listdir("/proc/self/fd"))
    mark("running")
    rounds, over = 0, False
    while not over:
        assert (hvd.allreduce(x, op=hvd.Sum) == hvd.size()).all()
        over = bool(hvd.allreduce(np.array([Path(stop).exists()], np.float32), op=hvd.Max)[0])
        rounds += 1
    time.sleep(0.2)  # For the loop to see the strangers' ends.
    after = len(os.listdir("/proc/self/fd"))
    hvd.barrier()
    return rounds, before, after


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 5)


def send_garbage(port: int) -> None:
    generator = np.random.default_rng(port)
    pieces = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 4096,
        b"\xff" * 4096,
        struct.pack("<IIQ", 0xFFFFFFFF, 0xFFFFFFFF, 2**63),
        *(generator.bytes(int(size)) for size in generator.integers(1, 20_000, 8)),
    ]
    for piece in pieces:
        with connect(port) as stranger, contextlib.suppress(OSError):
            stranger.sendall(piece)
            stranger.settimeout(0.05)
            stranger.recv(4096)


def scan(port: int) -> None:
    for _ in range(_SCANS):
        connect(port).close()


def reset(port: int) -> None:
    for _ in range(100):
        stranger = connect(port)
        # Closes with a reset in place of an orderly end.
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()


def idle(port: int) -> None:
    """More connections than a listener may keep, all silent or half closed, for a while."""
    with contextlib.ExitStack() as stack:
        for i in range(300):
            with contextlib.suppress(OSError):  # The listener may refuse or drop strangers.
                stranger = stack.enter_context(connect(port))
                if i % 3 == 0:
                    stranger.shutdown(socket.SHUT_WR)
                elif i % 3 == 1:
                    stranger.sendall(b"\x01")
        time.sleep(0.5)


def test_strangers_do_not_disturb_collectives(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with RankProcesses(reduce_until_told, 4, str(stop), hosts=TWO_HOSTS.hosts) as processes:
        processes.wait_mark("running")
        ports = listening_ports([*processes.pids, os.getpid()])
        assert ports, "no port to try"
        for intrusion in (send_garbage, scan, reset, idle):
            threads = [threading.Thread(target=intrusion, args=(port,)) for port in ports]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
        stop.touch()
        results = processes.wait(60)
    processes.check(results)
    for result in results:
        rounds, before, after = result.value or (0, 0, 0)
        assert rounds > 0
        assert after <= before + 2, (before, after)
