"""harp-stat reads what HARP writes, and says what is wrong with everything else."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from exposition import check_exposition
from hypothesis import HealthCheck, given, settings, strategies as st
from stat_files import (
    ENGINE,
    PAGE,
    PEER,
    Bytes,
    Values,
    encode_block,
    encode_file,
    example,
    read_all,
    words_of,
    write,
)

from lightcc.harp.stat import export, files, layout, table
from lightcc.harp.stat.rates import Rates

# -- Bytes ----------------------------------------------------------------------------------------


def test_a_file_is_read_by_its_own_tables() -> None:
    (engine,) = read_all(encode_file(example()))
    assert engine.of_kind(layout.LABEL) == {"device": "eth0", "engine": 3}
    assert engine.of_kind(layout.INFO) == {"mode": "inline"}
    assert engine.of_kind(layout.COUNTER)["turns"] == 100
    assert engine.there_are == 3
    (session,) = engine.below
    assert session.values["peer"] == PEER
    assert session.values["pacing_rate"] == 250_000_000
    assert session.there_are == 8
    assert [path.values for path in session.below] == [
        {"path": 0, "is_quarantined": 0},
        {"path": 1, "is_quarantined": 1},
    ]


def test_what_a_terminal_would_obey_is_not_passed_on() -> None:
    engine: Values = ["\x1b[2Jx", 0, "a\nb", 0, 0, 0, 0]
    (record,) = read_all(encode_file([encode_block(engine, [], 0, 2, 1)]))
    assert record.values["device"] == "?[2Jx"
    assert record.values["mode"] == "a?b"


@pytest.mark.parametrize("length", [0, 1, 7, 8, 55, 56, 127, 128, 1000, PAGE, PAGE + 100])
def test_a_file_that_is_cut_is_called_so(length: int) -> None:
    content = encode_file(example())[:length]
    with pytest.raises(layout.StatFileError, match=r"truncated|no content yet"):
        read_all(content)


def test_another_version_is_named() -> None:
    content = encode_file(example(), version=9)
    with pytest.raises(layout.StatFileError, match="has version 9; this harp-stat reads version 1"):
        read_all(content)


def test_something_else_is_called_so() -> None:
    with pytest.raises(layout.StatFileError, match="is no file of counters"):
        read_all(b"\x7fELF" + bytes(10_000))


@pytest.mark.parametrize(
    ("offset", "value", "what"),
    [
        (64, 100_000, "fields"),
        (76, 64, "fields of 64 bytes"),
        (80, 3, "contradicts the head"),
        (92, 1 << 31, "blocks of"),
        (96, 1 << 31, "blocks of"),
        (100, 1 << 31, "blocks"),
        (104, 0, "blocks"),
        (112, 8, "blocks of 8 bytes"),
        (128, 9, "field 0"),
        (136, 0x41414141, "field 0"),
        (PAGE + 16, 5, "5 sessions in room for 4"),
        (PAGE + 8 * (4 + words_of(ENGINE)), 3, "3 paths in room for 2"),
    ],
)
def test_damage_is_found_where_it_is(offset: int, value: int, what: str) -> None:
    content = bytearray(encode_file(example()))
    struct.pack_into("<I", content, offset, value)
    with pytest.raises(layout.StatFileError, match=f"is damaged: .*{what}"):
        read_all(bytes(content))


@pytest.mark.parametrize("is_written", [True, False])
def test_a_block_that_is_never_whole_is_said_to_be_so(is_written: bool) -> None:
    content = encode_file(example(sequence=3))
    text = "stopped while it writes" if is_written else "its process ended meanwhile"
    with pytest.raises(layout.StatFileError, match=text):
        read_all(content, is_written=is_written)


def test_a_block_that_is_being_written_is_read_again() -> None:
    class Busy(Bytes):
        """Every other look finds a writing under way."""

        looks = 0

        def read(self, offset: int, length: int) -> bytes:
            raw = bytearray(super().read(offset, length))
            if offset >= PAGE:
                self.looks += 1
                if self.looks < 8:
                    raw[0] = self.looks
            return bytes(raw)

    source = Busy(encode_file(example()))
    engines = layout.read_engines(source, layout.read_layout(source), is_written=True)
    assert len(engines) == 1
    assert source.looks > 8


ORIGINAL = encode_file(example(written_ns=1))


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(
        st.tuples(
            st.integers(0, 2 * PAGE),
            st.one_of(st.binary(min_size=1, max_size=16), st.just(b"\xff" * 8), st.just(bytes(8))),
        ),
        max_size=6,
    ),
    length=st.one_of(st.just(len(ORIGINAL)), st.integers(0, len(ORIGINAL))),
)
def test_any_bytes_end_in_records_or_in_an_error_that_says_why(
    changes: list[tuple[int, bytes]], length: int
) -> None:
    content = bytearray(ORIGINAL)
    for offset, piece in changes:
        content[offset : offset + len(piece)] = piece
    try:
        engines = tuple(read_all(bytes(content[:length])))
    except layout.StatFileError:
        return
    process = files.Process(Path("/x/harp-1-0.stat"), 1, files.ALIVE, 0, engines)
    reading = files.Reading((process,), ())
    rates = Rates(reading, reading)
    assert table.as_table(reading, rates, with_paths=True).isprintable() is False  # Lines, only.
    json.dumps(export.as_json(reading, rates))
    check_exposition(export.as_prometheus(reading))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=3000))
def test_noise_is_no_file_of_counters(noise: bytes) -> None:
    with pytest.raises(layout.StatFileError):
        read_all(noise)


# -- Files and processes --------------------------------------------------------------------------


def test_a_folder_is_read_as_far_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = encode_file(example())
    write(tmp_path, "harp-1-good.stat", good)
    write(tmp_path, "harp-2-cut.stat", good[:500])
    write(tmp_path, "harp-3-other.txt", good)
    write(tmp_path, "harp-4-secret.stat", good)
    os.mkfifo(tmp_path / "harp-5-pipe.stat")
    (tmp_path / "harp-6-link.stat").symlink_to(tmp_path / "harp-1-good.stat")
    (tmp_path / "harp-7-folder.stat").mkdir()
    open_really = os.open

    def refuse_one(path: Any, flags: int, *rest: Any) -> int:
        if "secret" in str(path):
            raise PermissionError
        return open_really(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse_one)
    reading = files.read_folder(tmp_path)
    assert [one.path.name for one in reading.processes] == ["harp-1-good.stat"]
    assert {one.path.name: one.text for one in reading.problems} == {
        "harp-2-cut.stat": "is truncated in its tables: 372 of 896 bytes",
        "harp-4-secret.stat": f"is not ours to read: it belongs to user {os.getuid()}",
        "harp-5-pipe.stat": "is no regular file",
        "harp-6-link.stat": "is a link",
        "harp-7-folder.stat": "is no regular file",
    }
