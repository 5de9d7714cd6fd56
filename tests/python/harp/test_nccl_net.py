"""LIGHT_NET=harp points the NCCL that lightcc opens to HARP, and never overrides the user."""

from __future__ import annotations

import ctypes
import logging
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gpu_arrays import FAKE_CUDA, GpuArray, needs_fake_cuda, on_host, use_gpu

import lightcc as hvd
from lightcc import _core, harp
from lightcc._ops import nccl_net
from lightcc.harp import plugin_path
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from pathlib import Path

ASKED = {"LIGHT_NET": "harp", "HOROVOD_GPU_OPERATIONS": "NCCL"}
VERSION = 22105


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    def find_nccl(_: str) -> int:
        if request.param == 0:
            msg = "no NCCL, because it cannot be opened"
            raise NotImplementedError(msg)
        return int(request.param)

    monkeypatch.setattr(_core, "find_nccl", find_nccl)


def set_for(given: dict[str, str]) -> dict[str, str]:
    """What is set beside what was given."""
    environment = dict(given)
    nccl_net.open_nccl(environment)
    assert {name: environment[name] for name in given} == given
    return {name: environment[name] for name in environment if name not in given}


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("version", [VERSION], indirect=True)
def test_an_nccl_is_pointed_to_harp_where_both_are_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"NCCL_NET_PLUGIN": "harp", "NCCL_NET": "HARP"}
    with caplog.at_level(logging.INFO, logger="lightcc"):
        assert set_for(ASKED) == settings
    assert [record.getMessage() for record in caplog.records] == [
        "LIGHT_NET=harp: NCCL 2.21.5 uses HARP between hosts: NCCL_NET_PLUGIN=harp NCCL_NET=HARP"
    ]
    # As NCCL would open it: this process has it by now, and no folder is searched.
    by_name, by_path = ctypes.CDLL("libnccl-net-harp.so"), ctypes.CDLL(plugin_path())
    assert by_name._handle == by_path._handle
    assert set_for({"LIGHT_NET": "harp", "LIGHT_GPU_OPERATIONS": "nccl"}) == settings
    assert set_for({"LIGHT_NET": "harp"}) == {}
    monkeypatch.setattr(_core, "find_gpus", dict)  # Else there is none here.
    assert set_for({"LIGHT_NET": "harp"}) == settings
    assert set_for({"LIGHT_NET": "tcp", "HOROVOD_GPU_OPERATIONS": "NCCL"}) == {}
    assert set_for({**ASKED, "LIGHT_GPU_OPERATIONS": "host"}) == {}
    caplog.clear()
    assert set_for({**ASKED, **settings}) == {}
    assert not caplog.records


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("version", [VERSION], indirect=True)
@pytest.mark.parametrize("chosen", [{"NCCL_NET": "Socket"}, {"NCCL_NET_PLUGIN": "ofi"}])
def test_what_the_user_has_set_stays_alone(
    chosen: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="lightcc"):
        assert set_for({**ASKED, **chosen}) == {}
    [text] = [record.getMessage() for record in caplog.records]
    assert text.endswith(f"uses what {next(iter(chosen))} says")


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("version", [VERSION], indirect=True)
def test_a_plugin_that_cannot_be_loaded_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "libnccl-net-harp.so"
    monkeypatch.setattr(harp, "plugin_path", lambda: str(broken))
    broken.touch()
    assert set_for(ASKED) == {}
    [text] = [record.getMessage() for record in caplog.records]
    assert "does not use HARP: " in text
    assert f"{broken}: file too short" in text


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("version", [0], indirect=True)
def test_without_an_nccl_nothing_is_set() -> None:
    assert set_for(ASKED) == {}


def network_of_nccl() -> tuple[str, str]:
    use_gpu()
    hvd.init()
    x = np.ones(100, np.float32)
    np.testing.assert_array_equal(on_host(hvd.allreduce(GpuArray(x), op=hvd.Sum)), 2 * x)
    fake = ctypes.CDLL("libnccl.so.2")
    fake.lightcc_fake_nccl_saw.restype = ctypes.c_char_p
    names = (b"NCCL_NET_PLUGIN", b"NCCL_NET")
    plugin, net = (fake.lightcc_fake_nccl_saw(name).decode() for name in names)
    return plugin, net


@pytest.mark.multiproc
@needs_fake_cuda
def test_nccl_sees_it_when_its_first_communicator_is_made() -> None:
    settings = [
        {
            **ASKED,
            "LIGHT_NCCL_LIBRARY": str(FAKE_CUDA.parent / "libnccl.so.2"),
            "LIGHTCC_FAKE_CUDA": f"bus={rank + 1}",
            "LIGHTCC_FAKE_NCCL": f"version={VERSION}",
        }
        for rank in range(2)
    ]
    assert "NCCL_NET" not in os.environ
    assert spawn_ranks(network_of_nccl, 2, env=settings) == 2 * [("harp", "HARP")]
