"""The command: flags, what is printed, and the exit code.

0: done, or all is well. 1: it cannot be done or was not wanted, and nothing is changed; or --check
found something. 2: a wrong flag.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc._flags import Parser
from lightcc.harp.setup.check import check
from lightcc.harp.setup.datapaths import DATAPATHS
from lightcc.harp.setup.machine import look
from lightcc.harp.setup.plan import Request, make_plan
from lightcc.harp.setup.state import State, StateFile, apply, boot_id, reason_of, to_undo, undo
from lightcc.harp.setup.system import SetupError, System

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc.harp.setup.machine import Machine
    from lightcc.harp.setup.plan import Plan

SUCCESS = "Set up HARP successfully"
_STATE = "/var/lib/harp/setup.json"
_MAX_ENGINES = 64


def main(argv: Sequence[str] | None = None, system: System | None = None) -> int:
    """Does what the flags ask for and returns the exit code.

    Args:
        argv: Without the program's name; what the process was started with by default.
        system: The machine, in place of the one below --root.
    """
    args = _parser().parse_args(argv)
    system = system or System(args.root)
    file = StateFile(system, args.state)
    try:
        if args.check:
            return _check(system, file, args)
        if args.undo:
            return _undo(system, file, dry_run=args.dry_run)
        return _set_up(system, file, args)
    except (SetupError, OSError, KeyboardInterrupt) as error:
        sys.stderr.write(f"harp-setup: {reason_of(error)}\n")
        return 1


def _set_up(system: System, file: StateFile, args: argparse.Namespace) -> int:
    request = _request(args)
    earlier = file.load()
    if args.dry_run:
        if earlier is not None and earlier.boot == boot_id(system):
            _say("This machine is set up already, and would have to be undone first.")
        _show(_plan(system, request), "It would:")
        _say("Nothing was changed (--dry-run).")
        return 0
    if earlier is not None and _is_in_place(earlier, request, system):
        _say(f"Nothing to do: {file.path} says so, and the machine agrees.", SUCCESS)
        return 0
    plan = _plan(system, request)
    if not args.yes:
        _show(plan, "It is going to:")
        _ask()
    if earlier is not None:  # Before this boot: only its files are left.
        _say(*undo(system, file, earlier))
    state = State(asdict(request), boot_id(system))
    apply(system, file, state, list(plan.changes), lambda text: _say(f"  {text}"))
    _say(SUCCESS)
    return 0


def _show(plan: Plan, headline: str) -> None:
    _say(headline, *(f"  {change}" for change in plan.changes), "with this profile:")
    _say(*(f"  {line}" for line in plan.profile.splitlines()))


def _ask() -> None:
    """Returns if whoever sits at the terminal wants the machine to be changed.

    Raises:
        SetupError: They do not, or there is no terminal to ask at.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        msg = (
            "nothing was changed: there is no terminal at which to ask whether to change this"
            " machine; --yes changes it without asking, --dry-run only shows the plan"
        )
        raise SetupError(msg)
    sys.stdout.write("Change this machine? [y/N] ")
    sys.stdout.flush()
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer = ""
    if not answer.endswith("\n"):
        _say("")  # The terminal's line is still open.
    if answer.strip().lower() not in ("y", "yes"):
        msg = "nothing was changed: the answer was not y"
        raise SetupError(msg)


def _plan(system: System, request: Request) -> Plan:
    machine = look(system)
    _report(machine)
    plan = make_plan(system, machine, request)
    _say(f"Datapath {request.datapath} for {', '.join(nic.name for nic in plan.nics)}.")
    _say(*(f"  GPU {gpu.pci} goes with {nic.name}" for gpu, nic in plan.pairs))
    _say(*(f"  Note: {note}" for note in plan.notes))
    return plan


def _is_in_place(earlier: State, request: Request, system: System) -> bool:
    """Returns whether there is nothing left to do.

    Raises:
        SetupError: An earlier run of this boot has to be undone first.
    """
    if not earlier.is_finished:
        msg = "an earlier run did not finish: harp-setup --undo takes back what it changed"
        raise SetupError(msg)
    if earlier.boot != boot_id(system):
        return False
    differences = [text for change in earlier.changes if (text := change.difference(system))]
    if earlier.request == asdict(request) and not differences:
        return True
    why = "; ".join(differences) or "with other flags"
    msg = f"this machine is set up already, {why}: harp-setup --undo first"
    raise SetupError(msg)


def _undo(system: System, file: StateFile, *, dry_run: bool) -> int:
    if dry_run:
        state = file.load()
        changes = to_undo(system, state) if state else ()
        _say("It would:", *(f"  {change.undoing()}" for change in changes))
        _say("Nothing was changed (--dry-run).")
        return 0
    state = file.load()
    if state is None:
        _say(f"Nothing to undo: {file.path} is not there.")
        return 0
    notes = undo(system, file, state, lambda text: _say(f"  {text}"))
    _say(*(f"  Note: {note}" for note in notes))
    if state.changes:
        msg = f"{len(state.changes)} change(s) are not undone: --undo tries again"
        raise SetupError(msg)
    _say("HARP's set-up is undone.")
    return 0


def _check(system: System, file: StateFile, args: argparse.Namespace) -> int:
    machine = look(system)
    _report(machine)
    findings = check(system, machine, args.profile, file.load())
    _say(*(f"{'  ok ' if found.is_good else '  !! '} {found.text}" for found in findings))
    problems = sum(not found.is_good for found in findings)
    _say(f"{problems} problem{'' if problems == 1 else 's'}")
    return 1 if problems else 0


def _report(machine: Machine) -> None:
    count = f"{len(machine.gpus)} GPU(s)", f"{len(machine.nics)} NIC(s)"
    _say(", ".join(count) + f", kernel {machine.kernel[0]}.{machine.kernel[1]}")
    _say(*(f"  GPU {gpu.pci}: {gpu.device}" for gpu in machine.gpus))
    _say(*(f"  {nic}" for nic in machine.nics))


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _request(args: argparse.Namespace) -> Request:
    return Request(
        datapath=args.datapath,
        interfaces=args.interfaces,
        engines=args.engines,
        huge_pages_gib=args.huge_pages,
        settings=dict(args.set),
        profile=args.profile,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="harp-setup",
        description="Prepares this machine for HARP and writes the HARP profile. It shows what it"
        " is going to change, and asks.",
        epilog="Changes need root. sudo does not find the program of a virtual environment by its"
        ' name; this finds it: sudo "$(command -v harp-setup)"',
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare machine and profile")
    what.add_argument("--undo", action="store_true", help="take back what an earlier run changed")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument("--yes", action="store_true", help="change the machine without asking")
    add = parser.add_argument
    add("--datapath", choices=DATAPATHS, default="udp", help="how packets travel (default: udp)")
    add("--interfaces", type=_names, default=[], metavar="A,B", help="NICs to be used")
    add("--engines", type=_number(1, _MAX_ENGINES), default=1, help="stacks for each NIC")
    add(
        "--huge-pages",
        type=_number(0, 1 << 20),
        metavar="GIB",
        help="memory in huge pages (default: 5 for each GPU and 10, for dpdk)",
    )
    add(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="HARP_NAME=VALUE",
        help="a line of the profile, such as HARP_MODE=thread; may be repeated",
    )
    add("--profile", type=_absolute, default="/etc/harp/profile.conf", metavar="FILE")
    add("--state", type=_absolute, default=_STATE, metavar="FILE", help="changes to be undone")
    add("--root", type=_absolute, default="/", metavar="DIR", help="where / is mounted")
    return parser


def _number(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not minimum <= int(text) <= maximum:
            msg = f"'{text}': expected a number from {minimum} to {maximum}"
            raise argparse.ArgumentTypeError(msg)
        return int(text)

    return parse


def _names(text: str) -> list[str]:
    names = text.split(",")
    if not all(names) or len(set(names)) < len(names) or any("/" in name for name in names):
        msg = f"'{text}': expected names of interfaces with commas between"
        raise argparse.ArgumentTypeError(msg)
    return names


def _setting(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"(HARP_[A-Z0-9_]+)=(.*)", text)
    if match is None:
        msg = f"'{text}': expected HARP_NAME=VALUE"
        raise argparse.ArgumentTypeError(msg)
    return match[1], match[2]


def _absolute(text: str) -> str:
    return str(Path(text).absolute())
