"""What builds and tests the wheel notices what it is there to notice."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS))

import build_wheel  # noqa: E402
import check_release  # noqa: E402
import interpreters  # noqa: E402
import make_cubins  # noqa: E402
import old_glibc  # noqa: E402
import test_wheel as wheel_test  # noqa: E402

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


def test_merged_wheel_holds_every_binding(tmp_path: Path) -> None:
    trees = [unpacked(tmp_path / tag, tag) for tag in ("a", "b", "c")]
    merged = build_wheel.merge(trees)
    bindings = {path.name: path.read_text() for path in (merged / "lightcc").glob("*.so")}
    assert bindings == {"_core.a.so": "a", "_core.b.so": "b", "_core.c.so": "c"}


def test_wheels_that_differ_in_more_than_the_binding_are_not_merged(tmp_path: Path) -> None:
    trees = [unpacked(tmp_path / "a", "a"), unpacked(tmp_path / "b", "b", module="x = 2\n")]
    with pytest.raises(ValueError, match=r"differ in lightcc/world\.py$"):
        build_wheel.merge(trees)


def test_file_that_only_one_wheel_has_is_a_difference(tmp_path: Path) -> None:
    trees = [unpacked(tmp_path / tag, tag) for tag in ("a", "b")]
    (trees[1] / "lightcc" / "extra.py").touch()
    with pytest.raises(ValueError, match=r"differ in lightcc/extra\.py$"):
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


def test_an_environment_without_the_assembler_of_gpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no nvidia/cuda_nvcc/bin/ptxas"):
        make_cubins.make_cubins(tmp_path, tmp_path / "cubins")


def test_this_interpreter_can_be_named(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    link.chmod(0o755)
    (found,) = interpreters.choose([link])
    assert found.version == sys.version_info[:2]
    assert found.tag == f"cp3{sys.version_info.minor}"
    assert found.path == Path(sys.executable)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"version": [3, 9]}, "is 3.9, 3.10 is the oldest allowed"),
        ({"implementation": "pypy"}, "is not CPython"),
        ({"prerelease": True}, "is a prerelease"),
        ({"abi": "t"}, "is a debug or free-threaded build"),
        ({"headers": False}, "has no Python.h"),
    ],
)
def test_python_that_does_not_fit_is_refused_with_the_reason(
    tmp_path: Path, answer: dict[str, object], reason: str
) -> None:
    fitting = {
        "path": "/python",
        "version": [3, 12],
        "implementation": "cpython",
        "prerelease": False,
        "abi": "",
        "headers": True,
    }
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(fitting | answer)}'\n")
    python.chmod(0o755)
    with pytest.raises(ValueError, match=reason):
        interpreters.choose([python])


def test_python_that_cannot_be_started_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no Python that can be started"):
        interpreters.choose([tmp_path / "nowhere"])


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


def test_additions_are_told_apart_by_version() -> None:
    arguments = ["3.10=torch==2.4.1", "3.11=torch==2.13.0", "3.10=numpy==1.24.0"]
    expected = {"3.10": ["torch==2.4.1", "numpy==1.24.0"], "3.11": ["torch==2.13.0"]}
    assert wheel_test.extras_by_version(arguments) == expected
    with pytest.raises(ValueError, match=r"--with torch: must be 3\.X=REQUIREMENT"):
        wheel_test.extras_by_version(["torch"])


def test_source_distribution_holds_what_the_build_includes() -> None:
    root = TOOLS.parent
    always = (root / "CMakeLists.txt").read_text().partition("if(LIGHTCC_DEVELOPER_MODE)\n  enable")
    included = re.findall(r"^include\((cmake/.*)\)$", always[0], flags=re.MULTILINE)
    manifest = (root / "MANIFEST.in").read_text().splitlines()
    assert included
    assert [path for path in included if f"include {path}" not in manifest] == []


@pytest.mark.skipif(platform.machine() != "x86_64", reason="wheels are built on x86-64")
def test_the_compiler_builds_for_an_old_c_library(tmp_path: Path) -> None:
    """Without ziglang, whose stubs the wheel's own build uses, only the flags can be seen."""
    if importlib.util.find_spec("ziglang") is None:
        with pytest.raises(ValueError, match="ziglang is not installed"):
            old_glibc.compiler_flags(tmp_path)
        return
    flags = old_glibc.compiler_flags(tmp_path)
    source, library = tmp_path / "x.cpp", tmp_path / "x.so"
    source.write_text("#include <random>\nunsigned f() { return std::random_device()(); }\n")
    command = ["g++", "-std=c++20", "-fPIC", "-shared", *flags["CXXFLAGS"].split(), str(source)]
    command += [*flags["LDFLAGS"].split(), "-Wl,-z,defs", "-o", str(library)]
    subprocess.run(command, check=True)
    needed = subprocess.run(["objdump", "-T", library], check=True, capture_output=True, text=True)
    versions = {int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", needed.stdout)}
    assert versions
    assert max(versions) <= 28


RELEASED = (
    "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-01-31\n\n- More.\n\n## 0.1.0 - 2025-01-31\n"
)


def test_changelog_of_a_release_has_nothing_to_say() -> None:
    assert check_release.changelog_problems(RELEASED, "0.2.0") == []
    assert check_release.changelog_problems(RELEASED, "0.1.0") == []


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


def test_wheel_that_holds_all_has_no_problems(tmp_path: Path) -> None:
    assert check_release.wheel_problems(packed(tmp_path, HELD, ("3.10", "3.12"))) == []


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


def test_pythons_that_were_unpacked_are_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "3.14" / "usr" / "bin"
    programs.mkdir(parents=True)
    for name in ("python3.14", "python3.14-config", "x"):
        (programs / name).touch()
    monkeypatch.setattr(interpreters, "UNPACKED", tmp_path)
    monkeypatch.setattr(interpreters, "PYENV", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(interpreters.candidates()) == [programs / "python3.14"]
    with pytest.raises(ValueError, match=f"{tmp_path} have none"):
        interpreters.choose([])


def test_files_of_another_version_are_found(tmp_path: Path) -> None:
    (tmp_path / "lightcc-0.2.0.tar.gz").touch()
    packed(tmp_path, HELD, ())
    assert check_release.version_problems(tmp_path, "0.1.0") == [
        f"{tmp_path} has no lightcc-0.1.0.tar.gz, or several"
    ]
