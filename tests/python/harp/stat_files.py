"""Files of counters, written by the tables of docs/harp/stat.md and not by what reads them; what
Prometheus would take."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from typing import TYPE_CHECKING, BinaryIO

from lightcc.harp.stat import layout

if TYPE_CHECKING:
    from pathlib import Path

COUNTER, GAUGE, LABEL, INFO = 1, 2, 3, 4
#: Kind, words of text (0: a number), name, unit, meaning.
Entry = tuple[int, int, str, str, str]
ENGINE: list[Entry] = [
    (LABEL, 2, "device", "", "Its name"),
    (LABEL, 0, "engine", "", "Its number"),
    (INFO, 1, "mode", "", "Who drives"),
    (COUNTER, 0, "turns", "", "Turns so far"),
    (COUNTER, 0, "idle_turns", "", "Of them idle"),
    (COUNTER, 0, "wire_bytes_sent", "bytes", "Sent"),
    (COUNTER, 0, "strangers", "packets", "Not ours"),
]
SESSION: list[Entry] = [
    (LABEL, 0, "session", "", "Its number"),
    (LABEL, 6, "peer", "", "Who"),
    (INFO, 2, "state", "", "Life"),
    (GAUGE, 0, "smoothed_rtt_ns", "ns", "Round trip"),
    (GAUGE, 0, "pacing_rate", "bytes/s", "How fast"),
    (COUNTER, 0, "data_bytes_sent", "bytes", "Payload"),
]
PATH: list[Entry] = [(LABEL, 0, "path", "", "Number"), (GAUGE, 0, "is_quarantined", "", "1: yes")]
PAGE = 4096
Values = list[int | str]


def field_words(entry: Entry) -> int:
    return entry[1] or 1


def words_of(entries: list[Entry]) -> int:
    return sum(map(field_words, entries))


def encode_values(entries: list[Entry], values: Values) -> bytes:
    parts = []
    for entry, value in zip(entries, values, strict=True):
        if isinstance(value, str):
            parts.append(value.encode()[: 8 * entry[1]].ljust(8 * entry[1], b"\0"))
        else:
            parts.append(struct.pack("<Q", value))
    return b"".join(parts)


def encode_session(values: Values, paths: list[Values], max_paths: int, there_are: int) -> bytes:
    shown = b"".join(encode_values(PATH, path) for path in paths)
    room = 8 * words_of(PATH) * max_paths
    head = struct.pack("<2Q", len(paths), there_are)
    return head + encode_values(SESSION, values) + shown.ljust(room, b"\0")


def encode_block(
    engine: Values, sessions: list[bytes], there_are: int, sequence: int, written_ns: int
) -> bytes:
    head = struct.pack("<4Q", sequence, written_ns, len(sessions), there_are)
    return (head + encode_values(ENGINE, engine) + b"".join(sessions)).ljust(PAGE, b"\0")


def encode_file(
    blocks: list[bytes], *, version: int = 1, max_sessions: int = 4, max_paths: int = 2
) -> bytes:
    """Returns the bytes of docs/harp/stat.md's tables."""
    entries = [*ENGINE, *SESSION, *PATH]
    head = struct.pack(
        "<8sIII36xQ10I3Q",
        b"HARPSTAT",
        version,
        128,
        os.getpid(),
        1_700_000_000_000_000_000,
        *map(len, (ENGINE, SESSION, PATH)),
        128,
        *map(words_of, (ENGINE, SESSION, PATH)),
        max_sessions,
        max_paths,
        len(blocks),
        PAGE,
        PAGE,
        0,
    )
    table = b"".join(
        struct.pack(
            "<BBBBI32s16s72s",
            kind,
            2 if text else 1,
            text or 1,
            0,
            0,
            name.encode(),
            unit.encode(),
            meaning.encode(),
        )
        for kind, text, name, unit, meaning in entries
    )
    return (head + table).ljust(PAGE, b"\0") + b"".join(blocks)


PEER = "192.0.2.7:4791"


def example(
    *, turns: int = 100, sent: int = 5_000_000, written_ns: int | None = None, sequence: int = 2
) -> list[bytes]:
    """Returns the blocks of an engine with one session, and of one that never was."""
    at = time.monotonic_ns() if written_ns is None else written_ns
    session = encode_session(
        [77, PEER, "open", 1_500_000, 250_000_000, sent], [[0, 0], [1, 1]], 2, 8
    )
    engine: Values = ["eth0", 3, "inline", turns, turns // 2, 6_000_000, 5]
    return [encode_block(engine, [session], 3, sequence, at), bytes(PAGE)]


class Bytes:
    """A file in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def length(self) -> int:
        return len(self.content)

    def read(self, offset: int, length: int) -> bytes:
        return self.content[offset : offset + length]


def read_all(content: bytes, *, is_written: bool = False) -> list[layout.Record]:
    source = Bytes(content)
    return layout.read_engines(source, layout.read_layout(source), is_written=is_written)


_writers: list[BinaryIO] = []


def write(folder: Path, name: str, content: bytes, *, is_alive: bool = True) -> Path:
    """Writes a file; of a living process, it is locked until this one ends."""
    path = folder / name
    file = path.open("wb")
    file.write(content)
    file.flush()
    if is_alive:
        with contextlib.suppress(BlockingIOError):  # It is locked already.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _writers.append(file)
    else:
        file.close()
    return path
