"""How a worker dials in to its launcher: both prove the job's secret before anything is parsed.

    launcher to worker   MAGIC, nonce
    worker to launcher   MAGIC, nonce, proof
    launcher to worker   proof; zeros: it does not have the same secret
    worker to launcher   sealed: what it is (JSON)
    launcher to worker   sealed: "" if it may join, or why not (JSON)

A proof is HMAC-SHA256 with the secret over the direction and both nonces. All that follows is
sealed (`seal`), with keys that come from the secret and the nonces.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from typing import Any

from lightcc.runner.dial.seal import PROOF_BYTES, Seal, SealError, record_bytes
from lightcc.runner.hosts import MAX_RANKS

MAGIC = b"lightcc-dial-1\r\n"
DEFAULT_PORT = 29600
#: Within which strangers and joiners must have said all that belongs to a handshake.
HANDSHAKE_S = 10.0
_NONCE_BYTES = 32
_ADDRESS = re.compile(r"^(?P<host>[^:\[\]]*|\[[^\]]+\])(:(?P<port>\d{1,5}))?$")
_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}\Z")
_MAX_PORT = 65535
# A peer whose host or link is gone is found by the kernel after about so long.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 3, 2, 3
_SILENCE_MS = 10_000


class DialError(RuntimeError):
    """The two could not join; the text says why, and `again` whether that may pass."""

    def __init__(self, text: str, *, again: bool) -> None:
        """Takes the text."""
        super().__init__(text)
        self.again = again


@dataclass(frozen=True)
class Worker:
    """What a worker says of itself.

    Attributes:
        name: Of its host; no other worker of the job may have it.
        slots: How many ranks it takes.
        python: The version that runs it.
    """

    name: str
    slots: int
    python: str


@dataclass(frozen=True)
class Joiner:
    """A worker that has proved the secret, and its connection."""

    worker: Worker
    connection: socket.socket
    seal: Seal

    @property
    def name(self) -> str:
        """How the job calls its host."""
        return self.worker.name

    @property
    def address(self) -> str:
        """The worker's address, as the launcher sees it; its own, if the worker has gone."""
        try:
            return str(self.connection.getpeername()[0]).removeprefix("::ffff:")
        except OSError:
            return self.reached_at

    @property
    def reached_at(self) -> str:
        """The launcher's address to which it has dialled."""
        return str(self.connection.getsockname()[0]).removeprefix("::ffff:")


def split_address(text: str) -> tuple[str, int]:
    """Returns host and port of `HOST:PORT`, `HOST`, `:PORT` or `[IPV6]:PORT`.

    Raises:
        ValueError: It is none of these.
    """
    match = _ADDRESS.match(text)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or port > _MAX_PORT or not text:
        msg = f"'{text}' is not HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT} or :{DEFAULT_PORT}"
        raise ValueError(msg)
    return match["host"].strip("[]"), port


def check_name(name: str) -> str:
    """Returns the name of a host.

    Raises:
        ValueError: It has characters that are not allowed.
    """
    if _NAME.match(name) is None:
        msg = f"{name[:80]!r} is no name of a host: letters, digits, '.', '_' and '-' are allowed"
        raise ValueError(msg)
    return name


def watch_peer(connection: socket.socket) -> None:
    """Has the kernel notice when the other end, or the way there, is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S),
        (socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S),
        (socket.TCP_KEEPCNT, _KEEPALIVE_PROBES),
        (socket.TCP_USER_TIMEOUT, _SILENCE_MS),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def join(connection: socket.socket, secret: str, worker: Worker) -> Seal:
    """Does the worker's part. Blocks: for at most `HANDSHAKE_S`.

    Raises:
        DialError: The other end is no launcher, has another secret, or refuses the worker.
    """
    until = time.monotonic() + HANDSHAKE_S
    theirs = _receive_greeting(connection, until)
    ours = secrets.token_bytes(_NONCE_BYTES)
    keys = _Keys(secret, launcher=theirs, worker=ours)
    connection.sendall(MAGIC + ours + keys.proof_of_worker)
    proof = _receive(connection, PROOF_BYTES, until)
    if not hmac.compare_digest(proof, keys.proof_of_launcher):
        msg = "the launcher there does not have the same secret"
        raise DialError(msg, again=False)
    seal = Seal(keys.of_worker, keys.of_launcher)
    _send_message(connection, seal, asdict(worker))
    answer = _receive_message(connection, seal, until)
    if answer.get("refused"):
        msg = str(answer["refused"])
        raise DialError(msg, again=bool(answer.get("again")))
    return seal


def receive(connection: socket.socket, secret: str) -> Joiner:
    """Does the launcher's part, but for the answer. Blocks: for at most `HANDSHAKE_S`.

    Raises:
        DialError: The other end is no worker of this job.
    """
    until = time.monotonic() + HANDSHAKE_S
    ours = secrets.token_bytes(_NONCE_BYTES)
    connection.settimeout(HANDSHAKE_S)
    connection.sendall(MAGIC + ours)
    theirs = _receive_greeting(connection, until)
    keys = _Keys(secret, launcher=ours, worker=theirs)
    if not hmac.compare_digest(_receive(connection, PROOF_BYTES, until), keys.proof_of_worker):
        connection.sendall(bytes(PROOF_BYTES))
        msg = "it does not have the same secret"
        raise DialError(msg, again=False)
    connection.sendall(keys.proof_of_launcher)
    seal = Seal(keys.of_launcher, keys.of_worker)
    about = _receive_message(connection, seal, until)
    try:
        worker = Worker(check_name(about["name"]), int(about["slots"]), str(about["python"]))
    except (KeyError, TypeError, ValueError) as error:
        msg = f"what it says of itself cannot be used: {error}"
        raise DialError(msg, again=False) from error
    if not 1 <= worker.slots <= MAX_RANKS:
        msg = f"it has {worker.slots} slots; 1 to {MAX_RANKS} are allowed"
        raise DialError(msg, again=False)
    return Joiner(worker, connection, seal)


def answer(joiner: Joiner, refused: str = "", *, again: bool = False) -> None:
    """Lets a worker join, or says why it may not, and whether it should try again."""
    _send_message(joiner.connection, joiner.seal, {"refused": refused, "again": again})


class _Keys:
    """What both ends compute from the secret and the nonces."""

    def __init__(self, secret: str, *, launcher: bytes, worker: bytes) -> None:
        def derive(purpose: bytes) -> bytes:
            return hmac.digest(secret.encode(), purpose + launcher + worker, hashlib.sha256)

        self.proof_of_worker = derive(b"lightcc dial: proof of the worker")
        self.proof_of_launcher = derive(b"lightcc dial: proof of the launcher")
        self.of_worker = derive(b"lightcc dial: records of the worker")
        self.of_launcher = derive(b"lightcc dial: records of the launcher")


def _receive_greeting(connection: socket.socket, until: float) -> bytes:
    """Returns the other end's nonce."""
    if _receive(connection, len(MAGIC), until) != MAGIC:
        msg = "the other end is no launcher or worker of lightcc, or one of another version"
        raise DialError(msg, again=False)
    return _receive(connection, _NONCE_BYTES, until)


def _receive(connection: socket.socket, count: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            connection.settimeout(max(0.001, until - time.monotonic()))
            part = connection.recv(count - len(data))
        except OSError as error:
            msg = f"the other end did not finish the handshake: {error}"
            raise DialError(msg, again=True) from error
        if not part:
            msg = "the other end closed the connection during the handshake"
            raise DialError(msg, again=True)
        data += part
    return bytes(data)


def _send_message(connection: socket.socket, seal: Seal, message: dict[str, Any]) -> None:
    connection.sendall(seal.wrap(json.dumps(message).encode()))


def _receive_message(connection: socket.socket, seal: Seal, until: float) -> dict[str, Any]:
    """Returns one message, and reads nothing of what follows it."""
    try:
        begin = _receive(connection, 4, until)
        data = seal.unwrap(begin + _receive(connection, record_bytes(begin) - 4, until))
        return dict(json.loads(data))
    except (SealError, ValueError, TypeError, RecursionError) as error:
        msg = f"the other end sent something unusable: {error}"
        raise DialError(msg, again=False) from error
