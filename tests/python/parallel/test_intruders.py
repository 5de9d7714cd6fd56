"""Strangers on the job's ports: what they send, or do not send, changes nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from faults import wait_for_file
from grids import TWO_HOSTS
from sockets import listening_ports

import lightcc as hvd
from lightcc.testing import RankProcesses, mark

pytestmark = pytest.mark.multiproc
_SCANS = 200
_FEW_DESCRIPTORS = 160


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


def work_under_flood(go: str) -> tuple[int, int]:
    """Opens files and adds a process set; returns how many files there were, and the sum."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FEW_DESCRIPTORS,) * 2)
    hvd.init(process_sets="dynamic")
    hvd.allreduce(np.ones(10))
    mark("running")
    wait_for_file(go)
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(_FEW_DESCRIPTORS // 4)]
    pair = hvd.add_process_set([0, 3])
    total = 0.0
    if hvd.rank() in {0, 3}:
        total = float(hvd.allreduce(np.ones(100_000), op=hvd.Sum, process_set=pair)[0])
    hvd.barrier()
    for file in files:
        os.close(file)
    return len(files), int(total)


def test_silent_strangers_leave_the_job_its_descriptors(tmp_path: Path) -> None:
    """More of them than a rank may have descriptors, on each port, while it needs some itself."""
    go = tmp_path / "go"
    with (
        RankProcesses(work_under_flood, 4, str(go), hosts=TWO_HOSTS.hosts) as processes,
        contextlib.ExitStack() as strangers,
    ):
        processes.wait_mark("running")
        for port in listening_ports(processes.pids):
            for _ in range(_FEW_DESCRIPTORS):
                with contextlib.suppress(OSError):
                    strangers.enter_context(connect(port))
        go.touch()
        results = processes.wait(60)
    processes.check(results)
    files = _FEW_DESCRIPTORS // 4
    assert [result.value for result in results] == [(files, 2), (files, 0), (files, 0), (files, 2)]


def join_when_told(go: str) -> float:
    wait_for_file(go)
    hvd.init()
    return float(hvd.allreduce(np.ones(100_000), op=hvd.Sum)[0])


def test_strangers_do_not_keep_ranks_from_joining(tmp_path: Path) -> None:
    """The store and every listener that opens meanwhile are full of silent strangers."""
    go = tmp_path / "go"
    stopped = threading.Event()
    with (
        RankProcesses(join_when_told, 4, str(go), hosts=TWO_HOSTS.hosts) as processes,
        contextlib.ExitStack() as strangers,
    ):

        def intrude() -> None:
            seen: dict[int, int] = {}
            while not stopped.wait(0.002):
                for port in listening_ports([*processes.pids, os.getpid()]):
                    for _ in range(50 if seen.get(port, 0) < 100 else 1):
                        with contextlib.suppress(OSError):
                            strangers.enter_context(connect(port))
                        seen[port] = seen.get(port, 0) + 1

        thread = threading.Thread(target=intrude)
        thread.start()
        try:
            go.touch()
            results = processes.wait(60)
        finally:
            stopped.set()
            thread.join()
    processes.check(results)
    assert [result.value for result in results] == [4.0] * 4
