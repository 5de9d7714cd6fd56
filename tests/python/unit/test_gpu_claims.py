"""`make gpu-claims`: what it names exists and is run by CI, and what shows nothing fails."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import gpu_claims  # noqa: E402
from gpu_claims import Check, Claim, Ctest, Pytest  # noqa: E402

PARTS = [part for claim in gpu_claims.CLAIMS for part in claim.parts]
MAKEFILE = (ROOT / "Makefile").read_text()


def recipe(target: str) -> str:
    """Returns the commands of a target of the Makefile."""
    found = re.search(rf"^{target}:(?! [A-Z_]+ =)[^\n]*\n((?:\t[^\n]*\n)+)", MAKEFILE, re.MULTILINE)
    assert found, target
    return found[1]


def test_ci_runs_the_targets_that_these_tests_look_into() -> None:
    steps = re.search(r"^steps=\((.*)\)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert steps
    assert {"test", "test-all", "lint", "sanitize"} <= set(steps[1].split())


def test_named_tests_of_cpp_exist_and_ci_runs_them() -> None:
    folder = ROOT / "tests" / "cpp"
    cmake = (folder / "CMakeLists.txt").read_text()
    for part in PARTS:
        for name in part.names if isinstance(part, Ctest) else ():
            is_file = (folder / "lightcc_cuda" / f"{name}.cpp").exists()
            assert is_file or f"NAME {name}\n" in cmake, name
    assert "\t$(RUN_TESTS) dev$(REST)\n" in recipe("test-all")  # And leaves nothing out.
    presets = {part.preset for part in PARTS if isinstance(part, Ctest)}
    assert presets == {"dev", "asan", "tsan"}
    assert all(f"$(RUN_TESTS) {name}" in recipe("sanitize") for name in ("asan", "tsan"))


def test_named_tests_of_python_exist_and_ci_runs_them() -> None:
    for part in PARTS:
        for file in part.files if isinstance(part, Pytest) else ():
            text = (gpu_claims.PYTHON_TESTS / file).read_text()
            assert re.search(r"^def test_", text, re.MULTILINE), file
            assert "mark.gpu" not in text, f"{file} skips without a GPU"
    assert "-m " not in recipe("test-all")
    assert "$(PYTEST)" in recipe("test-all")


def test_named_checks_exist_and_ci_runs_them() -> None:
    parts = re.search(r"^LINTS = (.*)$", MAKEFILE, re.MULTILINE)
    assert parts
    assert " $(LINTS)\n" in recipe("lint")
    run_by_ci = recipe("test-all") + "".join(map(recipe, parts[1].split()))
    for part in PARTS:
        if isinstance(part, Check):
            assert (ROOT / "tools" / part.words[0]).exists()
            assert f"tools/{' '.join(part.words)}\n" in run_by_ci, part.words


MUTANTS = Check(("cuda_mutants.py", "--check"))
ABSENT = Check(("check_ptx.py", ".venv-of-nobody"), "make it")


@pytest.mark.parametrize(
    ("parts", "status", "lines"),
    [
        ((MUTANTS,), 0, ["1 passed"]),
        ((MUTANTS, ABSENT), 0, ["1 passed", "not run: make it"]),
        ((ABSENT,), 1, ["not run: make it", "FAILED: nothing has shown this"]),
        ((MUTANTS, Check(("cuda_mutants.py", "--wrong"))), 1, ["1 passed", "FAILED exit code 2"]),
        ((Ctest(("a_test",), "of-nobody"),), 1, ["not run: make test", "nothing has shown this"]),
        ((Pytest(("test_of_nobody.py",)),), 1, ["FAILED exit code 4", "nothing has shown this"]),
    ],
)
def test_what_fails_or_shows_nothing_fails(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    parts: tuple[Ctest | Pytest | Check, ...],
    status: int,
    lines: list[str],
) -> None:
    monkeypatch.setattr(gpu_claims, "REPORTS", tmp_path)
    monkeypatch.setattr(gpu_claims, "JOBS", 0)
    monkeypatch.setattr(gpu_claims, "CLAIMS", (Claim("a", "it works", parts),))
    assert gpu_claims.main(["--claims", "a"]) == status
    out = capfd.readouterr().out
    table = out[out.index("\nit works\n") :]
    assert all(line in table for line in lines), table


def test_tests_that_a_report_counts_are_in_the_table(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "test_two.py").write_text("def test_a(): pass\ndef test_b(): assert False\n")
    monkeypatch.setattr(gpu_claims, "REPORTS", tmp_path)
    monkeypatch.setattr(gpu_claims, "JOBS", 0)
    monkeypatch.setattr(gpu_claims, "PYTHON_TESTS", tmp_path)
    monkeypatch.setattr(
        gpu_claims, "CLAIMS", (Claim("a", "it works", (Pytest(("test_two.py",)),)),)
    )
    assert gpu_claims.main([]) == 1
    out = capfd.readouterr().out
    assert "    FAILED ::test_b\n" in out
    assert out.splitlines()[-1].startswith("1 passed in ")


def test_a_claim_of_nobody_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_claims.main(["--claims", "kernels,magic"])
    assert "'magic' is none of kernels, " in capsys.readouterr().err
