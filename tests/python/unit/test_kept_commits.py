"""The memory in which an agent keeps commits: one whole commit is there at any moment."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import pytest

from lightcc._discovery.kept_commits import KeptCommits, open_kept

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


@pytest.fixture
def descriptors() -> Iterator[tuple[int, int, int]]:
    index, a, b = (os.memfd_create(f"lightcc-commit-{name}") for name in ("index", "a", "b"))
    yield index, a, b
    for fd in (index, a, b):
        os.close(fd)


def make(descriptors: tuple[int, int, int]) -> KeptCommits:
    return KeptCommits(descriptors[0], descriptors[1:])


def write(kept: KeptCommits, version: int, text: bytes) -> bool:
    return kept.write(version, lambda file: file.write(text))


def read(kept: KeptCommits) -> tuple[int, bytes]:
    found = []
    version = kept.read(lambda file: found.append(file.read()))
    return version, b"".join(found)


def test_the_newest_of_two_commits_is_read(descriptors: tuple[int, int, int]) -> None:
    kept = make(descriptors)
    assert (kept.newest(), read(kept)) == (0, (0, b""))
    for version in range(1, 6):
        assert write(kept, version, b"%d" % version * version)
        assert kept.newest() == version
        assert read(make(descriptors)) == (version, b"%d" % version * version)


def test_one_of_a_hosts_workers_writes_a_commit(descriptors: tuple[int, int, int]) -> None:
    first, second = make(descriptors), make(descriptors)
    assert write(first, 3, b"first")
    assert not write(second, 3, b"second")
    assert not write(second, 2, b"second")
    assert read(second) == (3, b"first")

    def write_meanwhile(file: BinaryIO) -> None:
        assert not write(second, 5, b"second")
        file.write(b"fourth")

    assert first.write(4, write_meanwhile)
    assert read(second) == (4, b"fourth")


def test_a_writer_that_fails_leaves_the_commit_before(descriptors: tuple[int, int, int]) -> None:
    kept = make(descriptors)
    write(kept, 1, b"one")
    write(kept, 2, b"two")

    def fail(file: BinaryIO) -> None:
        file.write(b"thr")
        file.flush()
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        kept.write(3, fail)
    assert (kept.newest(), read(kept)) == (2, (2, b"two"))
    assert write(kept, 3, b"three")
    assert read(kept) == (3, b"three")


@pytest.mark.parametrize("damage", [b"tw", b"two!", b"tWo"])
def test_a_commit_that_is_not_whole_is_passed_over(
    descriptors: tuple[int, int, int], damage: bytes
) -> None:
    kept = make(descriptors)
    write(kept, 1, b"one")
    write(kept, 2, b"two")
    (file,) = [fd for fd in descriptors[1:] if os.pread(fd, 9, 0) == b"two"]
    os.truncate(file, 0)
    os.pwrite(file, damage, 0)
    assert read(kept) == (1, b"one")
    os.pwrite(descriptors[0], struct.pack("<QQI", 0, 0, 0) * 2, 0)
    assert (kept.newest(), read(kept)) == (0, (0, b""))


def test_the_agents_variable_is_read(descriptors: tuple[int, int, int]) -> None:
    kept = open_kept({"LIGHT_COMMIT_FDS": ",".join(map(str, descriptors))})
    assert kept is not None
    assert write(kept, 1, b"one")
    assert read(make(descriptors)) == (1, b"one")
    assert open_kept({}) is None


def test_descriptors_that_are_closed_or_others_are_none(descriptors: tuple[int, int, int]) -> None:
    closed = os.dup(0)
    os.close(closed)
    for other in (closed, 0):
        text = ",".join(map(str, (*descriptors[:2], other)))
        assert open_kept({"LIGHT_COMMIT_FDS": text}) is None


@pytest.mark.parametrize("text", ["", "3", "3,4", "3,4,5,6", "3,4,x", "3,-4,5"])
def test_a_variable_that_no_agent_has_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected three descriptors, as lightccrun sets it"):
        open_kept({"LIGHT_COMMIT_FDS": text})
