"""The port at which workers dial in, and strangers; and scripts that print hosts."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import is_running

from lightcc.runner.dial import handshake, listener as listening
from lightcc.runner.dial.listener import Listener, max_handshakes
from lightcc.runner.dial.seal import Seal
from lightcc.runner.discovery import DiscoveryError, DiscoveryScript

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "s3cret of a test"
PATIENCE_S = 30.0


class Port:
    """A listener, and who has joined."""

    def __init__(self) -> None:
        self.listener = Listener("127.0.0.1", 0, SECRET)
        self.joined: list[str] = []
        self.has_joined = threading.Event()
        self.listener.serve(self._on_join)

    def _on_join(self, joiner: handshake.Joiner) -> None:
        self.joined.append(joiner.name)
        joiner.connection.close()
        self.has_joined.set()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.listener.port), timeout=PATIENCE_S)

    def join(self, name: str) -> None:
        with self.connect() as connection:
            handshake.join(connection, SECRET, handshake.Worker(name, 1, "3"))
        assert self.has_joined.wait(PATIENCE_S)


@pytest.fixture
def port() -> Iterator[Port]:
    found = Port()
    yield found
    found.listener.stop()


def test_the_oldest_stranger_makes_room_and_few_are_named(
    port: Port, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listening, "max_handshakes", lambda: 3)
    strangers = [port.connect() for _ in range(30)]
    port.join("a")
    assert port.joined == ["a"]
    for stranger in strangers[:27]:  # The last ones may still be there.
        with contextlib.suppress(ConnectionError):
            while stranger.recv(100):
                pass
    for stranger in strangers:
        stranger.close()
    assert 0 < capfd.readouterr().err.count("refused a connection from 127.0.0.1") <= 10


class Short:
    """A socket for whose connections there is no descriptor, for a while."""

    def __init__(self, real: socket.socket) -> None:
        self.real = real
        self.asked = 0

    def accept(self) -> Any:
        self.asked += 1
        if self.asked < 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.real.accept()

    def fileno(self) -> int:
        return self.real.fileno()

    def close(self) -> None:
        self.real.close()


def test_a_shortage_of_descriptors_is_waited_for() -> None:
    found = Listener("127.0.0.1", 0, SECRET)
    short = Short(found._socket)
    found._socket = short  # type: ignore[assignment]
    joined = threading.Event()
    begun = time.monotonic()

    def on_join(joiner: handshake.Joiner) -> None:
        joiner.connection.close()
        joined.set()

    found.serve(on_join)
    with socket.create_connection(("127.0.0.1", found.port), timeout=PATIENCE_S) as connection:
        handshake.join(connection, SECRET, handshake.Worker("a", 1, "3"))
        assert joined.wait(PATIENCE_S)
    assert short.asked == 3
    assert time.monotonic() - begun >= 0.2
    found.stop()


@pytest.mark.parametrize(("limit", "bound"), [(64, 8), (10_000, 64), (12, 2)])
def test_handshakes_leave_descriptors_to_others(
    limit: int, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(range(10)))
    assert max_handshakes() == bound


def join_with(port: Port, about: bytes) -> None:
    """Proves the secret, and says something of itself."""
    with port.connect() as connection:
        until = time.monotonic() + PATIENCE_S
        theirs = handshake._receive_greeting(connection, until)
        keys = handshake._Keys(SECRET, launcher=theirs, worker=bytes(32))
        connection.sendall(handshake.MAGIC + bytes(32) + keys.proof_of_worker)
        seal = Seal(keys.of_worker, keys.of_launcher)
        connection.sendall(seal.wrap(about))
        with contextlib.suppress(ConnectionError):
            while connection.recv(100):
                pass


@pytest.mark.parametrize(
    ("about", "text"),
    [
        (b"[]", "what it says of itself cannot be used"),
        (b"[" * 100_000, "the other end sent something unusable: maximum recursion depth"),
        (b'{"name": "a\\n", "slots": 1, "python": "3"}', "is no name of a host"),
    ],
)
def test_a_worker_that_says_nonsense_is_refused_alone(
    port: Port, about: bytes, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    join_with(port, about)
    port.join("b")
    assert port.joined == ["b"]
    said = capfd.readouterr().err
    assert text in said
    assert "Traceback" not in said


def test_a_script_that_hangs_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    script = DiscoveryScript(f"sleep 600 & echo $! > {tmp_path}/pid; wait", 1, 0.5)
    with pytest.raises(DiscoveryError, match=r"did not end within 0\.5 s \(--start-timeout\)"):
        script.discover_hosts()
    wait_gone(int((tmp_path / "pid").read_text()))


def test_a_script_is_killed_when_the_job_ends(tmp_path: Path) -> None:
    script = DiscoveryScript(
        f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 600", 1, 600.0
    )
    thread = threading.Thread(target=discover_in_vain, args=(script,))
    thread.start()
    until = time.monotonic() + PATIENCE_S
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    script.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    wait_gone(int((tmp_path / "pid").read_text()))
    with pytest.raises(DiscoveryError, match="is not run any more"):
        script.discover_hosts()


def discover_in_vain(script: DiscoveryScript) -> None:
    with pytest.raises(DiscoveryError):
        script.discover_hosts()


def wait_gone(pid: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while is_running(pid):
        assert time.monotonic() < until
        time.sleep(0.01)
