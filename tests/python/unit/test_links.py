"""The launcher's ends of its agents."""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import TYPE_CHECKING

import pytest

from lightcc import _core
from lightcc.runner.agent import frames
from lightcc.runner.agent.link import DialedLink, Link, ProcessLink
from lightcc.runner.arguments import LaunchOptions, parse
from lightcc.runner.dial.handshake import Joiner, Worker
from lightcc.runner.dial.seal import Seal
from lightcc.runner.launched_job import LaunchedJob

if TYPE_CHECKING:
    from collections.abc import Callable

JOB = {"ranks": [{"rank": 0}]}


def process_link() -> Link:
    return ProcessLink("a", [sys.executable, "-c", "input()"], JOB)


def dialed_link() -> Link:
    link, theirs = dialed()
    theirs.close()
    return link


def dialed() -> tuple[DialedLink, socket.socket]:
    """Returns the launcher's end of a worker, and the worker's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    worker = Worker("a", slots=1, python="3")
    return DialedLink(Joiner(worker, ours, Seal(b"ours", b"theirs")), lambda _name: None), theirs


@pytest.mark.parametrize("make", [process_link, dialed_link])
def test_a_link_that_has_ended_touches_no_descriptor_that_others_may_have_got(
    make: Callable[[], Link],
) -> None:
    link = make()
    link.send(frames.STOP)
    numbers = {fd for fd in (link.stdin_fd, link.stdout_fd, link.stderr_fd) if fd >= 0}
    link.kill()
    link.end()
    assert link.gone
    assert not link.unsent
    assert (link.stdin_fd, link.stdout_fd, link.stderr_fd) == (-1, -1, -1)
    taken = {os.open(os.devnull, os.O_RDWR) for _ in range(len(numbers) + 16)}
    try:
        assert numbers <= taken, "it has kept a descriptor open"
        link.close_stdin()
        link.kill()
        for fd in taken:
            os.fstat(fd)
    finally:
        for fd in taken:
            os.close(fd)


def test_a_worker_that_has_dialled_in_too_late_is_told_that_the_job_is_over() -> None:
    server = _core.StoreServer("127.0.0.1:0", "s3cret")
    options = parse(["-np", "1", "--min-np", "1", "true"])
    assert isinstance(options, LaunchOptions)
    assert options.elastic is not None
    client = _core.StoreClient(server.address, "s3cret")
    job = LaunchedJob(options, options.elastic, client, lambda _start: process_link(), lambda _: {})
    link, theirs = dialed()
    job.add_link(link, 1)
    job.dismiss()
    seal, reader = Seal(b"theirs", b"ours"), frames.FrameReader()
    with theirs:
        said = reader.feed(seal.unwrap(theirs.recv(4096)))
        assert [frame.kind for frame in said] == [frames.BYE]
        assert theirs.recv(4096) == b""
    link.end()
    client.close()
    server.stop()


def test_a_worker_that_has_gone_is_taken_in_all_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()  # Resets the connection.
    with pytest.raises(ConnectionResetError):
        ours.recv(1)
    joiner = Joiner(Worker("a", slots=1, python="3"), ours, Seal(b"ours", b"theirs"))
    link = DialedLink(joiner, lambda _name: None)
    assert link.address == link.reached_at == "127.0.0.1"
    link.end()
