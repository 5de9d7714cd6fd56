"""Runs files of Horovod's own test suite, unmodified, against lightcc, and writes what came of it.

Usage: horovod_suite.py SOURCES [--baseline FILE] [--output docs/horovod-suite.md]

SOURCES is a checkout of Horovod; nothing of it is copied. Every file runs under two ranks, in the
interpreter that runs this program: `lightccrun --horovod -np 2 python -m pytest FILE`. A test has
passed when it has on both ranks. FILE of --baseline has lines "status  file::class::test", as the
real Horovod gave them; a test that passed there and does not pass here is a failure of this
program, and so is a skip that was none there.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

FILES = ("test_torch.py", "test_common.py", "test_process_sets_static.py")
# These name TensorFlow's module, but use only what all of Horovod's modules share. They get torch's
# under that name, so that they run without TensorFlow.
FRAMEWORK_FREE = ("test_process_sets_static.py",)
AS_TENSORFLOW = (
    "import sys, horovod, horovod.torch, pytest; "
    "horovod.tensorflow = sys.modules['horovod.tensorflow'] = horovod.torch; "
    "sys.exit(pytest.main(sys.argv[1:]))"
)
RANKS = 2
TIME_LIMIT_S = 1500
PACKAGES = ("lightcc", "torch", "numpy", "pytest")
# Worse results first: of the ranks' results of one test, the worst counts.
ORDER = ("failed", "skipped", "passed")
# Why a file cannot run yet, by a word of the error that collecting it ends with.
NOT_YET = re.compile(r"ModuleNotFoundError: (horovod\.[\w.]+: this version of lightcc .* yet)")


@dataclass
class Result:
    """What became of one test."""

    status: str
    reason: str = ""

    def worse(self, other: Result) -> Result:
        """Returns the one that counts."""
        return min(self, other, key=lambda result: ORDER.index(result.status))


def result_of(case: ET.Element) -> Result:
    """Returns the result that a <testcase> tells."""
    for tag, status in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(tag)
        if found is not None:
            text = found.text or ""
            not_yet = NOT_YET.search(text)
            if not_yet is not None:
                return Result("skipped", not_yet[1])
            words = (found.get("message") or text).strip().splitlines()
            return Result(status, words[0] if words else "")
    return Result("passed")


def read_reports(file: str, reports: list[Path]) -> dict[str, Result]:
    """Returns the results of one file's tests by "file::class::test", the worst rank's."""
    results: dict[str, Result] = {}
    for report in reports:
        # Written by pytest a moment ago: not hostile.
        for case in ET.parse(report).iter("testcase"):  # noqa: S314
            group = case.get("classname", "").rpartition(".")[2]
            name = "::".join([file, group, case.get("name", "")])
            result = result_of(case)
            results[name] = result.worse(results.get(name, result))
    return results


def run_file(sources: Path, file: str) -> dict[str, Result]:
    """Runs one file on two ranks and returns its tests' results."""
    launcher = [sys.executable, "-m", "lightcc.runner", "--horovod", "-np", str(RANKS)]
    with tempfile.TemporaryDirectory() as directory:
        pytest = ["-c", AS_TENSORFLOW] if file in FRAMEWORK_FREE else ["-m", "pytest"]
        script = (
            f'exec "$@" -p no:cacheprovider --timeout 180 --junit-xml="{directory}/$LIGHT_RANK.xml"'
        )
        command = [*launcher, "sh", "-c", script, "sh", sys.executable, *pytest, file]
        # The tests know one another as siblings, so they run where they lie.
        subprocess.run(
            command, cwd=sources / "test" / "parallel", timeout=TIME_LIMIT_S, check=False
        )
        reports = sorted(Path(directory).glob("*.xml"))
        if len(reports) != RANKS:
            return {f"{file}::": Result("failed", f"{len(reports)} of {RANKS} ranks reported")}
        return read_reports(file, reports)


def read_baseline(path: Path) -> dict[str, str]:
    """Returns the status of each test by "file::class::test"."""
    lines = [line.split("#")[0].split() for line in path.read_text().splitlines()]
    return {words[1]: words[0] for words in lines if len(words) == 2}


def compare(results: dict[str, Result], baseline: dict[str, str]) -> list[str]:
    """Returns one line for each test that is worse than in the baseline."""
    worse = []
    for name, expected in baseline.items():
        if name.partition("::")[0] not in FILES:
            continue
        result = results.get(name, Result("failed", "did not run"))
        if ORDER.index(result.status) < ORDER.index(expected):
            worse.append(f"{name}: {expected} under Horovod, {result.status} here: {result.reason}")
    return worse


def revision(sources: Path) -> str:
    """Returns which Horovod the sources are."""
    text = (sources / "horovod" / "__init__.py").read_text()
    found = re.search(r"__version__ = '([^']+)'", text)
    return found[1] if found else "unknown"


def page(sources: Path, results: dict[str, Result], worse: list[str] | None) -> str:
    """Returns docs/horovod-suite.md."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    python = f"Python {platform.python_version()}"
    lines = [
        "# Horovod's own tests",
        "",
        "Written by `make horovod-suite HOROVOD_SRC=<checkout of Horovod>`; do not edit.",
        "",
        f"The files are those of Horovod {revision(sources)}, unmodified, on {RANKS} ranks of one "
        f"machine: {', '.join([python, *versions])}. A test has passed when it has on both ranks.",
        "",
        "For each file: `lightccrun --horovod -np 2 python -m pytest FILE`, in `test/parallel`.",
        *(
            f"`{file}` imports `horovod.tensorflow`, but uses nothing of TensorFlow; "
            "`horovod.torch` stands there under that name."
            for file in FRAMEWORK_FREE
        ),
        "",
        "| file | passed | failed | skipped |",
        "|---|---|---|---|",
    ]
    for file in FILES:
        own = [result for name, result in results.items() if name.startswith(f"{file}::")]
        counts = [sum(result.status == status for result in own) for status in ORDER]
        lines.append(f"| `{file}` | {counts[2]} | {counts[0]} | {counts[1]} |")
    for status in ("failed", "skipped"):
        chosen = {name: result for name, result in results.items() if result.status == status}
        lines += ["", f"## What {status}, and why", ""]
        lines += [
            f"- `{name.rpartition('::')[2] or name}`: {result.reason}"
            for name, result in chosen.items()
        ] or ["Nothing."]
    if worse is not None:
        lines += ["", "## Beside Horovod itself", ""]
        lines += [f"- {line}" for line in worse] or [
            "Every test that passed under Horovod, built for the same torch, passes here, and "
            "nothing is skipped here that is not skipped there."
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the files; returns 1 when a test is worse than in the baseline, or fails without one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    results: dict[str, Result] = {}
    for file in FILES:
        results |= run_file(arguments.sources, file)
    worse = None
    if arguments.baseline is not None:
        worse = compare(results, read_baseline(arguments.baseline))
    text = page(arguments.sources, results, worse)
    arguments.output.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    if worse is None:
        return int(any(result.status == "failed" for result in results.values()))
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
