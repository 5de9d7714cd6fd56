"""harp-setup does, checks and undoes: whole runs, broken runs, and runs that were killed."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from fake_machine import BOOT, HUGE, FakeMachine, gpu_server

from lightcc.harp.setup import cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PROFILE = "/etc/harp/profile.conf"
STATE = "/var/lib/harp/setup.json"
DPDK = ("--datapath", "dpdk", "--set", f"HARP_DPDK_LIBRARY={__file__}")
RMEM = "/proc/sys/net/core/rmem_max"


def run(machine: FakeMachine, *flags: str) -> int:
    return cli.main((*flags, "--yes"), machine)


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, typed: bytes) -> Iterator[None]:
    """Makes standard input a terminal at which somebody has typed."""
    keyboard, screen = pty.openpty()
    try:
        os.write(keyboard, typed)
        with os.fdopen(screen, encoding="ascii") as stdin, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            yield
    finally:
        os.close(keyboard)


def no_folders(everything: dict[str, str]) -> dict[str, str]:
    """Without the folders that a machine may have from the beginning."""
    kept = ("etc", "var", "var/lib")
    return {name: text for name, text in everything.items() if name not in kept}


@pytest.fixture
def vm(tmp_path: Path) -> FakeMachine:
    machine = FakeMachine(tmp_path)
    machine.nic("eth0", "pci0000:00/0000:00:03.0", address="192.0.2.5/24", is_default=True)
    return machine


@pytest.fixture
def server(tmp_path: Path) -> FakeMachine:
    return gpu_server(tmp_path)


def test_udp_is_set_up_checked_and_undone(
    vm: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    before = vm.everything()
    assert run(vm) == 0
    assert capsys.readouterr().out.endswith("\nSet up HARP successfully\n")
    assert vm.read(RMEM) == "8388608"
    profile = vm.path(PROFILE)
    assert "HARP_IFNAME==eth0\n" in profile.read_text()
    assert profile.stat().st_mode & 0o777 == 0o644
    assert run(vm, "--check") == 0
    out = capsys.readouterr().out
    assert "ok  eth0 has 192.0.2.5/24, datapath udp\n" in out
    assert out.endswith("\n0 problems\n")
    assert run(vm, "--undo") == 0
    assert no_folders(vm.everything()) == no_folders(before)
    assert run(vm, "--undo") == 0
    assert "Nothing to undo" in capsys.readouterr().out


def test_dpdk_is_set_up_checked_and_undone(
    server: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, *DPDK) == 0
    out = capsys.readouterr().out
    assert "dpdk-devbind.py --bind=vfio-pci 0000:15:00.0\n" in out
    assert out.endswith("\nSet up HARP successfully\n")
    assert server.read(HUGE) == "25600"
    assert run(server, "--check") == 1
    out = capsys.readouterr().out
    assert "!!  0000:15:00.0@10.0.8.10/24@10.0.8.1 belongs to virtio-pci: hand it to DPDK" in out
    for device in server.path("/sys/bus/pci/devices").iterdir():
        server.bind(device.name, "vfio-pci")
    assert run(server, "--check") == 0
    assert "ok  0000:15:00.0@10.0.8.10/24@10.0.8.1 belongs to vfio-pci\n" in capsys.readouterr().out
    assert run(server, "--undo") == 0
    assert server.read(HUGE) == "0"
    assert not server.path(PROFILE).parent.exists()


def test_queues_of_af_xdp_are_set_and_given_back(vm: FakeMachine) -> None:
    before = vm.everything()
    assert run(vm, "--datapath", "af_xdp", "--engines", "6") == 0
    assert vm.queues["eth0"].combined == 6
    assert run(vm, "--check") == 0
    vm.set_channels("eth0", vm.queues["eth0"].with_count(3))
    assert run(vm, "--check") == 1
    vm.set_channels("eth0", vm.queues["eth0"].with_count(6))
    assert run(vm, "--undo") == 0
    assert no_folders(vm.everything()) == no_folders(before)


@pytest.mark.parametrize("flags", [(), DPDK, ("--undo",), ("--datapath", "af_xdp")])
def test_a_dry_run_changes_nothing(server: FakeMachine, flags: tuple[str, ...]) -> None:
    before = server.everything()
    assert run(server, "--dry-run", *flags) == 0
    assert server.everything() == before


def test_check_finds_what_is_missing(vm: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    def problem(text: str) -> str:
        vm.file(PROFILE, text)
        assert run(vm, "--check") == 1
        return capsys.readouterr().out

    assert run(vm, "--check") == 1
    assert f"!!  {PROFILE} is not there: run harp-setup\n" in capsys.readouterr().out
    assert "HARP_DATAPATH=rdma: expected one of auto, udp, af_xdp, dpdk" in problem(
        "HARP_DATAPATH=rdma"
    )
    assert "'eth9': there is no such interface" in problem("HARP_IFNAME==eth0,eth9")
    assert "'': there is no such interface" in problem("HARP_IFNAME==")
    assert "eth0 cannot have af_xdp: it has at most 8 queue(s), not 12" in problem(
        "HARP_IFNAME==eth0\nHARP_DATAPATH=af_xdp\nHARP_ENGINES=12"
    )
    out = problem(
        "HARP_DATAPATH=dpdk\nHARP_DPDK_LIBRARY=/gone.so\n"
        "HARP_DPDK=0000:00:03.0@192.0.2.5/24;0000:00:09.0@192.0.2.6/24"
    )
    assert "!!  /gone.so is not there" in out
    assert "!!  0000:00:03.0@192.0.2.5/24 belongs to virtio-pci: hand it to DPDK" in out
    assert "!!  0000:00:09.0: there is no such PCI device" in out
    assert "0.0 GiB of huge pages: HARP needs 256 MiB free" in out
    vm.file(PROFILE, "HARP_IFNAME=eth")
    assert run(vm, "--check") == 0


def test_what_was_changed_since_is_found_and_left_alone(
    vm: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(vm) == 0
    vm.file(RMEM, "16777216")
    vm.file(PROFILE, "HARP_IFNAME==eth0\nHARP_PATHS=4")
    capsys.readouterr()
    assert run(vm, "--check") == 1
    out = capsys.readouterr().out
    assert f"!!  {RMEM} is 16777216, not 8388608" in out
    assert f"!!  {PROFILE} was edited since" in out
    assert run(vm, "--undo") == 0
    out = capsys.readouterr().out
    assert f"Note: {RMEM} is 16777216, not 8388608: left alone" in out
    assert f"Note: {PROFILE} was edited since: left alone" in out
    assert vm.read(RMEM) == "16777216"
    assert "HARP_PATHS=4" in vm.path(PROFILE).read_text()


def test_a_profile_that_was_there_comes_back_to_the_byte(vm: FakeMachine) -> None:
    mine = b"# \xff M\xc3\xbc\r\nHARP_PATHS=4\r\n"
    vm.file(PROFILE, "")
    vm.path(PROFILE).write_bytes(mine)
    assert run(vm) == 0
    assert b"HARP_PATHS" not in vm.path(PROFILE).read_bytes()
    assert run(vm, "--undo") == 0
    assert vm.path(PROFILE).read_bytes() == mine


# -- Asking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [b"y\n", b"Yes\n"])
def test_it_shows_its_plan_and_changes_the_machine_if_the_answer_is_yes(
    vm: FakeMachine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: bytes,
) -> None:
    with terminal(monkeypatch, answer):
        assert cli.main((), vm) == 0
    before, _, after = capsys.readouterr().out.partition("Change this machine? [y/N] ")
    assert f"It is going to:\n  set {RMEM} to 8388608\n" in before
    assert "HARP_IFNAME==eth0\n" in before
    assert after.endswith("Set up HARP successfully\n")
    assert vm.read(RMEM) == "8388608"
    assert cli.main((), vm) == 0, "nothing is left to do, so nobody is asked"


@pytest.mark.parametrize("answer", [b"\n", b"n\n", b"yess\n", b"\x04"])
def test_any_other_answer_changes_nothing(
    vm: FakeMachine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: bytes,
) -> None:
    before = no_folders(vm.everything())
    with terminal(monkeypatch, answer):
        assert cli.main((), vm) == 1
    assert capsys.readouterr().err == "harp-setup: nothing was changed: the answer was not y\n"
    assert no_folders(vm.everything()) == before


def test_without_a_terminal_it_changes_nothing_unless_it_is_told_to(
    vm: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = no_folders(vm.everything())
    with open(os.devnull, encoding="ascii") as nothing, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", nothing)
        assert cli.main((), vm) == 1
    out, err = capsys.readouterr()
    assert "It is going to:" in out
    assert err.startswith("harp-setup: nothing was changed: there is no terminal")
    assert "--yes" in err
    assert no_folders(vm.everything()) == before


def test_undo_says_what_it_does(server: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(server, *DPDK) == 0
    capsys.readouterr()
    assert run(server, "--undo", "--dry-run") == 0
    planned = capsys.readouterr().out
    assert run(server, "--undo") == 0
    out = capsys.readouterr().out
    for line in ("remove /etc/harp/profile.conf", f"set {HUGE} to 0 again"):
        assert f"  {line}\n" in planned
        assert f"  {line}\n" in out
    assert out.index("remove /etc") < out.index("set /sys")
    assert out.endswith("HARP's set-up is undone.\n")


def test_who_may_not_change_the_machine_is_told_the_line_that_works(
    vm: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: str, text: str) -> None:  # noqa: ARG001
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(vm, "replace", refuse)
    assert run(vm) == 1
    line = f"sudo {sys.executable} -m lightcc.harp.setup"
    assert f"Permission denied (this needs root: {line})" in capsys.readouterr().err


# -- Failures -------------------------------------------------------------------------------------


def test_pages_that_are_granted_in_part_are_given_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = gpu_server(tmp_path, grants=20000)
    before = machine.everything()
    assert run(machine, *DPDK) == 1
    error = capsys.readouterr().err
    assert f"{HUGE} is 20000, not 25600; what was begun is undone\n" in error
    assert no_folders(machine.everything()) == no_folders(before)
    assert run(machine, *DPDK, "--huge-pages", "39") == 0


def test_a_file_that_cannot_be_written_is_named(
    vm: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    vm.file("/etc/harp", "a file, not a folder")
    assert run(vm) == 1
    error = capsys.readouterr().err
    assert "/etc/harp" in error
    assert "what was begun is undone" in error
    assert vm.read(RMEM) == "212992"


def test_what_cannot_be_undone_stays_in_the_state(
    vm: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: str, text: str) -> None:  # noqa: ARG001
        raise OSError(16, "Device or resource busy", path)

    assert run(vm) == 0
    with monkeypatch.context() as patch:
        patch.setattr(vm, "write", refuse)
        assert run(vm, "--undo") == 1
    out, err = capsys.readouterr()
    assert f"not undone: set {RMEM} to 8388608: {RMEM}: Device or resource busy" in out
    assert "2 change(s) are not undone: --undo tries again" in err
    assert len(json.loads(vm.read(STATE))["changes"]) == 2
    assert run(vm, "--undo") == 0
    assert vm.read(RMEM) == "212992"
    assert not vm.path(STATE).exists()


# -- Earlier runs ---------------------------------------------------------------------------------


def test_a_second_run_has_nothing_to_do(
    vm: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(vm) == 0
    before = vm.everything()
    assert run(vm) == 0
    out = capsys.readouterr().out
    assert "Nothing to do" in out
    assert out.endswith("\nSet up HARP successfully\n")
    assert run(vm, "--engines", "2") == 1
    assert "set up already, with other flags: harp-setup --undo first" in capsys.readouterr().err
    assert vm.everything() == before
    assert run(vm, "--engines", "2", "--dry-run") == 0
    assert "would have to be undone first" in capsys.readouterr().out


def test_after_a_boot_it_is_set_up_again(
    vm: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    before = no_folders(vm.everything())
    assert run(vm) == 0
    vm.file(BOOT, "second-boot")
    vm.file(RMEM, "212992")
    assert run(vm, "--check") == 1
    assert "the machine was started since: run harp-setup again" in capsys.readouterr().out
    assert run(vm, "--engines", "2") == 0
    assert "HARP_ENGINES=2" in vm.read(PROFILE)
    assert run(vm, "--undo") == 0
    after = no_folders(vm.everything())
    after[BOOT.lstrip("/")] = before[BOOT.lstrip("/")]
    # The fake boot has left this one as the first run had set it.
    assert after.pop("proc/sys/net/core/wmem_max") == "8388608"
    before.pop("proc/sys/net/core/wmem_max")
    assert after == before


@pytest.mark.parametrize("point", range(1, 8))
def test_a_run_that_was_killed_is_undone(
    vm: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], point: int
) -> None:
    """The kill comes before the `point`th thing that is written."""
    before = vm.everything()
    writes = 0

    class Killed(BaseException):
        """Nobody catches it, as nobody catches SIGKILL."""

    def killing(write: Callable[[str, str], None]) -> Callable[[str, str], None]:
        def killed_at(path: str, text: str) -> None:
            nonlocal writes
            writes += 1
            if writes == point:
                raise Killed
            write(path, text)

        return killed_at

    with monkeypatch.context() as patch:
        patch.setattr(vm, "write", killing(vm.write))
        patch.setattr(vm, "replace", killing(vm.replace))
        with pytest.raises(Killed):
            run(vm)
    capsys.readouterr()
    if point > 1:
        assert run(vm) == 1
        assert "an earlier run did not finish: harp-setup --undo" in capsys.readouterr().err
        assert run(vm, "--check") == 1
    assert run(vm, "--undo") == 0
    assert no_folders(vm.everything()) == no_folders(before)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 1}',
        '{"version": 2, "request": {}, "boot": "x", "changes": []}',
        '{"version": 2, "request": {}, "boot": "x", "is_finished": true,'
        ' "changes": [{"kind": "setting", "path": "/etc/passwd"}]}',
    ],
)
def test_a_state_that_is_none_is_refused(
    vm: FakeMachine, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    vm.file(STATE, text)
    for flags in ((), ("--undo",), ("--check",)):
        assert run(vm, *flags) == 1
        assert f"{STATE} is no state of this harp-setup" in capsys.readouterr().err
    assert vm.path(STATE).exists()


# -- Flags ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ("--frobnicate",),
        ("--datapath", "rdma"),
        ("--engines", "0"),
        ("--engines", "65"),
        ("--huge-pages", "-1"),
        ("--interfaces", "eth0,,eth1"),
        ("--interfaces", "eth0,eth0"),
        ("--interfaces", "../eth0"),
        ("--set", "MODE=thread"),
        ("--check", "--undo"),
        ("--che",),
        ("now",),
    ],
)
def test_wrong_flags_are_told(
    vm: FakeMachine, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    before = vm.everything()
    with pytest.raises(SystemExit) as caught:
        run(vm, *flags)
    assert caught.value.code == 2
    assert "harp-setup: error: " in capsys.readouterr().err
    assert vm.everything() == before


def test_it_is_a_program_and_all_files_are_below_its_root(tmp_path: Path) -> None:
    FakeMachine(tmp_path)
    command = [sys.executable, "-m", "lightcc.harp.setup", "--root", str(tmp_path), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "0 GPU(s), 0 NIC(s), kernel 6.8\n" in done.stdout
    assert done.stdout.endswith("\n1 problem\n")
