"""The checks of tools/ find what they are there to find."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS))

import check_files  # noqa: E402
import check_include_arrows  # noqa: E402
import check_skips  # noqa: E402
import choose_tests  # noqa: E402
import few_failures  # noqa: E402
import passed_tests  # noqa: E402
from shares import BESIDE_OTHERS, is_beside_what_stayed, is_in_share  # noqa: E402
from tracked_files import tracked_files  # noqa: E402

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
        ("control", "lightcc/compression/threshold.hpp"),
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
    ("path", "header"),
    [
        ("csrc/lightcc/engine/a.cpp", "lightcc/base/status.hpp"),
        ("csrc/lightcc/collectives/kernels/a.cpp", "lightcc/collectives/group.hpp"),
        ("csrc/lightcc/collectives/a.cpp", "lightcc/transport/shm/doorbell.hpp"),
        ("csrc/bindings/a.cpp", "pybind11/pybind11.h"),
        ("csrc/bindings/a.cpp", "lightcc_cuda/driver/gpus.hpp"),
        ("csrc/lightcc_cuda/driver/a.cpp", "lightcc/engine/world.hpp"),
        ("csrc/lightcc/transport/plugin/a.cpp", "abi/types.hpp"),
        ("csrc/lightcc/transport/tcp/a.cpp", "sys/socket.h"),
    ],
)
def test_an_arrow_along_the_order_is_allowed(path: str, header: str) -> None:
    assert check_include_arrows.check(Path(path), f'#include "{header}"\n') == []


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


def test_the_arrows_of_harp_are_allowed() -> None:
    text = '#include <chrono>\n#include "base/rng.hpp"\n#include "protocol/packet.hpp"\n'
    assert check_include_arrows.check(Path("harp_plugin/src/protocol/a.cpp"), text) == []
    assert check_include_arrows.check(Path("harp_plugin/sim/a.cpp"), text) == []
    sockets = '#include <sys/socket.h>\n#include "sync/spsc_ring.hpp"\n'
    assert check_include_arrows.check(Path("harp_plugin/src/datapath/a.cpp"), sockets) == []


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


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("Makefile", "all:\n\ttrue\n"),
        ("tests/fuzz/corpus/knobs/a", "\x00\t\u00e4"),
        ("csrc/lightcc/base/knobs.cpp", "  std::getenv(name);\n"),
        ("csrc/lightcc/a/b.cpp", "  std::snprintf(b, n, f);  // Not printf(): that prints.\n"),
        ("tests/cpp/a_test.cpp", "int x;\n" * 800),
        ("docs/a.md", "x" * 100 + f"\n| {'x' * 100} |\n```text\n{'x' * 101}\n```\n"),
    ],
)
def test_a_file_within_the_rules_passes(path: str, content: str) -> None:
    assert check_files.check(Path(path), content.encode()) == []


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


@pytest.mark.parametrize(
    ("broken", "status", "runs_again"),
    [
        ([], 0, True),
        pytest.param([4, 1], 1, True, marks=pytest.mark.slow),
        pytest.param([1, 1, 1], 1, False, marks=pytest.mark.slow),
        pytest.param([20], 1, False, marks=pytest.mark.slow),
    ],
)
def test_few_failures_are_run_once_more_alone(
    tmp_path: Path, broken: list[int], status: int, runs_again: bool
) -> None:
    (tmp_path / "test_suite.py").write_text(CROWDED.format(mark=tmp_path / "mark"))
    for number, count in enumerate(broken):
        (tmp_path / f"test_broken_{number}.py").write_text(BROKEN.format(count=count))
    report = tmp_path / "report.xml"
    pytest_here = Path(sys.executable).with_name("pytest")
    command = [str(TOOLS / "run_python_tests.sh"), str(pytest_here), "2", str(report)]
    done = subprocess.run(
        [*command, "-q", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert (tmp_path / "report-alone.xml").exists() == runs_again
    totals = check_skips.read_reports([report])
    assert totals.passed_alone == ({"test_suite::test_is_crowded"} if runs_again else set())
    assert len(totals.failed) == sum(broken) + (not runs_again)


def test_few_failures_are_those_of_three_files(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert few_failures.count(report) == 0
    for failed, count in [
        ("", 0),
        ("a b c", 3),
        ("a " * 20, 20),
        ("a " * 21, 0),
        ("a b c d", 0),
    ]:
        cases = "".join(
            f'<testcase classname="{name}" name="{i}"><failure/></testcase>'
            for i, name in enumerate(failed.split())
        )
        report.write_text(f'<testsuite><testcase classname="z" name="z"/>{cases}</testsuite>')
        assert few_failures.count(report) == count, failed


def test_what_failed_or_skipped_something_is_run_again(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    skipping = f"<system-out>{GOOGLETEST_OUTPUT}</system-out>"
    report.write_text(
        '<testsuite><testcase name="good" status="run"/><testcase name="bad" status="fail"/>'
        f'<testcase name="half" status="run">{skipping}</testcase></testsuite>'
    )
    assert passed_tests.passed_tests(report) == ["good"]
    assert passed_tests.passed_tests(tmp_path / "none.xml") == []


def test_every_allowed_skip_has_a_reason() -> None:
    assert check_skips.allowed_patterns(check_skips.ALLOWED.read_text())
    with pytest.raises(ValueError, match="no reason"):
        check_skips.allowed_patterns("some::test\n")


def test_sanitizers_choose_tests_that_are_not_built_yet(tmp_path: Path) -> None:
    """ctest names no command before the program is there."""
    build = tmp_path / "build"
    build.mkdir()
    (build / "CTestTestfile.cmake").write_text(
        f'add_test("a_test" "{build}/a_test")\n'
        f'set_tests_properties("a_test" PROPERTIES LABELS "slow")\n'
        f'add_test("b_test" "{build}/tools/b" "--plugin" "{build}/b.so" "--abi" "4")\n'
    )
    listed = json.dumps({"tests": [{"name": "b_test"}, {"name": "c_test"}]})
    subprocess.run(
        [sys.executable, TOOLS / "choose_tests.py", build, tmp_path / "chosen"],
        input=listed,
        text=True,
        check=True,
    )
    assert (tmp_path / "chosen").read_text().split() == ["^(b_test)$", "b.so", "tools/b"]


def test_test_files_that_share_a_program_are_chosen_together(tmp_path: Path) -> None:
    tests = {
        f"{room}_{i}": [str(tmp_path / f"{room}_tests"), f"--file={room}_{i}"]
        for room in ("base", "wire", "net")
        for i in range(5)
    }
    for seed in range(choose_tests.SHARE):
        chosen = choose_tests.choose(tests, tmp_path, ["README.md"], seed)
        assert {len([n for n in chosen if n.startswith(room)]) for room in ("base", "wire")} <= {
            0,
            5,
        }
    everything = [choose_tests.choose(tests, tmp_path, ["README.md"], s) for s in range(3)]
    assert sorted(name for chosen in everything for name in chosen) == sorted(tests)


def test_each_test_is_in_one_of_the_shares_of_seeds_that_follow_one_another() -> None:
    names = [f"tests/python/parallel/test_{n % 7}.py::test_of_ranks[{n}]" for n in range(1000)]
    shares = [{name for name in names if is_in_share(name, 5, seed)} for seed in range(11, 16)]
    assert sum(map(len, shares)) == len(set().union(*shares)) == len(names)
    assert all(150 < len(share) < 250 for share in shares)
    assert all(is_in_share(name, 1, 7) for name in names)


def test_tests_beside_other_programs_are_known_by_what_they_are_about() -> None:
    files = [str(path) for path in tracked_files()]
    for begin, sources in BESIDE_OTHERS.items():
        tests = [name for name in files if name.startswith(begin)]
        assert tests, begin
        for source in sources:
            assert any(name.startswith(source) for name in files), source
        assert is_beside_what_stayed(tests[0], ["docs/README.md", "csrc/lightcc/engine/core.cpp"])
        assert not is_beside_what_stayed(tests[0], ["docs/README.md", tests[0]])
    ray = "tests/python/test_ray.py"
    assert not is_beside_what_stayed(ray, ["lightcc/runner/driver.py"])
    assert not is_beside_what_stayed("tests/python/parallel/test_topk.py", [])
