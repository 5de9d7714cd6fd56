"""What builds and tests the wheel notices what it is there to notice."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import build_wheel
import check_release
import pytest
import test_wheel as wheel_test

TOOLS = Path(__file__).resolve().parents[3] / "tools"


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


def test_wheel_that_is_missing_for_a_machine_is_found(tmp_path: Path) -> None:
    for name in ("lightcc-0.1.0.tar.gz", "lightcc-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"):
        (tmp_path / name).touch()
    missing = f"{tmp_path} has no lightcc-0.1.0-*_aarch64.whl, or several"
    assert check_release.version_problems(tmp_path, "0.1.0") == [missing]


def test_description_has_no_link_into_the_repository() -> None:
    described = metadata.metadata("lightcc")["Description"]
    assert "# lightcc" in described
    assert re.findall(r"(?:\]\(|(?:src|href)=.)(?!https?://).{9}", described) == []


def test_source_distribution_holds_what_the_build_includes() -> None:
    root = TOOLS.parent
    always = (root / "CMakeLists.txt").read_text().partition("if(LIGHTCC_DEVELOPER_MODE)\n  enable")
    included = re.findall(r"^include\((cmake/.*)\)$", always[0], flags=re.MULTILINE)
    manifest = (root / "MANIFEST.in").read_text().splitlines()
    assert included
    assert [path for path in included if f"include {path}" not in manifest] == []
