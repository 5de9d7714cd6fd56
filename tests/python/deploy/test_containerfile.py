"""deploy/Containerfile: what can be seen without building it (`make test-pods` does)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
REQUIREMENTS = sorted((ROOT / "deploy" / "image").glob("*.txt"))


def test_each_package_of_debian_has_a_version() -> None:
    installed = re.findall(r"apt-get install -y --no-install-recommends +(.*?) +&&", TEXT)
    assert len(installed) == TEXT.count("apt-get install")
    packages = " ".join(installed).split()
    assert "openmpi-bin=4.1.4-*" in packages
    for package in packages:
        assert re.fullmatch(r"[a-z0-9+-]+=(\d+:)?\d+\.\d+\S*\*", package), package


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_each_package_of_python_has_a_version(path: Path) -> None:
    lines = [it for it in path.read_text().splitlines() if it and not it.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"[\w-]+==[\w.]+|-r [\w.]+", line), line


def test_what_is_copied_is_there_and_is_all_that_the_build_needs() -> None:
    copied = {
        word
        for words in re.findall(r"^COPY (?!--)(.*) \S+$", TEXT, re.MULTILINE)
        for word in words.split()
    }
    assert all((ROOT / name).exists() for name in copied)
    of_sources = re.findall(
        r"^(?:include|graft) ([\w.]+)", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE
    )
    assert set(of_sources) <= copied
