"""Runs Horovod's own tests and those of its users, unmodified, against lightcc, and writes a page.

Usage: horovod_suite.py HOROVOD [--ranks 2 3 4] [--baseline FILE] [--ignite CHECKOUT]
           [--ignite-files REGEX] [--lightning CHECKOUT] [--examples] [--keep FILE]
           [--tensorflow PYTHON] [--sections GROUP...]
           --output docs/reference/horovod-suite.md

HOROVOD is a checkout; nothing of it is copied. Each file of `PARALLEL` runs under each number of
ranks, with the interpreter that runs this program: `lightccrun --horovod -np N python -m pytest
FILE`. A test has passed when it has on all ranks. Other groups start their ranks themselves.

PYTHON of --tensorflow is the interpreter of an environment with TensorFlow and lightcc: the files
of `TENSORFLOW` run there. With --sections only those groups of `TITLES` run, and the page keeps its
other sections.

FILE of --baseline has lines "status  file::class::test", as the real Horovod gave them on two
ranks. Every line counts: a test that is worse here than there, or did not run here, is a failure of
this program.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from horovod_examples import SCRIPTS, TENSORFLOW_SCRIPTS, run_example, run_tensorflow_example
from suite_results import ORDER, Result, Results, count_line, read_reports, skip_table, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

PARALLEL = ("test_torch.py", "test_common.py", "test_process_sets_static.py", "test_timeline.py")
# These name TensorFlow's module, but use only what all of Horovod's modules share. They get torch's
# under that name, so that they run without TensorFlow.
FRAMEWORK_FREE = ("test_process_sets_static.py",)
AS_TENSORFLOW = (
    "import sys, horovod, horovod.torch, pytest; "
    "horovod.tensorflow = sys.modules['horovod.tensorflow'] = horovod.torch; "
    "sys.exit(pytest.main(sys.argv[1:]))"
)
# Those of TensorFlow, on two ranks. They are written for Keras 2, which tf-keras is today.
KERAS_2 = "TF_USE_LEGACY_KERAS=1"
TENSORFLOW = (
    "test_tensorflow.py",
    "test_tensorflow_process_sets.py",
    "test_tensorflow_process_sets_dynamic.py",
    "test_xla.py",
    "test_xla_process_sets.py",
    "test_tensorflow2_keras.py",
    "test_tensorflow_keras.py",
)
# Those of elastic jobs, by folder. They start their ranks themselves; the last file is ours.
UNSKIPPED = Path(__file__).resolve().parent / "horovod_tests" / "test_elastic_torch_unskipped.py"
ELASTIC = (
    ("single", "test_torch_elastic.py"),
    ("single", "test_elastic_run.py"),
    ("single", "test_elastic_discovery.py"),
    ("integration", "test_elastic_torch.py"),
    ("integration", str(UNSKIPPED)),
)
# Those of Ray. They start Ray on this machine.
RAY = ("test_ray.py", "test_ray_elastic.py", "test_ray_elastic_v2.py")
TENSORFLOW_RANKS = 2
# Results whose message does not say the cause, by group and test.
MULTIPLIES = (
    "it asks for a quotient bit for bit; a product with the reciprocal, which Horovod forms too, "
    "is that where the number of ranks is a power of two"
)
THREE_HALVES = (
    "it asks for three times a float16, bit for bit, in a float16, which has not the bits for it"
)
HALF_OF_NOTHING = (
    "it asks that the error 0 be less than 1e-8, which is 0 too where numpy 2 makes it a float16"
)
EXPLAINED = {
    ("3 ranks", "test_horovod_allreduce_prescale"): THREE_HALVES,
    ("3 ranks", "test_horovod_grouped_reducescatter_prescale"): THREE_HALVES,
    ("3 ranks", "test_horovod_reducescatter_prescale"): THREE_HALVES,
    ("3 ranks", "test_horovod_join_allreduce"): MULTIPLIES,
    ("tensorflow", "test_horovod_reducescatter_grad_cpu_process_sets"): HALF_OF_NOTHING,
    ("interactive", "test_failed_run"): "with `use_mpi` it asks for an error of mpirun, which is "
    "not used: lightccrun starts the ranks itself",
    ("lightning", "test_accuracy_metric_horovod"): "skipped by its authors",
    ("lightning", "test_result_reduce_horovod"): "skipped by its authors",
    ("examples", "pytorch_lightning_mnist.py"): "it asks for `accelerator='horovod'`, which "
    "PyTorch Lightning 1.9 no longer has; its HorovodStrategy is tested below",
}
BASELINE_RANKS = 2
TIME_LIMIT_S = 5000
# A test that fails on one rank leaves the others waiting for it until then.
TEST_TIME_LIMIT_S = 60
JOB_TIME_LIMIT_S = 600  # For a test that starts ranks, some of them several times.
PACKAGES = ("lightcc", "torch", "numpy", "pytest")
IGNITE = ("distributed", "engine", "handlers", "metrics")  # Folders of its tests.
LIGHTNING = "tests_pytorch/models/test_horovod.py"
TITLES = {
    "interactive": "`horovod.run`: Horovod's `test/integration/test_interactiverun.py`",
    "elastic": "Elastic jobs: Horovod's tests for torch, and those that it skips",
    "ray": "Ray: Horovod's tests, on one machine",
    "examples": "Horovod's `examples/pytorch`, on generated data, 2 ranks",
    "ignite": "pytorch-ignite: its tests of Horovod, 4 ranks each",
    "lightning": "PyTorch Lightning 1.9: its tests of HorovodStrategy",
    "tensorflow": "TensorFlow, 2 ranks",
}


def run(command: list[str], cwd: Path, modules: str = "") -> None:
    """Runs a command to its end, with Horovod's names and commands, and modules of a folder."""
    # Those beside the interpreter; what a link leads to has others.
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"LIGHTCC_HOROVOD": "1", "PATH": path}
    if modules:
        environment["PYTHONPATH"] = modules
    subprocess.run(command, cwd=cwd, env=environment, timeout=TIME_LIMIT_S, check=False)


def run_on_ranks(
    sources: Path,
    file: str,
    ranks: int,
    test: str = "",
    python: str = sys.executable,
    variables: str = "",
) -> Results:
    """Runs one file of Horovod's, or one test of it, on all ranks and returns the results.

    A test that fails on one rank only may take the world of those after it along. So what did not
    pass in the run of a file runs once more, each test in a world of its own, and that counts.
    """
    launcher = [python, "-m", "lightcc.runner", "--horovod", "-np", str(ranks)]
    with tempfile.TemporaryDirectory() as directory:
        pytest = ["-c", AS_TENSORFLOW] if file in FRAMEWORK_FREE else ["-m", "pytest"]
        # The limit is of the test alone: what pytest writes about a failure takes a while, too.
        limit = f"--timeout {TEST_TIME_LIMIT_S} -o timeout_func_only=true"
        # Ranks take the tests in one order, also where a plugin would shuffle them.
        options = f"-p no:cacheprovider -p no:randomly {limit}"
        # Whatever came of the tests, a rank ends in order, so that the others can write as well.
        script = f'{variables} "$@" {options} --junit-xml="{directory}/$LIGHT_RANK.xml"; true'
        command = [*launcher, "sh", "-c", script, "sh", python, *pytest, test or file]
        # The tests know one another as siblings, so they run where they lie.
        run(command, sources / "test" / "parallel")
        reports = sorted(Path(directory).glob("*.xml"))
        if len(reports) != ranks:
            lost = Result("failed", f"{len(reports)} of {ranks} ranks reported")
            return {test or f"{file}::": lost}
        results = read_reports(file, reports)
    if not test:
        for name in [name for name, result in results.items() if result.status == "failed"]:
            results |= run_on_ranks(sources, file, ranks, name, python, variables)
    return results


def run_here(folder: Path, file: str, *options: str, modules: str = "") -> Results:
    """Runs a file whose tests start their ranks themselves."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        if Path(file).is_absolute():  # Ours lies beside settings for a newer pytest.
            pytest += ["-c", os.devnull, "--rootdir", "."]
        command = [*pytest, f"--timeout={JOB_TIME_LIMIT_S}", f"--junit-xml={report}", file]
        run(command, folder, modules)
        name = Path(file).name if Path(file).is_absolute() else file
        if not report.is_file():
            return {f"{name}::": Result("failed", "pytest wrote no report")}
        return read_reports(name, [report])


def tensorflow_versions(python: str) -> str:
    """Returns what an environment has, in words.

    Raises:
        subprocess.CalledProcessError: It has no TensorFlow.
    """
    code = (
        "import importlib, tensorflow as tf\n"
        "keras = importlib.import_module(tf.keras.Model.__module__.partition('.')[0])\n"
        "print(f'TensorFlow {tf.__version__}, Keras {keras.__version__}')"
    )
    name, _, value = KERAS_2.partition("=")
    done = subprocess.run(
        [python, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {name: value},
    )
    return done.stdout.strip()


def ignite_files(checkout: Path) -> list[str]:
    """Returns the files of pytorch-ignite's tests that know Horovod."""
    folders = [checkout / "tests" / "ignite" / name for name in IGNITE]
    paths = [path for folder in folders for path in sorted(folder.rglob("test_*.py"))]
    words = re.compile(r"hvd|horovod|\bdistributed\b")
    chosen = [path for path in paths if words.search(path.read_text(encoding="utf-8"))]
    return [str(path.relative_to(checkout)) for path in chosen]


def read_baseline(path: Path) -> dict[str, str]:
    """Returns the status of each test by "file::class::test"."""
    lines = [line.split("#")[0].split() for line in path.read_text().splitlines()]
    return {words[1]: words[0] for words in lines if len(words) == 2}


def compare(results: Results, baseline: dict[str, str]) -> list[str]:
    """Returns a line for each test that is worse than in the baseline."""
    worse = []
    for name, status in baseline.items():
        result = results.get(name, Result("failed", "did not run"))
        if ORDER.index(result.status) < ORDER.index(status):
            text = f"{status} under Horovod, {result.status} here: {result.reason}"
            worse.append(f"`{name}`: {text}")
    return worse


def revision(sources: Path) -> str:
    """Returns which Horovod the sources are."""
    text = (sources / "horovod" / "__init__.py").read_text()
    found = re.search(r"__version__ = '([^']+)'", text)
    return found[1] if found else "unknown"


def reason_of(group: str, test: str, result: Result) -> str:
    """Returns why a test failed or was skipped."""
    return EXPLAINED.get((group, test)) or result.reason or "no reason given"


def failures(groups: dict[str, Results]) -> list[str]:
    """Returns a line for each test that failed: in which groups, if not in all, and why."""
    found: dict[tuple[str, str], list[str]] = {}
    for group, results in groups.items():
        for name, result in results.items():
            if result.status == "failed":
                test = name.rpartition("::")[2] or name.removesuffix("::")
                found.setdefault((test, reason_of(group, test, result)), []).append(group)
    lines = []
    for (test, reason), where in found.items():
        some = f" ({', '.join(where)})" if len(where) < len(groups) else ""
        lines.append(f"- `{test}`{some}: {reason}")
    return sorted(lines)


def explanations(groups: dict[str, Results]) -> list[str]:
    """Returns what failed in these groups, and how many tests skipped for which reason."""
    lines = []
    if failed := failures(groups):
        lines += ["", "What failed:", "", *failed]
    skipped = {
        name: reason_of(group, name.rpartition("::")[2], result)
        for group, results in groups.items()
        for name, result in results.items()
        if result.status == "skipped"
    }
    if skipped:
        lines += ["", "What skipped:", "", *skip_table(skipped.values())]
    return lines


def page(sources: Path, groups: dict[str, Results], baseline: dict[str, str] | None) -> str:
    """Returns docs/reference/horovod-suite.md.

    Args:
        sources: The checkout of Horovod.
        groups: The results by group: "N ranks", or a key of `TITLES`.
        baseline: What the real Horovod gave, if that is known.
    """
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    own = {name: results for name, results in groups.items() if name not in TITLES}
    lines = [
        "# Horovod's own tests, and those of its users",
        "",
        "Written by `make horovod-suite HOROVOD_SRC=<checkout of Horovod>`; do not edit.",
        "",
        f"The files are those of Horovod {revision(sources)}, unmodified, on one machine: Python "
        f"{', '.join([platform.python_version(), *versions])}. A test has passed when it has on "
        "all ranks.",
        "",
        "For each file: `lightccrun --horovod -np N python -m pytest FILE`, in `test/parallel`.",
        *(
            f"`{file}` imports `horovod.tensorflow`, but uses nothing of TensorFlow; "
            "`horovod.torch` stands there under that name."
            for file in FRAMEWORK_FREE
        ),
        "",
        "| ranks | file | passed | failed | skipped |",
        "|---|---|---|---|---|",
    ]
    for group, results in own.items():
        for file in PARALLEL:
            part = {name: it for name, it in results.items() if name.startswith(f"{file}::")}
            lines.append(f"| {group.split()[0]} {count_line(f'`{file}`', part)}")
    lines += explanations(own)
    if baseline is not None:
        worse = compare(groups[f"{BASELINE_RANKS} ranks"], baseline)
        lines += ["", "## Beside Horovod itself", ""]
        lines += [
            f"Horovod itself, built for the same torch, gave results of {len(baseline)} tests on "
            f"{BASELINE_RANKS} ranks. All are compared. Worse here, or missing:",
            "",
            *([f"- {line}" for line in worse] or ["Nothing."]),
        ]
    text = "".join(f"{wrapped(line)}\n" for line in lines)
    for group in TITLES:
        if group in groups:
            text = with_group(text, group, groups[group])
    return text


def with_group(text: str, group: str, results: Results, about: str = "") -> str:
    """Returns a page whose section of `group` is new, in its place; at the end, if it had none."""
    before, _, after = text.partition(f"\n## {TITLES[group]}\n")
    _, mark, others = after.partition("\n## ")
    lines = ["", f"## {TITLES[group]}", "", *([about, ""] if about else [])]
    lines += section(group, results)
    return before + "".join(f"{wrapped(line)}\n" for line in lines) + mark + others


def about_tensorflow(python: str) -> str:
    """Returns how the tests of TensorFlow ran."""
    return (
        f"In an environment with {tensorflow_versions(python)}: `make horovod-suite "
        "HOROVOD_SRC=<checkout> HOROVOD_SECTIONS=tensorflow`. For each file: `lightccrun --horovod "
        f"-np 2 python -m pytest FILE` with `{KERAS_2}`, as Horovod's tests are written for "
        "Keras 2. A test that failed on the way runs once more by itself. The last rows are "
        "scripts of Horovod's `examples`: a whole run is one."
    )


def section(group: str, results: Results) -> list[str]:
    """Returns what a group gave, by file, with reasons."""
    lines = ["| file | passed | failed | skipped |", "|---|---|---|---|"]
    files = list(dict.fromkeys(name.partition("::")[0] for name in results))
    for file in files:
        part = {name: it for name, it in results.items() if name.startswith(f"{file}::")}
        lines.append(count_line(f"`{file}`", part))
    if len(files) > 1:
        lines.append(count_line("all", results))
    return lines + explanations({group: results})


def parts_to_run(arguments: argparse.Namespace) -> list[tuple[str, str, Callable[[], Results]]]:
    """Returns what was asked for, as group, part of it, and how to run that."""
    sources: Path = arguments.sources
    todo: list[tuple[str, str, Callable[[], Results]]] = [
        (f"{ranks} ranks", file, functools.partial(run_on_ranks, sources, file, ranks))
        for ranks in arguments.ranks
        for file in PARALLEL
    ]
    here: list[tuple[str, Path, str, tuple[str, ...]]] = [
        ("interactive", sources / "test" / "integration", "test_interactiverun.py", ())
    ]
    here += [("ray", sources / "test" / "single", file, ()) for file in RAY]
    utils = str(sources / "test" / "utils")
    todo += [
        (
            "elastic",
            file,
            functools.partial(run_here, sources / "test" / folder, file, modules=utils),
        )
        for folder, file in ELASTIC
    ]
    if arguments.lightning is not None:
        here.append(("lightning", arguments.lightning / "tests", LIGHTNING, ()))
    if arguments.ignite is not None:
        here += [
            ("ignite", arguments.ignite, file, ("-k", "hvd or horovod"))
            for file in ignite_files(arguments.ignite)
            if re.search(arguments.ignite_files, file)
        ]
    todo += [
        (group, file, functools.partial(run_here, folder, file, *options))
        for group, folder, file, options in here
    ]
    if arguments.examples:
        todo += [
            ("examples", script, functools.partial(run_one_example, sources, script))
            for script in SCRIPTS
        ]
    return todo + (tensorflow_parts(arguments) if arguments.tensorflow else [])


def tensorflow_parts(arguments: argparse.Namespace) -> list[tuple[str, str, Callable[[], Results]]]:
    """Returns the parts that need TensorFlow."""
    sources, python = arguments.sources, arguments.tensorflow
    on_ranks = functools.partial(run_on_ranks, python=python, variables=KERAS_2)
    return [
        *(
            ("tensorflow", file, functools.partial(on_ranks, sources, file, TENSORFLOW_RANKS))
            for file in TENSORFLOW
        ),
        *(
            ("tensorflow", script, functools.partial(tensorflow_example, sources, script, python))
            for script in TENSORFLOW_SCRIPTS
        ),
    ]


def tensorflow_example(sources: Path, script: str, python: str) -> Results:
    """Runs one of Horovod's examples of TensorFlow."""
    return {f"{script}::": Result(*run_tensorflow_example(sources, script, python, run))}


def run_one_example(sources: Path, script: str) -> Results:
    """Runs one of Horovod's examples."""
    return {f"{script}::": Result(*run_example(sources, script, run))}


def run_groups(arguments: argparse.Namespace) -> dict[str, Results]:
    """Runs what was asked for; a part that `--keep` has is not run again."""
    kept: dict[str, dict[str, dict[str, str]]] = {}
    if arguments.keep is not None and arguments.keep.is_file():
        kept = json.loads(arguments.keep.read_text(encoding="utf-8"))
    groups: dict[str, Results] = {}
    for group, part, make in parts_to_run(arguments):
        if arguments.sections and group not in arguments.sections:
            continue
        key = f"{group}: {part}"
        if key not in kept:
            kept[key] = {test: asdict(result) for test, result in make().items()}
            if arguments.keep is not None:
                arguments.keep.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        results = {test: Result(**result) for test, result in kept[key].items()}
        groups.setdefault(group, {}).update(results)
    return groups


def main() -> int:
    """Runs all; returns 1 when a test is worse than in the baseline, or fails without one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--ignite", type=Path)
    parser.add_argument("--ignite-files", default="", metavar="REGEX")
    parser.add_argument("--lightning", type=Path)
    parser.add_argument("--examples", action="store_true")
    parser.add_argument("--tensorflow", metavar="PYTHON", default="")
    parser.add_argument("--sections", nargs="+", choices=TITLES, default=[], metavar="GROUP")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.baseline is not None and BASELINE_RANKS not in arguments.ranks:
        parser.error(f"--baseline: it is of {BASELINE_RANKS} ranks; --ranks must name them")
    if arguments.sections and arguments.baseline is not None:
        parser.error("--sections: --baseline does not go with it")
    if "tensorflow" in arguments.sections and not arguments.tensorflow:
        parser.error("--sections: --tensorflow must say which interpreter has it")
    install = [sys.executable, "-m", "lightcc.horovod", "--install-horovodrun"]
    subprocess.run(install, check=True)
    groups = run_groups(arguments)
    baseline = read_baseline(arguments.baseline) if arguments.baseline is not None else None
    if arguments.sections:
        text = arguments.output.read_text(encoding="utf-8")
        for group, results in groups.items():
            text = with_group(text, group, results)
    else:
        text = page(arguments.sources, groups, baseline)
    if "tensorflow" in groups:
        about = about_tensorflow(arguments.tensorflow)
        text = with_group(text, "tensorflow", groups["tensorflow"], about)
    arguments.output.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    if baseline is not None:
        return int(bool(compare(groups[f"{BASELINE_RANKS} ranks"], baseline)))
    return int(any(it.status == "failed" for results in groups.values() for it in results.values()))


if __name__ == "__main__":
    sys.exit(main())
