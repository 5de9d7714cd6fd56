"""The flags of an elastic job: horovodrun's, and what they mean together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcc._discovery import variables
from lightcc.runner.driver import Settings
from lightcc.runner.elastic_options import ElasticOptions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from lightcc.runner.hosts import Host

DEFAULT_ELASTIC_TIMEOUT_S = 600.0
_MAX_COOLDOWN_S = 3600
_SLOW_FACTORS = (2, 1000)  # The engine finds no rank that is less slow.
# An agent is not given up sooner than the kernel gives up a cut link.
_MIN_AGENT_TIMEOUT_S = 10.0
# A process must answer this fast although it computes. Else it is left out, but not ended.
_MAX_ROLL_CALL_S = 10.0


def add_flags(parser: argparse.ArgumentParser, ranks: Callable[[str], float]) -> None:
    """Makes `parser` take the flags; `ranks` parses a number of ranks."""
    add = parser.add_argument_group(
        "elastic jobs (with --min-np or a discovery script)"
    ).add_argument
    add(*("--min-np", "--min-num-proc"), dest="min_num_proc", type=ranks, metavar="N")
    add(*("--max-np", "--max-num-proc"), dest="max_num_proc", type=ranks, metavar="N")
    add(
        *("--slots-per-host", "--slots"),
        dest="slots",
        type=ranks,
        metavar="N",
        help="slots of a host that the script prints without a number",
    )
    add(
        "--host-discovery-script",
        metavar="COMMAND",
        help="prints lines of 'host:slots'; run every second",
    )
    add("--elastic-timeout", type=float, metavar="S", help="time to wait for slots or ranks (600)")
    add(
        "--stuck-timeout",
        type=float,
        metavar="S",
        help="time to wait for a rank that answers, but does not rejoin after a failure (120)",
    )
    add("--reset-limit", type=int, metavar="N", help="how often the ranks may change")
    add(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        nargs=2,
        type=float,
        metavar=("LOW", "HIGH"),
        help="seconds for which a failed slot or host stays unused, at first and at most",
    )
    add(
        "--on-failure",
        choices=("slot", "host"),
        help="what a failure takes out of use: the rank's slot (default), or its host",
    )
    add(
        "--slow-factor",
        type=float,
        metavar="F",
        help="replace a rank whose step takes F times the median rank's",
    )
    add("--events", metavar="FILE", help="write events to FILE, as lines of JSON")


def elastic_options(
    args: argparse.Namespace, hosts: Callable[[], list[Host]] | None, start_timeout_s: float
) -> ElasticOptions | None:
    """Returns what the flags ask for; `None` for a job of fixed ranks.

    Args:
        args: The parser's results.
        hosts: Returns the hosts of the other flags; `None`: workers dial in.
        start_timeout_s: As of other jobs.

    Raises:
        ValueError: Flags that are not allowed, with what is.
    """
    get: dict[str, Any] = vars(args)
    script, min_np, max_np = (
        get.get(name) for name in ("host_discovery_script", "min_num_proc", "max_num_proc")
    )
    if script is None and min_np is None:
        _refuse_alone(get)
        return None
    if args.num_proc is None and min_np is None:
        msg = "an elastic job needs -np or --min-np"
        raise ValueError(msg)
    num_proc = int(args.num_proc or min_np or 1)
    min_np = int(min_np or num_proc)
    max_np = None if max_np is None else int(max_np)
    if not min_np <= num_proc <= (max_np if max_np is not None else num_proc):
        msg = f"--min-np {min_np}, -np {num_proc}, --max-np {max_np}: must not become smaller"
        raise ValueError(msg)
    if script is not None and (args.hosts is not None or args.hostfile is not None):
        msg = "--host-discovery-script: give it without --hosts and --hostfile"
        raise ValueError(msg)
    is_open = script is not None or hosts is None  # Hosts come later.
    found = {} if is_open or hosts is None else {host.name: host.slots for host in hosts()}
    if not is_open and sum(found.values()) < num_proc:
        msg = f"-np {num_proc} needs {num_proc} slots, but the hosts have {sum(found.values())}"
        raise ValueError(msg)
    timeout_s = get.get("elastic_timeout")
    peer_timeout_s = variables.peer_timeout_s(os.environ)
    settings = Settings(
        num_proc=num_proc,
        min_np=min_np,
        max_np=max_np,
        elastic_timeout_s=DEFAULT_ELASTIC_TIMEOUT_S if timeout_s is None else float(timeout_s),
        start_timeout_s=start_timeout_s,
        reset_limit=_reset_limit(get.get("reset_limit")),
        cooldown_s=_cooldown(get.get("cooldown_range")),
        lose_host=get.get("on_failure") == "host",
        slow_factor=_slow_factor(get.get("slow_factor")),
        roll_call_s=min(_MAX_ROLL_CALL_S, peer_timeout_s),
        stuck_s=_stuck(get.get("stuck_timeout")),
        hosts_return=hosts is None,
    )
    slots, events = get.get("slots"), get.get("events")
    return ElasticOptions(
        settings,
        found,
        script,
        None if slots is None else int(slots),
        events=None if events is None else Path(events),
        agent_timeout_s=max(_MIN_AGENT_TIMEOUT_S, peer_timeout_s),
    )


def _refuse_alone(get: dict[str, Any]) -> None:
    names = {
        "max_num_proc": "--max-np",
        "slots": "--slots-per-host",
        "elastic_timeout": "--elastic-timeout",
        "stuck_timeout": "--stuck-timeout",
        "reset_limit": "--reset-limit",
        "cooldown_range": "--blacklist-cooldown-range",
        "on_failure": "--on-failure",
        "slow_factor": "--slow-factor",
        "events": "--events",
    }
    for name, flag in names.items():
        if get.get(name) is not None:
            msg = f"{flag} is for elastic jobs: give --min-np or --host-discovery-script, too"
            raise ValueError(msg)


def _stuck(value: float | None) -> float:
    if value is not None and value <= 0:
        msg = f"--stuck-timeout: {value:g} is not a number of seconds (more than 0)"
        raise ValueError(msg)
    return Settings.stuck_s if value is None else float(value)


def _slow_factor(value: float | None) -> float:
    factor = value or 0.0
    low, high = _SLOW_FACTORS
    if factor != 0.0 and not low <= factor <= high:
        msg = f"--slow-factor: {value:g} is no factor: at least {low}, at most {high}; 0: off"
        raise ValueError(msg)
    return factor


def _reset_limit(value: float | None) -> int | None:
    if value is not None and value < 0:
        msg = f"--reset-limit: {value} is not a number of resets (at least 0)"
        raise ValueError(msg)
    return None if value is None else int(value)


def _cooldown(value: tuple[float, float] | None) -> tuple[float, float] | None:
    if value is None:
        return None
    low, high = map(float, value)
    if not 1 <= low <= high <= _MAX_COOLDOWN_S:
        msg = (
            f"--blacklist-cooldown-range: {low:g} {high:g} is no range of seconds within 1 and "
            f"{_MAX_COOLDOWN_S}"
        )
        raise ValueError(msg)
    return low, high
