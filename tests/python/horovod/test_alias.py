"""Horovod's names in one process: one module under two names, and nothing unless asked for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from programs import RUN, output, write

from lightcc._ops.reductions import Average, Sum
from lightcc.horovod.__main__ import interpreter_options
from lightcc.horovod.common import basics, util
from lightcc.horovod.runner.common.util import env

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PAIRS = {
    "horovod": "lightcc.horovod",
    "horovod.common": "lightcc.horovod.common",
    "horovod.common.basics": "lightcc.horovod.common.basics",
    "horovod.common.exceptions": "lightcc.exceptions",
    "horovod.common.process_sets": "lightcc.process_sets",
    "horovod.common.util": "lightcc.horovod.common.util",
    "horovod.data": "lightcc.horovod.data",
    "horovod.data.data_loader_base": "lightcc.horovod.data.data_loader_base",
    "horovod.runner": "lightcc.horovod.runner",
    "horovod.runner.common.util.env": "lightcc.horovod.runner.common.util.env",
    "horovod.runner.launch": "lightcc.horovod.runner.launch",
    "horovod.runner.util.threads": "lightcc.horovod.runner.util.threads",
}


@pytest.mark.parametrize("alias_first", [True, False])
def test_a_module_is_one_object_with_lightccs_identity_under_both_names(alias_first: bool) -> None:
    order = 1 if alias_first else -1
    program = f"""
import importlib
for names in {list(PAIRS.items())}:
    imported = {{name: importlib.import_module(name) for name in names[::{order}]}}
    alias, real = (imported[name] for name in names)
    assert alias is real, names
    assert real.__name__ == real.__spec__.name == names[1], real.__spec__
    assert real.__spec__.loader is real.__loader__
    package = names[1] if hasattr(real, "__path__") else names[1].rpartition(".")[0]
    assert real.__package__ == package, real.__package__
"""
    output(*RUN, "-c", program)


def test_errors_pickles_specs_and_versions_are_those_of_lightcc() -> None:
    program = """
import importlib, importlib.metadata as metadata, importlib.util, pickle
import horovod, horovod.common.util as alias, lightcc
assert importlib.util.find_spec("horovod.common.util").name == "lightcc.horovod.common.util"
assert importlib.reload(alias) is alias
import lightcc.horovod.runner.launch, horovod.runner.util
assert lightcc.horovod.runner.launch is horovod.runner.launch

import horovod.common.exceptions as theirs
assert theirs.HorovodInternalError is lightcc.HorovodInternalError
assert theirs.HostsUpdatedInterrupt is lightcc.HostsUpdatedInterrupt
pickled = pickle.dumps(lightcc.PeerFailedError("rank 1 is gone", 1), protocol=0)
assert b"clightcc.exceptions" in pickled
copy = pickle.loads(pickled.replace(b"clightcc.exceptions", b"chorovod.common.exceptions"))
assert type(copy) is lightcc.PeerFailedError and copy.rank == 1

assert metadata.version("horovod") == horovod.__version__ == "0.28.1"
assert metadata.metadata("horovod")["Name"] == "horovod"
assert "horovod" not in {found.metadata["Name"] for found in metadata.distributions()}
"""
    output(*RUN, "-c", program)


TRY = """
import importlib, sys
for name in {hidden}:
    sys.modules[name] = None
for name in {modules}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(error.name, error)
"""


def errors_of(modules: Iterable[str], hidden: Iterable[str] = ()) -> list[str]:
    """Returns what one interpreter, which has not the `hidden` ones, says of each module."""
    program = TRY.format(modules=list(modules), hidden=list(hidden))
    return output(*RUN, "-c", program).splitlines()


def test_what_is_not_there_is_an_import_error_that_says_so() -> None:
    # All but the first are modules of lightcc that Horovod does not have: no second way to them.
    modules = ["mxnet", "basics", "horovod", "alias", "run.runner", "common.nothing"]
    said = errors_of(f"horovod.{name}" for name in modules)
    assert len(said) == len(modules)
    assert all(line.startswith("horovod.") and "no such module" in line for line in said)


@pytest.mark.extra
def test_estimators_of_spark_are_named_as_not_supported() -> None:
    (said,) = errors_of(["horovod.spark.torch"])
    assert "does not support Spark's estimators yet" in said


def test_a_door_says_what_to_install() -> None:
    doors = ["lightcc.ray", "horovod.ray", "horovod.ray.runner", "horovod.spark"]
    *of_ray, of_spark = errors_of(doors, ["ray", "pyspark"])
    assert len(of_ray) == 3
    for said in of_ray:
        assert said.startswith("ray lightcc.")
        assert "Ray, which is not installed: pip install 'lightcc[ray]'" in said
    assert of_spark.startswith("pyspark lightcc.")
    assert "which is not installed: pip install 'lightcc[spark]'" in of_spark


def test_nothing_happens_without_the_variable() -> None:
    program = """
import importlib.metadata
for what in (lambda: __import__("horovod"), lambda: importlib.metadata.version("horovod")):
    try:
        what()
    except ImportError:  # PackageNotFoundError is one.
        continue
    raise SystemExit("it is there")
"""
    for value in ("", "yes"):
        output(sys.executable, "-c", program, variables={"LIGHTCC_HOROVOD": value})


def test_the_switch_itself_imports_neither_numpy_nor_lightcc() -> None:
    program = "import sys; print({'numpy', 'lightcc', 'typing'} & set(sys.modules))"
    bare = output(sys.executable, "-c", program)
    assert output(sys.executable, "-c", program, variables={"LIGHTCC_HOROVOD": "1"}) == bare


def test_a_script_runs_as_python_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    script = write(
        tmp_path / "train.py",
        """
        import sys, beside
        assert __name__ == "__main__" and sys.modules["__main__"].__spec__ is None
        print(sys.argv, __file__, sys.path[0], sys.flags.dev_mode, sys.flags.optimize, beside.VALUE)
        raise SystemExit(7)
        """,
    )
    run = [sys.executable, "-O", "-X", "dev", "-m", "lightcc.horovod"]
    assert output(*run, script, "--lr", "1", "-m", "x", code=7) == ""
    shown = output(*run, "-c", "import sys; print(sys.argv, sys.flags.dev_mode)", "a b", "-c")
    assert shown == "['-c', 'a b', '-c'] True\n"


def test_a_module_runs_as_main(tmp_path: Path) -> None:
    write(
        tmp_path / "training.py",
        """
        import sys, horovod.common.util
        print(__name__, sys.argv[1:], horovod.common.util.gloo_built())
        """,
    )
    assert output(*RUN, "-m", "training", "x", cwd=tmp_path) == "__main__ ['x'] True\n"


def test_no_program_is_a_mistake_and_help_is_not() -> None:
    assert "usage: python -m lightcc.horovod SCRIPT" in output(*RUN, code=2)
    assert "usage: python -m lightcc.horovod SCRIPT" in output(*RUN, "--help")


def test_an_interpreter_that_skips_site_packages_is_an_error(tmp_path: Path) -> None:
    script = write(tmp_path / "x.py", "")
    said = output(
        *(sys.executable, "-S", "-m", "lightcc.horovod", script),
        code=2,
        variables={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert "lightcc_horovod.pth is not in the site-packages" in said


@pytest.mark.parametrize(
    ("argv", "arguments", "options"),
    [
        (["python", "-m", "lightcc.horovod", "a.py"], 1, []),
        (["python", "-X", "dev", "-um", "lightcc.horovod", "a.py", "-m"], 2, ["-X", "dev", "-u"]),
        (["python", "-mlightcc.horovod", "-m", "lightcc.horovod"], 2, []),
        (["python", "-Bumlightcc.horovod"], 0, ["-Bu"]),
    ],
)
def test_interpreter_options_are_kept(argv: list[str], arguments: int, options: list[str]) -> None:
    assert interpreter_options(argv, arguments) == options


def test_planes_that_are_there_are_told_as_horovod_tells_them() -> None:
    assert util.gloo_built() is True
    assert util.mpi_built() is util.ddl_built() is util.ccl_built() is False
    assert util.nccl_built() == basics.HorovodBasics(__file__, "mpi_lib").nccl_built()
    assert util.extension_available("mxnet") is False
    assert basics.HorovodBasics(__file__, "mpi_lib").gloo_enabled() is True
    with pytest.raises(AttributeError, match="'HorovodBasics' object has no attribute 'nothing'"):
        basics.HorovodBasics().nothing  # noqa: B018


def test_helpers_do_as_their_names_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert util.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert util.split_list([1], 2) == [[1], []]
    assert [n for n in range(10) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]
    assert util.is_version_greater_equal_than("2.10.0+cpu", "2.9.1")
    assert not util.is_version_greater_equal_than("2.9", "2.10")
    assert util.is_version_greater_equal_than("1.0", "1")
    with pytest.raises(ValueError, match="'x' is not a version"):
        util.is_version_greater_equal_than("x", "1")
    monkeypatch.setenv("KEPT", "1")
    with util.env(KEPT=None, ADDED="2"):
        import os

        assert "KEPT" not in os.environ
        assert os.environ["ADDED"] == "2"
    assert os.environ["KEPT"] == "1"
    assert "ADDED" not in os.environ
    reduction = util.get_average_backwards_compatibility_fun(None)
    assert (reduction(None, None), reduction(None, False), reduction(Sum, None)) == (
        Average,
        Sum,
        Sum,
    )
    with pytest.raises(ValueError, match="The op parameter supersedes average"):
        reduction(Sum, True)


def test_rank_and_size_come_from_the_launchers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("PMI_RANK", "1")
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("PMI_SIZE", "3")
    assert env.get_env_rank_and_size() == (1, 3)
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    assert env.get_env_rank_and_size() == (0, 2)
