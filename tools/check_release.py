"""Says what is missing before the files of a folder can be released as they are.

Usage: check_release.py FOLDER    (FOLDER holds lightcc's source distribution, and two wheels)

Looked at: the sources are committed, the changelog has a section with the version and its date and
nothing waits above it, all files have that version, there is a wheel for each machine, and it is
for the CPythons that its classifiers name. It holds the license, the library, the programs, and
nothing of the tests. What the files do is the work of test_wheel.py, how their description reads
that of twine.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from old_glibc import MACHINES

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
SECTION = re.compile(r"^## (?P<name>\S+)(?: - (?P<date>\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")
HELD = {
    r"lightcc/liblightcc\.so": "the library",
    r"lightcc/liblightcc_tf\.so": "the operations of TensorFlow",
    r"lightcc/harp/plugin/libnccl-net\.so": "HARP's plugin for NCCL",
    r"lightcc/_core\.pyi": "the types of the binding",
    r"[^/]+\.dist-info/entry_points\.txt": "the programs",
    r"[^/]+\.dist-info/licenses/LICENSE": "the license",
}
NOT_HELD = re.compile(r"(^|/)(tests?|tools|benchmarks)/")


def changelog_problems(text: str, version: str) -> list[str]:
    """Returns what a changelog lacks for a release of `version`."""
    sections = list(SECTION.finditer(text))
    if not sections:
        return ["CHANGELOG.md has no section"]
    problems = []
    first = sections[0]
    if first["name"] == "Unreleased":
        end = sections[1].start() if len(sections) > 1 else len(text)
        if text[first.end() : end].strip():
            problems.append("CHANGELOG.md: changes wait under Unreleased")
    if not any(section["name"] == version and section["date"] for section in sections):
        problems.append(f"CHANGELOG.md has no section '## {version} - YYYY-MM-DD'")
    return problems


def wheel_problems(wheel: Path) -> list[str]:
    """Returns what is wrong with the contents of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
    problems = [
        f"{wheel.name} has no {pattern}: {what}"
        for pattern, what in HELD.items()
        if not any(re.fullmatch(pattern, name) for name in names)
    ]
    problems += [f"{wheel.name} has {name}" for name in names if NOT_HELD.search(name)]
    tags = {f"{tag[2]}.{tag[3:]}" for tag in wheel.stem.split("-")[2].split(".")}
    found = (CLASSIFIER.fullmatch(line) for line in fields.get_all("Classifier") or [])
    named = {match[1] for match in found if match}
    unnamed, lacking = sorted(tags - named), sorted(named - tags)
    return [
        *problems,
        *(f"{wheel.name} is for CPython {one}, which no classifier names" for one in unnamed),
        *(f"{wheel.name} is not for CPython {one}, which a classifier names" for one in lacking),
    ]


def version_problems(folder: Path, version: str) -> list[str]:
    """Returns a line for each file that is not there in this version."""
    wheels = [f"lightcc-{version}-*_{machine}.whl" for machine in MACHINES]
    expected = [f"lightcc-{version}.tar.gz", *wheels]
    return [
        f"{folder} has no {pattern}, or several"
        for pattern in expected
        if len(list(folder.glob(pattern))) != 1
    ]


def uncommitted() -> list[str]:
    """Returns a line for each file of the checkout that no commit has."""
    status = ["git", "-C", str(ROOT), "status", "--porcelain"]
    done = subprocess.run(status, check=True, capture_output=True, text=True)
    return [f"not committed: {line[3:]}" for line in done.stdout.splitlines()]


def main() -> int:
    """Looks; returns 1 and says what is missing where something is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    source = (ROOT / "lightcc" / "__init__.py").read_text(encoding="utf-8")
    (version,) = VERSION.findall(source)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    problems = [
        *uncommitted(),
        *changelog_problems(changelog, version),
        *version_problems(folder, version),
    ]
    for wheel in folder.glob("lightcc-*.whl"):
        problems += wheel_problems(wheel)
    for problem in problems:
        sys.stdout.write(f"FAILED {problem}\n")
    sys.stdout.write(f"release {version}: {len(problems)} problems\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
