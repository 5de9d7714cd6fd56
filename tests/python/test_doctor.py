"""The doctor: it reports what there is, names problems, and never falls over what is missing."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

from lightcc import _pci, doctor, harp
from lightcc.harp import __main__ as harp_main
from lightcc.runner.environment import LAUNCHER_VARIABLES

if TYPE_CHECKING:
    from pathlib import Path


def by_name(findings: list[doctor.Finding]) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in findings}


def test_this_machine_has_no_problem() -> None:
    problems = [f for f in doctor.diagnose() if f.status == doctor.PROBLEM]
    assert problems == []


def test_a_missing_engine_is_a_problem_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightcc._core", None)
    engine = by_name(doctor.check_lightcc())["engine"]
    assert engine.status == doctor.PROBLEM
    assert "_core" in engine.detail
    assert "cannot be loaded" in doctor.build_text()
    assert doctor.main([]) == 1


def test_a_missing_package_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", ("no_such_package_here",))
    found = by_name(doctor.check_libraries())
    assert found["no_such_package_here"].status == doctor.MISSING


def test_a_module_of_a_package_with_another_name_has_its_version() -> None:
    # `_pytest` belongs to the package pytest, as TensorFlow may to tensorflow-cpu.
    assert doctor._version_of("_pytest") == doctor._version_of("pytest") is not None
    assert doctor._version_of("no_such_package_here") is None


def test_harps_plugin_is_where_it_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harp_main.main([]) == 0
    path = capsys.readouterr().out.strip()
    assert path == harp.plugin_path()
    assert hasattr(ctypes.CDLL(path), "ncclNetPlugin_v12")
    assert path in by_name(doctor.check_libraries())["HARP plugin"].detail
    monkeypatch.setattr(harp, "_FOLDER", "no-such-folder")
    assert harp_main.main([]) == 1
    assert "built without HARP" in capsys.readouterr().err
    assert by_name(doctor.check_libraries())["HARP plugin"].status == doctor.MISSING


def test_a_memory_file_that_cannot_be_made_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(38, os.strerror(38), name)

    monkeypatch.setattr(os, "memfd_create", refuse)
    memfd = by_name(doctor.check_machine())["memfd"]
    assert memfd.status == doctor.PROBLEM
    assert "Function not implemented" in memfd.detail


def test_every_interface_and_socket_kind_is_listed() -> None:
    found = by_name(doctor.check_network())
    assert "127.0.0.1" in found["NIC lo"].detail
    assert found["abstract Unix sockets"].detail == "works"
    assert found["TCP over loopback"].detail == "works"


def test_variables_are_shown_but_never_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHT_SECRET", "do-not-show")
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "1048576")
    found = doctor.check_environment()
    assert by_name(found)["HOROVOD_FUSION_THRESHOLD"].detail == "1048576"
    assert "do-not-show" not in repr(found)


def test_a_bad_value_is_a_problem_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHT_PEER_TIMEOUT", "soon")
    problem = by_name(doctor.check_environment())["value"]
    assert problem.status == doctor.PROBLEM
    assert "LIGHT_PEER_TIMEOUT" in problem.detail
    assert "soon" in problem.detail


def test_a_misspelt_variable_is_told_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LIGHT_PEER_TIMEOU", "5")
    assert "LIGHT_PEER_TIMEOUT" in by_name(doctor.check_environment())["variable"].detail


def test_what_the_launcher_sets_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in LAUNCHER_VARIABLES:
        monkeypatch.setenv(row.name, "1")
    assert "variable" not in by_name(doctor.check_environment())


def test_json_holds_every_finding(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.main(["--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"lightcc", "machine", "network", "libraries"} <= {entry["section"] for entry in found}


def test_the_report_counts_problems() -> None:
    findings = [
        doctor.Finding("machine", "memfd", doctor.PROBLEM, "no"),
        doctor.Finding("network", "NIC lo", doctor.OK, "127.0.0.1"),
    ]
    text = doctor.report_text(findings)
    assert "  ! memfd " in text
    assert text.endswith("1 problem (!)\n")


def gpus_of_a_child(
    driver: Path, settings: str = "", names: str = "GPU"
) -> list[tuple[str, str, str]]:
    """Returns what the doctor of a process that finds `driver` says of GPUs, or of `names`."""
    code = (
        "from lightcc import doctor\n"
        f"found = [f for f in doctor.check_libraries() if f.name.startswith({names!r})]\n"
        "import json; print(json.dumps([[f.name, f.status, f.detail] for f in found]))"
    )
    variables = {"LD_LIBRARY_PATH": str(driver.parent), "LIGHTCC_FAKE_CUDA": settings}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return [tuple(finding) for finding in json.loads(done.stdout)]


def test_a_file_that_is_no_driver_is_told(tmp_path: Path) -> None:
    driver = tmp_path / "libcuda.so.1"
    driver.write_text("nothing")
    [(name, status, detail)] = gpus_of_a_child(driver)
    assert (name, status) == ("GPU", doctor.MISSING)
    assert detail.startswith("no GPU, because the CUDA driver cannot be opened: ")
    assert str(driver) in detail


@needs_fake_cuda
def test_gpus_are_described_and_tried() -> None:
    found = gpus_of_a_child(FAKE_CUDA, "devices=2,capability=86,bus=254")
    names = [name for name, _, _ in found]
    assert names == ["GPU 0", "GPU 0 NIC", "GPU 1", "GPU 1 NIC", "GPU peers"]
    statuses = {name: status for name, status, _ in found if not name.endswith("NIC")}
    assert set(statuses.values()) == {doctor.OK}
    details = {name: detail for name, _, detail in found}
    before, after = details["GPU 0"].split(", driver")
    assert before == (
        "Simulated GPU, at 0000:fe:00.0, GPU-1fff0000-0000-0000-0000-00000000fe00, "
        "compute capability 8.6 (sm_86), 1024 MiB"
    )
    assert after.endswith(" for CUDA 12.8; lightcc's kernels run")
    assert details["GPU 0 NIC"] == "not known: /sys/bus/pci/devices has no 0000:fe:00.0"
    assert details["GPU peers"] == "a GPU can use memory: 0 of 1; 1 of 0"


@needs_fake_cuda
def test_a_gpu_whose_driver_tells_no_uuid_is_described() -> None:
    (gpu, *_) = gpus_of_a_child(FAKE_CUDA, "without=cuDeviceGetUuid_v2")
    assert gpu[:2] == ("GPU 0", doctor.OK)
    assert "at 0000:01:00.0, UUID not known, compute capability 9.0" in gpu[2]


@needs_fake_cuda
def test_a_slice_of_a_gpu_is_described_as_one() -> None:
    (gpu, _, peers) = gpus_of_a_child(FAKE_CUDA, "mig=1")
    assert gpu[2].startswith(
        "Simulated GPU MIG 1g.5gb, a slice (MIG) of the GPU at 0000:01:00.0, MIG-1fff0000-"
    )
    assert peers == ("GPU peers", doctor.OK, "there is one GPU")


def test_the_nic_near_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nearest(address: str) -> _pci.Nearest:
        assert address == "0000:65:00.0"
        return _pci.Nearest(("eth3", "mlx5_0"), "behind a common PCI bridge", 1)

    monkeypatch.setattr(_pci, "nearest_interfaces", nearest)
    assert doctor._describe_nearest("0000:65:00.0") == (
        doctor.OK,
        "eth3, mlx5_0, behind a common PCI bridge; the GPU is on NUMA node 1",
    )


@needs_fake_cuda
@pytest.mark.parametrize(
    ("settings", "status", "detail"),
    [
        ("", doctor.OK, "2.18.5; carries tensors of GPUs with HOROVOD_GPU_OPERATIONS=NCCL"),
        ("version=2804", doctor.MISSING, "no NCCL, because it is of version 2.8.4; needed is"),
    ],
)
def test_nccl_is_described(
    settings: str, status: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTCC_FAKE_NCCL", settings)
    [found] = gpus_of_a_child(FAKE_CUDA, names="NCCL")
    assert found[:2] == ("NCCL", status)
    assert found[2].startswith(detail)


@needs_fake_cuda
@pytest.mark.parametrize(
    ("settings", "name", "detail"),
    [
        ("version=10020", "GPU", "is for CUDA 10.2; needed is one for CUDA 11.0"),
        ("init=803", "GPU", "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        ("capability=61", "GPU 0", "do not run: its compute capability is 6.1"),
        ("ptx=0", "GPU 0", "do not run: the GPU's driver cannot load the kernels"),
        ("wrong=1", "GPU 0", "do not run: the GPU packed two tensors wrongly"),
    ],
)
def test_a_gpu_of_no_use_is_told_with_the_reason(settings: str, name: str, detail: str) -> None:
    found = gpus_of_a_child(FAKE_CUDA, settings)[0]
    assert found[:2] == (name, doctor.MISSING)
    assert detail in found[2]
