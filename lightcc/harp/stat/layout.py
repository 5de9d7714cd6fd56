"""Reads the bytes of a file of counters, whoever wrote them.

The file names its fields itself, so nothing here knows what HARP counts. Whatever the bytes are,
the outcome is records or a `StatFileError`, after a bounded amount of work: sizes are checked
against limits and against the file before they are used. Bytes are read, never mapped, as a file
that shrinks under a mapping would kill the reader.
"""

from __future__ import annotations

import re
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC = b"HARPSTAT"
VERSION = 1
WORD = 8
COUNTER, GAUGE, LABEL, INFO = 1, 2, 3, 4

_HEAD = struct.Struct("<8sIII36xQ10I3Q")
_FIELD = struct.Struct("<BBBBI32s16s72s")
_NUMBER, _TEXT = 1, 2
_ENGINE_HEAD, _SESSION_HEAD = 4, 2  # Words in front of the fields.
_NAME = re.compile(r"[a-z][a-z0-9_]*")

# Far beyond what HARP writes; what is larger is damaged.
_MAX_FIELDS = 256
_MAX_FIELD_WORDS = 32
_MAX_BLOCKS = 4096
_MAX_BLOCKS_BYTES = 64 << 20

_TRIES = 50  # To read a block between two writings, which take microseconds.
_BETWEEN_TRIES_S = 0.001


class StatFileError(Exception):
    """A file that cannot be read; the text says why."""


class Source(Protocol):
    """Where bytes come from."""

    def length(self) -> int:
        """Returns how many there are now."""

    def read(self, offset: int, length: int) -> bytes:
        """Returns the bytes there, fewer where they end."""


class Field(NamedTuple):
    """What a table says of one field."""

    kind: int  # COUNTER, GAUGE, LABEL or INFO.
    is_text: bool
    words: int
    name: str
    unit: str
    help: str


@dataclass(frozen=True)
class Record:
    """An engine, a session or a path."""

    fields: tuple[Field, ...]
    values: Mapping[str, int | str]
    below: tuple[Record, ...] = ()
    there_are: int = 0  # The number of records below, shown or not.
    written_ns: int = 0  # An engine's time of writing, by the machine's clock.

    def of_kind(self, *kinds: int) -> dict[str, int | str]:
        """Returns the values of these kinds by name, in the table's order."""
        return {one.name: self.values[one.name] for one in self.fields if one.kind in kinds}


class Layout(NamedTuple):
    """Who wrote a file, and what is where."""

    pid: int
    engine: tuple[Field, ...]
    session: tuple[Field, ...]
    path: tuple[Field, ...]
    max_sessions: int
    max_paths: int
    blocks: int
    first_block: int
    block_bytes: int
    created_unix_ns: int

    def session_words(self) -> int:
        """Returns the words from one session to the next."""
        return _SESSION_HEAD + _words(self.session) + self.max_paths * _words(self.path)


def _words(fields: tuple[Field, ...]) -> int:
    return sum(field.words for field in fields)


def _text(raw: bytes) -> str:
    """Returns what is in front of the first zero, with nothing in it that a terminal obeys."""
    text = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(one if one.isprintable() else "?" for one in text)


def read_layout(source: Source) -> Layout:
    """Reads who wrote the file, and its tables.

    Raises:
        StatFileError: It is not a file of counters, of another version, truncated, or damaged.
    """
    head = source.read(0, _HEAD.size)
    if not head.strip(b"\0"):
        msg = "has no content yet: it is being made, or its maker was killed"
        raise StatFileError(msg)
    if not head.startswith(MAGIC[: len(head)]):
        msg = "is no file of counters: it does not begin with HARPSTAT"
        raise StatFileError(msg)
    if len(head) < _HEAD.size:
        msg = f"is truncated: {len(head)} bytes"
        raise StatFileError(msg)
    _, version, offset, pid, created, *sizes, first_block, block_bytes, _ = _HEAD.unpack(head)
    if version != VERSION:
        msg = f"has version {version}; this harp-stat reads version {VERSION}"
        raise StatFileError(msg)
    counts, entry_bytes, words = sizes[:3], sizes[3], sizes[4:7]
    max_sessions, max_paths, blocks = sizes[7:]
    if max(counts) > _MAX_FIELDS or entry_bytes != _FIELD.size:
        _damaged(f"{max(counts)} fields of {entry_bytes} bytes")
    tables = []
    for count, expected in zip(counts, words, strict=True):
        tables.append(_read_table(source, offset, count, expected))
        offset += count * entry_bytes
    engine, session, path = tables
    layout = Layout(
        pid=pid,
        engine=engine,
        session=session,
        path=path,
        max_sessions=max_sessions,
        max_paths=max_paths,
        blocks=blocks,
        first_block=first_block,
        block_bytes=block_bytes,
        created_unix_ns=created,
    )
    needed = WORD * (_ENGINE_HEAD + _words(layout.engine) + max_sessions * layout.session_words())
    is_too_much = blocks > _MAX_BLOCKS or blocks * block_bytes > _MAX_BLOCKS_BYTES
    if block_bytes < needed or is_too_much or first_block < offset:
        _damaged(f"{blocks} blocks of {block_bytes} bytes from {first_block}")
    if source.length() < first_block + blocks * block_bytes:
        msg = f"is truncated: {source.length()} of {first_block + blocks * block_bytes} bytes"
        raise StatFileError(msg)
    return layout


def _damaged(what: str) -> None:
    msg = f"is damaged: {what}"
    raise StatFileError(msg)


def _read_table(source: Source, offset: int, count: int, words: int) -> tuple[Field, ...]:
    raw = source.read(offset, count * _FIELD.size)
    if len(raw) < count * _FIELD.size:
        msg = f"is truncated in its tables: {len(raw)} of {count * _FIELD.size} bytes"
        raise StatFileError(msg)
    fields: list[Field] = []
    for kind, form, length, _, _, name, unit, text in _FIELD.iter_unpack(raw):
        field = Field(kind, form == _TEXT, length, _text(name), _text(unit), _text(text))
        is_sound = (
            COUNTER <= kind <= INFO
            and (form == _TEXT or (form == _NUMBER and length == 1))
            and 1 <= length <= _MAX_FIELD_WORDS
            and _NAME.fullmatch(field.name) is not None
            and not (field.is_text and kind in (COUNTER, GAUGE))
        )
        if not is_sound:
            _damaged(f"field {len(fields)} ({field.name!r}) of a table")
        fields.append(field)
    if _words(tuple(fields)) != words or len({field.name for field in fields}) != count:
        _damaged("a table contradicts the head")
    return tuple(fields)


def read_engines(source: Source, layout: Layout, *, is_written: bool) -> list[Record]:
    """Reads the blocks that were ever written.

    Args:
        source: The file.
        layout: Its tables.
        is_written: A process may be writing. Of one that has ended, the last writing may be half.

    Raises:
        StatFileError: A block is damaged, or is being written all the time.
    """
    engines = []
    for block in range(layout.blocks):
        values = _read_block(source, layout, block, is_written=is_written)
        if values:
            engines.append(_engine(layout, values))
    return engines


def _read_block(source: Source, layout: Layout, block: int, *, is_written: bool) -> bytes:
    """Returns the bytes of a block as of one moment; none where there is no such engine."""
    offset = layout.first_block + block * layout.block_bytes
    for _ in range(_TRIES if is_written else 1):
        before = source.read(offset, WORD)
        if before == bytes(WORD):
            return b""
        raw = source.read(offset, layout.block_bytes)
        is_whole = before == raw[:WORD] == source.read(offset, WORD) and before[0] % 2 == 0
        if len(raw) == layout.block_bytes and is_whole:
            return raw
        if is_written:
            time.sleep(_BETWEEN_TRIES_S)
    msg = (
        f"block {block} was never found whole: its process is stopped while it writes"
        if is_written
        else f"block {block} is half written: its process ended meanwhile"
    )
    raise StatFileError(msg)


def _engine(layout: Layout, raw: bytes) -> Record:
    _, written_ns, shown, there_are = struct.unpack_from("<4Q", raw)
    if shown > layout.max_sessions:
        _damaged(f"{shown} sessions in room for {layout.max_sessions}")
    first = WORD * (_ENGINE_HEAD + _words(layout.engine))
    stride = WORD * layout.session_words()
    sessions = tuple(_session(layout, raw, first + i * stride) for i in range(shown))
    values = _values(layout.engine, raw, WORD * _ENGINE_HEAD)
    return Record(layout.engine, values, sessions, there_are, written_ns)


def _session(layout: Layout, raw: bytes, at: int) -> Record:
    shown, there_are = struct.unpack_from("<2Q", raw, at)
    if shown > layout.max_paths:
        _damaged(f"{shown} paths in room for {layout.max_paths}")
    at += WORD * _SESSION_HEAD
    first, stride = at + WORD * _words(layout.session), WORD * _words(layout.path)
    paths = tuple(
        Record(layout.path, _values(layout.path, raw, first + i * stride)) for i in range(shown)
    )
    return Record(layout.session, _values(layout.session, raw, at), paths, there_are)


def _values(fields: tuple[Field, ...], raw: bytes, at: int) -> dict[str, int | str]:
    values: dict[str, int | str] = {}
    for field in fields:
        end = at + field.words * WORD
        value = raw[at:end]
        values[field.name] = _text(value) if field.is_text else int.from_bytes(value, "little")
        at = end
    return values
