"""The checks of tools/ find what they are there to find."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import check_files
import check_include_arrows
import check_skips
import pytest
from suites import BUDGET_SECONDS, INTERFACES, SUITES, Choice, suite_of
from tracked_files import tracked_files

TOOLS = Path(__file__).resolve().parents[3] / "tools"

GOOGLETEST_OUTPUT = """\
[ RUN      ] Kernels.runs
[       OK ] Kernels.runs (0 ms)
[ RUN      ] Kernels.avx512_agrees
[  SKIPPED ] Kernels.avx512_agrees (0 ms)
[  PASSED  ] 1 test.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Kernels.avx512_agrees
"""


@pytest.mark.parametrize(
    ("room", "header"),
    [
        ("base", "lightcc/wire/message.hpp"),
        ("transport", "lightcc/rendezvous/store.hpp"),
        ("collectives", "lightcc/engine/world.hpp"),
        ("engine", "lightcc_cuda/driver/gpus.hpp"),
        ("engine", "pybind11/pybind11.h"),
        ("engine", "lightcc/nowhere/x.hpp"),
        ("engine", "abi/types.hpp"),
        ("control", "lightcc/engine/core.hpp"),
        ("control", "lightcc/compression/topk/threshold.hpp"),
        ("control", "sys/socket.h"),
        ("transport/channel", "sys/socket.h"),
        ("transport/plugin", "src/plugin/core.hpp"),
    ],
)
def test_an_arrow_against_the_order_is_found(room: str, header: str) -> None:
    path = Path(f"csrc/lightcc/{room}/a.cpp")
    problems = check_include_arrows.check(path, f'#include <vector>\n#include "{header}"\n')
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:2: ")


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("src/protocol", "#include <sys/socket.h>"),
        ("src/protocol", "#include <ctime>"),
        ("src/protocol", "const auto now = std::chrono::steady_clock::now();"),
        ("src/protocol", '#include "datapath/datapath.hpp"'),
        ("src/protocol", '#include "sync/mutex.hpp"'),
        ("src/sync", '#include "datapath/datapath.hpp"'),
        ("src/base", '#include "protocol/packet.hpp"'),
        ("src/base", '#include "lightcc/base/rng.hpp"'),
        ("sim", '#include "plugin/exports.hpp"'),
    ],
)
def test_an_arrow_against_the_order_of_harp_is_found(room: str, line: str) -> None:
    path = Path(f"harp_plugin/{room}/a.cpp")
    problems = check_include_arrows.check(path, f"#include <chrono>\n{line}\n")
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:2: ")


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        ("csrc/lightcc/a.cpp", "int x = '\u00e4';\n", "not ASCII"),
        ("lightcc/a.py", "\tx = 1\n", "a tab"),
        ("lightcc/a.py", "x = 1 \n", "trailing white space"),
        ("lightcc/a.py", "x = 1", "no newline at the end"),
        ("lightcc/a.py", "x = 1\n" * 601, "601 lines, 600 allowed"),
        ("docs/a.md", "see /wo" + "rk/notes\n", "a path of one machine"),
        ("docs/a.md", "TO" + "DO: more\n", "unfinished business"),
        ("docs/a.md", "x" * 101 + "\n", "docs/a.md:1: over 100 columns"),
        ("docs/a.md", f"```sh\n{'x' * 101}\n```\n", "docs/a.md:2: over 100 columns"),
        ("docs/a.md", f"```text\n```\n{'x' * 101}\n", "docs/a.md:3: over 100 columns"),
        ("csrc/lightcc/a/b.cpp", '  std::getenv("X");\n', "getenv"),
        ("csrc/lightcc/a/b.cpp", "  thread.detach();\n", "detach"),
        ("csrc/lightcc/a/b.cpp", "  std::this_thread::sleep_for(x);\n", "sleep"),
    ],
)
def test_a_file_that_breaks_a_rule_is_found(path: str, content: str, problem: str) -> None:
    problems = check_files.check(Path(path), content.encode())
    assert len(problems) == 1
    assert problem in problems[0]


def test_a_class_of_two_headers_is_named_with_both() -> None:
    start = "namespace lightcc {\nclass Later;\n"
    end = "}  // namespace lightcc\n"
    headers = {
        Path("a.hpp"): start + "class Queue final {\n};\nclass Later {\n};\n" + end,
        Path("b.hpp"): start + "struct Queue\n    : Base {\n};\nclass Queue::Impl {\n};\n" + end,
        Path("c.hpp"): "namespace lightcc::detail {\nclass Queue {\n};\n",
    }
    (problem,) = check_files.repeated_classes(headers)
    assert problem.startswith("b.hpp:3: lightcc::Queue is defined in a.hpp:3, too")


def test_skips_inside_a_googletest_program_are_counted_once() -> None:
    case = ET.Element("testcase", classname="reduce_test", name="reduce_test", status="run")
    ET.SubElement(case, "system-out").text = GOOGLETEST_OUTPUT
    totals = check_skips.Totals()
    check_skips.add_case(totals, case)
    assert totals.passed == 1
    assert totals.skipped == ["reduce_test::Kernels.avx512_agrees"]


def run_check_skips(tmp_path: Path, cases: str) -> subprocess.CompletedProcess[str]:
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuite>{cases}</testsuite>")
    command = [sys.executable, str(TOOLS / "check_skips.py"), str(report)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_unlisted_skip_fails_and_is_named(tmp_path: Path) -> None:
    skipped = '<testcase classname="a" name="b"><skipped/></testcase>'
    ran = run_check_skips(tmp_path, skipped + '<testcase classname="a" name="c"/>')
    assert ran.returncode == 1
    assert "a::b" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "1 passed, 0 failed, 1 skipped"


def test_a_failure_is_named_and_fails(tmp_path: Path) -> None:
    ran = run_check_skips(tmp_path, '<testcase classname="a" name="b"><failure/></testcase>')
    assert ran.returncode == 1
    assert ran.stdout.splitlines() == ["FAILED a::b", "0 passed, 1 failed, 0 skipped"]


def test_a_test_that_another_report_ran_is_no_skip(tmp_path: Path) -> None:
    skipped = '<testcase classname="a" name="b"><skipped/></testcase>'
    ran = run_check_skips(tmp_path, skipped + '<testcase classname="a" name="b"/>')
    assert ran.stdout.splitlines() == ["1 passed, 0 failed, 0 skipped"]


def test_what_failed_first_and_passed_alone_is_listed_and_has_not_failed(tmp_path: Path) -> None:
    def case(name: str, inner: str = "") -> str:
        return f'<testcase classname="a" name="{name}">{inner}</testcase>'

    alone = case("busy") + case("broken", "<failure/>")
    (tmp_path / "report-alone.xml").write_text(f"<testsuite>{alone}</testsuite>")
    first = case("good") + case("busy", "<failure/>") + case("broken", "<failure/>")
    ran = run_check_skips(tmp_path, first)
    assert ran.returncode == 1
    assert ran.stdout.splitlines() == [
        "PASSED ALONE, failed beside other tests: a::busy",
        "FAILED a::broken",
        "2 passed, 1 failed, 0 skipped",
    ]


#: A test that fails the first time only, beside one that passes.
CROWDED = """
import pathlib

def test_passes():
    pass

def test_is_crowded():
    mark = pathlib.Path(r"{mark}")
    first = not mark.exists()
    mark.touch()
    assert not first
"""
#: Tests that fail together, as those that share their ranks do.
BROKEN = """
import pytest

@pytest.mark.parametrize("i", range({count}))
def test_is_broken(i):
    assert False
"""


@pytest.mark.slow
def test_what_failed_runs_once_more_alone_and_is_named(tmp_path: Path) -> None:
    broken = 5
    (tmp_path / "test_suite.py").write_text(CROWDED.format(mark=tmp_path / "mark"))
    (tmp_path / "test_zz_broken.py").write_text(BROKEN.format(count=broken))
    report = tmp_path / "report.xml"
    pytest_here = Path(sys.executable).with_name("pytest")
    command = [str(TOOLS / "run_python_tests.sh"), str(pytest_here), "2", str(report)]
    done = subprocess.run(
        [*command, "-q", "-p", "no:randomly", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert (tmp_path / "report-alone.xml").exists()
    totals = check_skips.read_reports([report])
    assert totals.passed_alone == {"test_suite::test_is_crowded"}
    assert len(totals.failed) == broken  # Those after the third did not run again, and have failed.


def test_every_allowed_skip_has_a_reason() -> None:
    assert check_skips.allowed_patterns(check_skips.ALLOWED.read_text())
    with pytest.raises(ValueError, match="no reason"):
        check_skips.allowed_patterns("some::test\n")


def test_suites_are_known_by_what_they_are_about() -> None:
    files = [str(path) for path in tracked_files()]
    for suite in SUITES:
        for begin in suite.tests + suite.sources + INTERFACES:
            assert any(name.startswith(begin) for name in files), begin
        for begin in suite.tests:
            assert suite_of(next(name for name in files if name.startswith(begin))) == suite
    assert suite_of("tests/python/parallel/test_compressed.py") is None


def test_a_suite_runs_whole_where_it_or_its_interface_changed() -> None:
    everything = [Choice(None, 0), Choice(["lightcc/_adapter/groups.py"], 0)]
    assert all(choice.why[suite] for choice in everything for suite in SUITES)
    ray = Choice(["README.md", "lightcc/ray/runner.py"], 0)
    assert [suite.name for suite, why in ray.why.items() if why] == ["Ray"]
    assert "Ray: whole, as lightcc/ray/runner.py changed" in ray.lines()
    assert all(ray.has("tests/python/programs/test_ray.py", f"a test {i}") for i in range(20))


def test_parts_of_suites_fit_the_budget_and_add_up_to_the_whole() -> None:
    parts = Choice([], 0).parts
    assert sum(suite.seconds for suite in SUITES) <= parts * BUDGET_SECONDS
    file = "tests/python/programs/test_spark.py"
    names = [f"{file}::test_{n}" for n in range(1000)]
    chosen = [
        {name for name in names if Choice([], seed).has(file, name)}
        for seed in range(11, 11 + parts)
    ]
    assert sum(map(len, chosen)) == len(set().union(*chosen)) == len(names)
    assert Choice([], 1).has("tests/python/parallel/test_compressed.py", "any")
