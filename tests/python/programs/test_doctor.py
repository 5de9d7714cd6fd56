"""The doctor: it reports what there is, names problems, and never falls over what is missing."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from gpu_arrays import FAKE_CUDA, needs_fake_cuda

import lightcc
from lightcc import _pci, doctor, harp
from lightcc.bench import cli as bench
from lightcc.harp import __main__ as harp_main
from lightcc.plan import __main__ as plan
from lightcc.runner.environment import LAUNCHER_VARIABLES
from lightcc.timeline import __main__ as timeline

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def by_name(findings: list[doctor.Finding]) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in findings}


def test_this_machine_has_no_problem_and_json_holds_every_finding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert doctor.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"lightcc", "machine", "network", "libraries"} <= {entry["section"] for entry in found}
    assert [entry for entry in found if entry["status"] == doctor.PROBLEM] == []


def test_every_program_prints_lightccs_version(capsys: pytest.CaptureFixture[str]) -> None:
    entries = importlib.metadata.distribution("lightcc").entry_points
    programs = [entry.load() for entry in entries if entry.group == "console_scripts"]
    for main in (*programs, bench.main, doctor.main, harp_main.main, plan.main, timeline.main):
        with contextlib.suppress(SystemExit):
            main(["--version"])
        assert capsys.readouterr().out == f"{lightcc.__version__}\n", main.__module__


def test_a_missing_engine_is_a_problem_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightcc._core", None)
    engine = by_name(doctor.check_lightcc())["engine"]
    assert engine.status == doctor.PROBLEM
    assert "_core" in engine.detail
    assert "cannot be loaded" in doctor.build_text()


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


def test_a_misspelt_variable_is_told_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHT_PEER_TIMEOU", "5")
    assert "LIGHT_PEER_TIMEOUT" in by_name(doctor.check_environment())["variable"].detail


def test_what_the_launcher_sets_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in LAUNCHER_VARIABLES:
        monkeypatch.setenv(row.name, "1")
    assert "variable" not in by_name(doctor.check_environment())


def test_the_report_counts_problems() -> None:
    findings = [
        doctor.Finding("machine", "memfd", doctor.PROBLEM, "no"),
        doctor.Finding("network", "NIC lo", doctor.OK, "127.0.0.1"),
    ]
    text = doctor.report_text(findings)
    assert "-: not there" not in text
    findings.append(doctor.Finding("libraries", "cupy", doctor.MISSING, "not installed"))
    text = doctor.report_text(findings)
    assert "\n-: not there; only some programs need it\n" in text
    assert "  ! memfd " in text
    assert text.endswith("1 problem (!)\n")


#: Each is tried by a child of its own, as a driver and NCCL are opened once in a process.
PROBE = """
import json, os, sys
from lightcc import doctor
for variables in json.loads(sys.argv[1]):
    pid = os.fork()
    if pid == 0:
        os.environ.update(variables)
        print(json.dumps([[f.name, f.status, f.detail] for f in doctor._check_gpus()]))
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


def found_by_children(driver: Path, *variables: dict[str, str]) -> list[list[list[str]]]:
    """Returns name, status and detail of what children find that have `driver` and variables."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(variables)],
        env=os.environ | {"LD_LIBRARY_PATH": str(driver.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def gpus(found: list[list[str]]) -> list[list[str]]:
    return [finding for finding in found if finding[0].startswith("GPU")]


def test_a_file_that_is_no_driver_is_told(tmp_path: Path) -> None:
    driver = tmp_path / "libcuda.so.1"
    driver.write_text("nothing")
    [[name, status, detail]] = gpus(found_by_children(driver, {})[0])
    assert (name, status) == ("GPU", doctor.MISSING)
    assert detail.startswith("no GPU, because the CUDA driver cannot be opened: ")
    assert str(driver) in detail


#: What makes a GPU useless, as the fake driver is told it, and what is said of it.
USELESS = {
    "version=10020": ("GPU", "is for CUDA 10.2; needed is one for CUDA 11.2"),
    "init=803": ("GPU", "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    "pools=0": ("GPU 0", "do not run: the GPU has no memory pool"),
    "capability=61": ("GPU 0", "do not run: its compute capability is 6.1"),
    "ptx=0": ("GPU 0", "do not run: the GPU's driver cannot load the kernels"),
    "wrong=1": ("GPU 0", "do not run: the GPU packed two tensors wrongly"),
}


@needs_fake_cuda
def test_gpus_and_nccl_are_described_and_tried() -> None:
    two, unnamed, part, other, *useless = found_by_children(
        FAKE_CUDA,
        {"LIGHTCC_FAKE_CUDA": "devices=2,capability=86,bus=254"},
        {"LIGHTCC_FAKE_CUDA": "without=cuDeviceGetUuid_v2"},
        {"LIGHTCC_FAKE_CUDA": "mig=1"},
        {"LIGHTCC_FAKE_NCCL": "version=2804"},
        *({"LIGHTCC_FAKE_CUDA": settings} for settings in USELESS),
    )
    names = [name for name, _, _ in gpus(two)]
    assert names == ["GPU 0", "GPU 0 NIC", "GPU 1", "GPU 1 NIC", "GPU peers"]
    statuses = {name: status for name, status, _ in gpus(two) if not name.endswith("NIC")}
    assert set(statuses.values()) == {doctor.OK}
    details = {name: detail for name, _, detail in two}
    before, after = details["GPU 0"].split(", driver")
    assert before == (
        "Simulated GPU, at 0000:fe:00.0, GPU-1fff0000-0000-0000-0000-00000000fe00, "
        "compute capability 8.6 (sm_86), 1024 MiB"
    )
    assert after.endswith(" for CUDA 12.8; lightcc's kernels run")
    assert details["GPU 0 NIC"] == "not known: /sys/bus/pci/devices has no 0000:fe:00.0"
    assert details["GPU peers"] == "a GPU can use memory: 0 of 1; 1 of 0"
    assert details["NCCL"].startswith("2.28.9; carries tensors of GPUs where each rank")

    [name, status, detail] = gpus(unnamed)[0]
    assert (name, status) == ("GPU 0", doctor.OK)
    assert "at 0000:01:00.0, UUID not known, compute capability 9.0" in detail

    first, _, peers = gpus(part)
    assert first[2].startswith(
        "Simulated GPU MIG 1g.5gb, a slice (MIG) of the GPU at 0000:01:00.0, MIG-1fff0000-"
    )
    assert peers == ["GPU peers", doctor.OK, "there is one GPU"]

    [nccl] = [finding for finding in other if finding[0] == "NCCL"]
    assert nccl[1] == doctor.MISSING
    assert nccl[2].startswith("no NCCL, because it is of version 2.8.4; needed is")

    for found, (named, text) in zip(useless, USELESS.values(), strict=True):
        assert gpus(found)[0][:2] == [named, doctor.MISSING]
        assert text in gpus(found)[0][2]


def test_the_nic_near_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nearest(address: str) -> _pci.Nearest:
        assert address == "0000:65:00.0"
        return _pci.Nearest(("eth3", "mlx5_0"), "behind a common PCI bridge", 1)

    monkeypatch.setattr(_pci, "nearest_interfaces", nearest)
    assert doctor._describe_nearest("0000:65:00.0") == (
        doctor.OK,
        "eth3, mlx5_0, behind a common PCI bridge; the GPU is on NUMA node 1",
    )
