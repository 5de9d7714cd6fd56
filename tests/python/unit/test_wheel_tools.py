"""What builds and tests the wheel notices what it is there to notice."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import build_wheel
import check_release
import interpreters
import pytest
import test_wheel as wheel_test

TOOLS = Path(__file__).resolve().parents[3] / "tools"

WHEEL = Path("dist/lightcc-0.1.0-cp310.cp312-cp310.cp312-manylinux_2_34_x86_64.whl")


def unpacked(folder: Path, tag: str, module: str = "x = 1\n") -> Path:
    """The contents of a wheel for one interpreter."""
    info = folder / "lightcc-0.1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "lightcc").mkdir()
    (folder / "lightcc" / f"_core.{tag}.so").write_text(tag)
    (folder / "lightcc" / "world.py").write_text(module)
    (info / "RECORD").write_text(f"digests of {tag}")
    (info / "WHEEL").write_text(f"Tag: {tag}")
    return folder


def test_wheels_that_differ_in_more_than_the_binding_are_not_merged(tmp_path: Path) -> None:
    trees = [unpacked(tmp_path / "a", "a"), unpacked(tmp_path / "b", "b", module="x = 2\n")]
    with pytest.raises(ValueError, match=r"differ in lightcc/world\.py$"):
        build_wheel.merge(trees)


def test_library_without_the_machine_code_of_a_file_is_found(tmp_path: Path) -> None:
    cubins = [tmp_path / "merge.sm80.cubin", tmp_path / "merge.sm90.cubin"]
    for cubin in cubins:
        cubin.write_bytes(cubin.name.encode())
    tree = unpacked(tmp_path / "a", "a")
    library = tree / "lightcc" / "liblightcc_cuda.so"
    library.write_bytes(b"before merge.sm80.cubin after")
    build_wheel.check_cubins(cubins[:1], tree)
    with pytest.raises(ValueError, match=r"lacks merge\.sm90\.cubin$"):
        build_wheel.check_cubins(cubins, tree)


def test_other_bits_under_one_interpreter_are_found() -> None:
    outcomes = [
        wheel_test.Outcome("python 3.10", {"sum": "1", "max": "2"}),
        wheel_test.Outcome("python 3.11", {"sum": "1", "max": "2", "training": "3"}),
        wheel_test.Outcome("python 3.12", {"sum": "9", "max": "2", "training": "8"}),
    ]
    assert wheel_test.differences(outcomes[:2]) == []
    assert wheel_test.differences(outcomes) == [
        "sum: other bits under python 3.12 than under python 3.10",
        "training: other bits under python 3.12 than under python 3.11",
    ]


def test_python_that_the_wheel_is_not_for_is_found() -> None:
    here = [interpreters.Interpreter((3, minor), Path("python")) for minor in (10, 11)]
    assert wheel_test.missing_interpreters(WHEEL, here) == [
        "cp312: the wheel is for it, but it is not here",
        "cp311: is here, but the wheel is not for it",
    ]


def test_source_distribution_holds_what_the_build_includes() -> None:
    root = TOOLS.parent
    always = (root / "CMakeLists.txt").read_text().partition("if(LIGHTCC_DEVELOPER_MODE)\n  enable")
    included = re.findall(r"^include\((cmake/.*)\)$", always[0], flags=re.MULTILINE)
    manifest = (root / "MANIFEST.in").read_text().splitlines()
    assert included
    assert [path for path in included if f"include {path}" not in manifest] == []


RELEASED = (
    "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-01-31\n\n- More.\n\n## 0.1.0 - 2025-01-31\n"
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# Changelog\n", "has no section"),
        (RELEASED.replace("## Unreleased\n", "## Unreleased\n\n- A change.\n"), "under Unreleased"),
        (RELEASED.replace("0.2.0 - 2026-01-31", "0.2.0"), "no section '## 0.2.0 - YYYY-MM-DD'"),
        (RELEASED.replace("0.2.0", "0.3.0"), "no section '## 0.2.0 - YYYY-MM-DD'"),
    ],
)
def test_changelog_without_the_release_is_found(text: str, problem: str) -> None:
    (found,) = check_release.changelog_problems(text, "0.2.0")
    assert problem in found


HELD = (
    "lightcc/liblightcc.so", "lightcc/liblightcc_tf.so", "lightcc/harp/plugin/libnccl-net.so",
    "lightcc/_core.pyi", "lightcc-0.1.0.dist-info/entry_points.txt",
    "lightcc-0.1.0.dist-info/licenses/LICENSE",
)  # fmt: skip


def packed(folder: Path, names: tuple[str, ...], pythons: tuple[str, ...]) -> Path:
    wheel = folder / WHEEL.name
    classifiers = "".join(
        f"Classifier: Programming Language :: Python :: {python}\n" for python in pythons
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("lightcc-0.1.0.dist-info/METADATA", f"Name: lightcc\n{classifiers}\n")
        for name in names:
            archive.writestr(name, "")
    return wheel


@pytest.mark.parametrize("missing", HELD)
def test_what_a_wheel_lacks_is_found(tmp_path: Path, missing: str) -> None:
    names = tuple(name for name in HELD if name != missing)
    (problem,) = check_release.wheel_problems(packed(tmp_path, names, ("3.10", "3.12")))
    assert "has no" in problem


def test_tests_in_a_wheel_and_pythons_that_differ_from_the_classifiers_are_found(
    tmp_path: Path,
) -> None:
    names = (*HELD, "lightcc/tests/test_x.py")
    wheel = packed(tmp_path, names, ("3 :: Only", "3.10", "3.9"))
    tests, unnamed, lacking = check_release.wheel_problems(wheel)
    assert tests.endswith("has lightcc/tests/test_x.py")
    assert unnamed.endswith("is for CPython 3.12, which no classifier names")
    assert lacking.endswith("is not for CPython 3.9, which a classifier names")


def test_files_of_another_version_are_found(tmp_path: Path) -> None:
    (tmp_path / "lightcc-0.2.0.tar.gz").touch()
    packed(tmp_path, HELD, ())
    assert check_release.version_problems(tmp_path, "0.1.0") == [
        f"{tmp_path} has no lightcc-0.1.0.tar.gz, or several"
    ]
