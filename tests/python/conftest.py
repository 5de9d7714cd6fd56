"""Every test starts without a world and without a job's variables, and leaves none behind."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from records import Recorder
from suites import Choice, changed_files

from lightcc._ops import basics
from lightcc.testing import warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator


# A shell that starts pytest in the background has it ignore Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


_SUITES = pytest.StashKey[Choice]()


# Ranks are forked from processes that have imported what takes long; `fresh=True` starts one anew.
# torch imports one part of its compiler with the first optimizer, and another with the first model
# that is compiled; each takes about as long as all the rest.
_NUMPY = ("numpy.random", "numpy.testing", "numpy.typing")
_COMMON = (*_NUMPY, "ml_dtypes", "pytest", "lightcc.testing")
warm_up(*_COMMON)
_COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")
warm_up(*_COMMON, "torch", *_COMPILER, "lightcc.torch", for_users_of="torch")
warm_up(*_COMMON, "warm_cuda_torch", "torch._dynamo", for_users_of="cuda_torch")
# A rank with another Keras than this one starts anew.
warm_up(*_COMMON, "tensorflow", for_users_of="tensorflow")
warm_up(*_COMMON, "tensorflow", for_users_of="keras_frontends")


# TensorFlow has an environment of its own: `make test-tf`.
_DISTRIBUTIONS = {found.name for found in importlib.metadata.distributions()}
collect_ignore: list[str] = []
if {"tensorflow", "tensorflow-cpu"} & _DISTRIBUTIONS:
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
else:
    collect_ignore += ["tensorflow"]
# `make test-new-python` does without torch, which is large.
if "torch" not in _DISTRIBUTIONS:
    collect_ignore += ["torch", "torch_distributed", "test_guides.py"]
    collect_ignore += ["horovod/test_absent.py", "horovod/test_lessons.py"]
# Pods have an image, which takes minutes to build: `make test-pods`.
collect_ignore += [] if "IMAGE_HOME" in os.environ else ["deploy/test_pods.py"]


def pytest_configure(config: pytest.Config) -> None:
    if record := os.environ.get("LIGHTCC_TEST_RECORD"):
        config.pluginmanager.register(Recorder(Path(record)))
    config.stash[_SUITES] = Choice(
        changed_files(config.rootpath), int(os.environ.get("CHECK_SEED", "0"))
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [f"suite {line}" for line in config.stash[_SUITES].lines()]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    suites = config.stash[_SUITES]

    def runs(item: pytest.Item) -> bool:
        file = item.nodeid.partition("::")[0]
        scope = _scope_of(config, item.nodeid)
        return suites.has(file, file if scope == _MACHINE else scope)

    left_out = {item for item in items if not runs(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


#: Files about the machine as a whole: never beside one another, so that nothing is told twice.
_OF_THE_MACHINE = {
    "test_harp_setup.py",
    "test_launchers.py",
    "test_netns.py",
    "test_slurm.py",
    "test_sshd.py",
}


_MACHINE = "machine"  # The scope of these, and of tests of network namespaces.


@functools.cache
def _scope_of_file(file: Path) -> str | None:
    """Returns what the tests of a file share, so that one pytest process has to run them all."""
    text = file.read_text(encoding="utf-8")
    if file.name in _OF_THE_MACHINE or "mark.netns" in text:
        return _MACHINE
    if "from cuda_torch import" in text:
        return "cuda_torch"  # One pytest process compiles its library, and has such a torch warm.
    is_shared = 'scope="module"' in text or "= each_on(" in text
    return str(file) if is_shared else None


def _scope_of(config: pytest.Config, nodeid: str) -> str:
    """Returns what a test shares with others that are run together with it, or its own name."""
    return _scope_of_file(config.rootpath / nodeid.partition("::")[0]) or nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each test to the next pytest process that is free, but what is shared to one."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types.
        def _split_scope(self, nodeid: str) -> str:
            return _scope_of(config, nodeid)

    return Scheduling(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.geteuid() != 0 and item.get_closest_marker("netns") is not None:
        pytest.skip("network namespaces and mounts need root")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("LIGHT_", "HOROVOD_", "HARP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HARP_PROFILE", "none")  # Not what harp-setup has written on this machine.
    before = dict(os.environ)
    yield
    # One variable that stays could have all later ranks start from nothing.
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    basics.shutdown()


@pytest.fixture
def world() -> None:
    """A world of this process alone."""
    import lightcc as hvd

    hvd.init()
