"""Carries out one story of tools/chaos_elastic.py with real processes, and checks the result."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chaos_notes import Notes, losses
from chaos_processes import children, is_child_of, kill
from lightcc.bench.cluster import Cluster
from lightcc.bench.peers import clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos_story import Event, Story

TOOLS = Path(__file__).resolve().parent
PATIENCE_S = 90.0  # Without a finished step, or for the end.
LEAVE_S = 45.0  # For processes after the launcher's end.
LAST_STEPS = 5
LAG_STEPS = 40  # In which a slow rank is found and replaced.
PARTED_S = 8.0  # No cut is longer: one of the two would be tried again and again.
SLOW_BITS = 2e6
FAST_BITS = 1e9
PEER_TIMEOUT_S = 1.5
ELASTIC_TIMEOUT_S = 30.0
SLOW_FACTOR = 3.0  # The machine is busy.
TOKEN = "LIGHTCC_CHAOS"  # noqa: S105  the variable by which processes are found


class HangError(RuntimeError):
    """Nothing went on any more."""


@dataclass
class Host:
    """One worker, and what has been done to it."""

    name: str
    place: int
    slots: int
    process: subprocess.Popen[bytes]
    codes: set[int]  # With which it may end.
    begin: int  # Where its words begin in the log of its name.
    lasting: bool = False  # Stopped, or cut off, for ever.
    leaving: bool = False
    cut: bool = False

    @property
    def is_up(self) -> bool:
        """Returns whether its slots count."""
        return self.process.poll() is None and not self.lasting and not self.leaving


@dataclass
class Run:
    """One job with its processes."""

    story: Story
    folder: Path
    stack: contextlib.ExitStack
    log: list[str] = field(default_factory=list)
    hosts: dict[str, Host] = field(default_factory=dict)
    gone: list[Host] = field(default_factory=list)  # Whose names others have got.
    killed: set[int] = field(default_factory=set)  # Processes; the kernel may still be at it.
    lagging: set[int] = field(default_factory=set)  # Processes that were slow at any time.
    frozen: dict[int, int] = field(default_factory=dict)  # Processes that are stopped, how often.
    touched: dict[int, float] = field(default_factory=dict)  # Workers whose state may be behind.
    counts: dict[str, int] = field(default_factory=dict)
    parted: bool = False  # Whether two hosts do not reach each other.
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Makes hosts, where they are namespaces."""
        self.token = f"{self.story.seed}.{os.getpid()}"
        self.notes = Notes(self.folder)
        self.begun = time.monotonic()
        self.order = itertools.count()
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.cluster: Cluster | None = None
        if self.story.namespaces:
            places = len(self.story.slots) + self.story.spares + 1
            self.cluster = self.stack.enter_context(Cluster(places, FAST_BITS))
        (self.folder / "tmp").mkdir()

    # -- Processes --------------------------------------------------------------------------------

    def start(self, name: str, place: int, argv: list[str], **more: str) -> subprocess.Popen[bytes]:
        """Starts the launcher or a worker; its words go to `log.NAME`."""
        environment = clean_environment() | {
            TOKEN: self.token,
            "LIGHT_SECRET": "of a chaos run on one machine",
            "LIGHT_PEER_TIMEOUT": str(PEER_TIMEOUT_S),
            "LIGHT_TOPK_THRESHOLD": "0",
            "LIGHT_SLOW_TIME": "1",
            "HOROVOD_START_TIMEOUT": "8",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TMPDIR": str(self.folder / "tmp"),
            "HARP_PROFILE": "none",
        }
        namespace = self.cluster.names[place] if self.cluster is not None else "-"
        command = [sys.executable, str(TOOLS / "chaos_program.py"), str(self.folder), namespace]
        with (self.folder / f"log.{name}").open("ab") as log:
            return subprocess.Popen(
                [*command, *argv],
                env=environment | more,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def start_launcher(self) -> None:
        """Starts it, and waits until it listens."""
        story = self.story
        own = self.cluster.addresses[-1] if self.cluster is not None else "127.0.0.1"
        flags = ["--listen", f"{own}:0", "-np", str(sum(story.slots)), "--min-np"]
        flags += [str(story.min_np), "--elastic-timeout", str(ELASTIC_TIMEOUT_S), "--verbose"]
        flags += ["--blacklist-cooldown-range", "1", "2"]
        flags += ["--slow-factor", str(SLOW_FACTOR)] if story.replace_slow else []
        flags += (
            [] if story.max_np is None else ["--max-np", str(max(story.max_np, sum(story.slots)))]
        )
        about = json.dumps(
            {
                "recovery": story.recovery,
                "topk": story.topk,
                "commit_steps": story.commit_steps,
                "torch": story.torch,
                "keep": story.keep,
            }
        )
        command = [sys.executable, str(TOOLS / "chaos_ranks.py"), str(self.folder), about]
        place = len(story.slots) + story.spares
        self.launcher = self.start("launcher", place, ["launcher", *flags, *command])
        until = time.monotonic() + PATIENCE_S
        while (found := re.search(r"--join (\S+)", self.said("launcher"))) is None:
            if time.monotonic() > until or self.launcher.poll() is not None:
                msg = "the launcher does not listen"
                raise HangError(msg)
            time.sleep(0.02)
        self.address = found[1]

    def said(self, name: str) -> str:
        """Returns what the launcher, or a worker, has said."""
        return (self.folder / f"log.{name}").read_text(errors="replace")

    def join(self, name: str, place: int, slots: int, codes: set[int]) -> None:
        """Starts a worker."""
        if name in self.hosts:
            self.gone.append(self.hosts[name])
        argv = ["worker", "--join", self.address, "--name", name, "--slots", str(slots)]
        argv += ["--grace", "4", "--join-timeout", "30"]
        more = {"LIGHT_HOST_ID": name} if self.story.host_ids and self.cluster is None else {}
        log = self.folder / f"log.worker.{name}"
        begin = len(log.read_text()) if log.exists() else 0
        process = self.start(f"worker.{name}", place, argv, **more)
        self.hosts[name] = Host(name, place, slots, process, codes, begin)

    def processes(self) -> list[int]:
        """Returns all processes of this run but our own."""
        found = []
        word = f"{TOKEN}={self.token}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if word in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    # -- Time -------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        """Notes what was done, for the report of a failure."""
        self.log.append(f"{time.monotonic() - self.begun:7.2f} {text}")

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Has something done later."""
        heapq.heappush(self.timers, (time.monotonic() + seconds, next(self.order), action))

    def run_timers(self) -> None:
        """Does what is due."""
        while self.timers and self.timers[0][0] <= time.monotonic():
            heapq.heappop(self.timers)[2]()

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Waits, while timers run. A job that ends meanwhile, or does not go on, is a failure."""
        last, until = self.notes.finished, time.monotonic() + PATIENCE_S
        while True:
            self.run_timers()
            self.notes.read()
            if is_so():
                return
            if self.launcher.poll() is not None:
                msg = f"the job ended with code {self.launcher.returncode}, awaiting {what}"
                raise RuntimeError(msg)
            if self.notes.finished > last:
                last, until = self.notes.finished, time.monotonic() + PATIENCE_S
            if time.monotonic() > until:
                msg = f"no step in {PATIENCE_S:g} s, awaiting {what}"
                raise HangError(msg)
            time.sleep(0.01)

    # -- The story --------------------------------------------------------------------------------

    def play(self) -> None:
        """Plays the story to the job's end."""
        self.start_launcher()
        for number, slots in enumerate(self.story.slots):
            self.join(f"h{number}", number, slots, {0})
        self.wait_until(lambda: self.notes.finished > 0, "the first step")
        for event in self.story.events:
            begin, first = time.monotonic(), self.notes.finished
            self.wait_until(
                lambda event=event, begin=begin, first=first: (  # type: ignore[misc]
                    self.notes.finished >= first + event.steps
                    and time.monotonic() >= begin + event.gap_s
                ),
                str(event),
            )
            self.happen(event)
        self.wait_until(lambda: not self.timers, "the end of what lasts")
        last = self.notes.finished
        steps = LAG_STEPS if any(self.folder.glob("lag.*")) else LAST_STEPS
        self.wait_until(lambda: self.notes.finished >= last + steps, "the last steps")
        (self.folder / "stop").touch()
        self.tell("stop")
        try:
            self.launcher.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            msg = f"the launcher has not ended {PATIENCE_S:g} s after the last step"
            raise HangError(msg) from None

    def holders(self) -> set[int]:
        """Returns workers that have the state: those that have made a step of the last world."""
        self.notes.read()
        found = set()
        for worker, about in self.notes.workers.items():
            host = self.hosts.get(about.host)
            is_there = (
                host is not None
                and host.is_up
                and not host.cut
                and is_child_of(about.pid, host.process.pid)
                and about.pid not in self.killed
                and about.pid not in self.lagging
                and about.pid not in self.frozen
                and host.process.pid not in self.frozen
            )
            is_last = about.epoch == self.notes.epoch
            if is_there and is_last and about.when > self.touched.get(worker, 0.0):
                found.add(worker)
        return found

    def is_survived(self, pids: set[int], lost: Host | None = None) -> bool:
        """Returns whether the job can go on without some processes, and a host for ever."""
        others = {it for it in self.holders() if self.notes.workers[it].pid not in pids}
        slots = sum(host.slots for host in self.hosts.values() if host.is_up and host is not lost)
        return bool(others) and slots >= self.story.min_np

    def happen(self, event: Event) -> None:
        """Does one event, unless the job could not outlive it."""
        up = [host for host in self.hosts.values() if host.is_up and not host.cut]
        what = getattr(self, "_" + event.kind.replace(" ", "_"))(event, up)
        if what:
            self.counts[event.kind] = self.counts.get(event.kind, 0) + 1
        self.tell(f"{event.kind}: {what or 'nobody'}")

    def _kill_rank(self, event: Event, up: list[Host]) -> str:
        ranks = [(host, pid) for host in up for pid in children(host.process.pid)]
        if not ranks:
            return ""
        host, pid = ranks[int(event.pick * len(ranks))]
        if not self.is_survived({pid}):
            return ""
        self.killed.add(pid)
        kill(pid, signal.SIGKILL)
        return f"{pid} of {host.name}, {self.name_of(pid)}"

    def _kill_all(self, _event: Event, up: list[Host]) -> str:
        """Kills all ranks, unless a host may come back whose ranks and agent are behind."""
        everybody = [it for it in self.hosts.values() if it.process.poll() is None]
        if len(up) < len(everybody) or self.frozen or not self.is_survived(set()):
            return ""
        pids = [pid for host in up for pid in children(host.process.pid)]
        self.killed.update(pids)
        for pid in pids:
            kill(pid, signal.SIGKILL)
        return str(pids)

    def _stop_rank(self, event: Event, up: list[Host]) -> str:
        ranks = [(host, pid) for host in up for pid in children(host.process.pid)]
        if not ranks:
            return ""
        host, pid = ranks[int(event.pick * len(ranks))]
        if not self.is_survived({pid}):
            return ""
        self.freeze([pid], event.seconds)
        return f"{pid} of {host.name}, {self.name_of(pid)}, for {event.seconds:.1f} s"

    def _lag_rank(self, event: Event, up: list[Host]) -> str:
        """Has a rank take long for its steps; the launcher may end it at any time."""
        ranks = [(host, pid) for host in up for pid in children(host.process.pid)]
        workers = {about.pid: worker for worker, about in self.notes.workers.items()}
        ranks = [(host, pid) for host, pid in ranks if pid in workers]
        if not ranks:
            return ""
        host, pid = ranks[int(event.pick * len(ranks))]
        if not self.is_survived({pid}):
            return ""
        self.lagging.add(pid)
        mark = self.folder / f"lag.{workers[pid]}"
        mark.touch()
        if event.seconds:
            self.after(event.seconds, lambda: mark.unlink(missing_ok=True))
        return f"{pid} of {host.name}, {self.name_of(pid)}, for {event.seconds:.1f} s"

    def _choose(self, event: Event, up: list[Host], *, lost: bool = True) -> Host | None:
        if not up:
            return None
        host = up[int(event.pick * len(up))]
        pids = set(children(host.process.pid))
        return host if self.is_survived(pids, host if lost else None) else None

    def _kill_host(self, event: Event, up: list[Host]) -> str:
        host = self._choose(event, up)
        if host is None:
            return ""
        host.codes = {-signal.SIGKILL}
        pids = children(host.process.pid)
        self.killed.update(pids)
        kill(host.process.pid, signal.SIGKILL)
        host.process.wait()
        return f"{host.name} with {pids}"

    def _drain(self, event: Event, up: list[Host]) -> str:
        host = self._choose(event, up)
        if host is None:
            return ""
        host.leaving = True
        if "joined" not in self.said(f"worker.{host.name}")[host.begin :]:
            host.codes |= {-signal.SIGTERM}
        kill(host.process.pid, signal.SIGTERM)
        return host.name

    def _stop_worker(self, event: Event, up: list[Host]) -> str:
        """Stops the agent alone: its ranks go on."""
        host = self._choose(event, up, lost=event.seconds == 0)
        if host is None:
            return ""
        if event.seconds == 0:
            host.lasting, host.codes = True, {0, 1, 75}
        self.freeze([host.process.pid], event.seconds)
        return f"{host.name} for {event.seconds:.1f} s"

    def _stop_host(self, event: Event, up: list[Host]) -> str:
        host = self._choose(event, up, lost=event.seconds == 0)
        if host is None:
            return ""
        if event.seconds == 0:
            host.lasting, host.codes = True, {0, 1, 75}
        self.freeze([host.process.pid, *children(host.process.pid)], event.seconds)
        return f"{host.name} for {event.seconds:.1f} s"

    def _join(self, event: Event, _up: list[Host]) -> str:
        if event.pick < 0.5:
            for host in self.hosts.values():
                if host.process.poll() is not None:
                    self.join(host.name, host.place, host.slots, {0, 1})
                    return f"{host.name} again"
        spare = len(self.hosts)
        if spare >= len(self.story.slots) + self.story.spares:
            return ""
        self.join(f"h{spare}", spare, 1 + int(event.pick * 2), {0, 1})
        return f"h{spare}"

    def _cut(self, event: Event, up: list[Host]) -> str:
        host = self._choose(event, up)
        if host is None or self.cluster is None:
            return ""
        host.cut, host.codes = True, host.codes | {0, 1, 75}
        host.lasting = event.seconds == 0
        self.link(host, "down")
        if event.seconds:
            self.after(event.seconds, lambda: self.mend(host))
        return f"{host.name} for {event.seconds:.1f} s"

    def mend(self, host: Host) -> None:
        """Gives a host its link back."""
        self.tell(f"mend {host.name}")
        self.link(host, "up")
        host.cut = False
        self.touch(children(host.process.pid))

    def link(self, host: Host, state: str) -> None:
        """Pulls the cable of a host out of the switch, or plugs it in."""
        assert self.cluster is not None  # noqa: S101
        port = f"port{host.place}"
        argv = ["ip", "-n", self.cluster.switch, "link", "set", port, state]
        subprocess.run(argv, check=True, capture_output=True)

    def _part(self, event: Event, up: list[Host]) -> str:
        """Has two hosts not reach each other, for a while; both reach the launcher."""
        if self.cluster is None or len(up) < 2 or self.parted:
            return ""
        first = up[int(event.pick * len(up))]
        second = up[(up.index(first) + 1) % len(up)]
        left = [it for it in self.hosts.values() if it.is_up and it not in (first, second)]
        if sum(it.slots for it in left) + min(first.slots, second.slots) < self.story.min_np:
            return ""
        self.route(first, second, "add")
        self.after(event.seconds or PARTED_S, lambda: self.route(first, second, "del"))
        return f"{first.name} and {second.name}"

    def route(self, first: Host, second: Host, change: str) -> None:
        """Has two hosts drop what they send to each other, or no longer."""
        assert self.cluster is not None  # noqa: S101
        self.parted = change == "add"
        for one, other in ((first, second), (second, first)):
            argv = ["ip", "-n", self.cluster.names[one.place], "route", change]
            argv += ["blackhole", f"{self.cluster.addresses[other.place]}/32"]
            subprocess.run(argv, check=True, capture_output=True)

    def _slow(self, event: Event, up: list[Host]) -> str:
        if self.cluster is None or not up:
            return ""
        host = up[int(event.pick * len(up))]
        self.limit(host, SLOW_BITS)
        if event.seconds:
            self.after(event.seconds, lambda: self.limit(host, FAST_BITS))
        return f"{host.name} for {event.seconds:.1f} s"

    def limit(self, host: Host, bits: float) -> None:
        """Has a host's link carry so many bits per second."""
        assert self.cluster is not None  # noqa: S101
        argv = ["tc", "-n", self.cluster.switch, "qdisc", "replace", "dev", f"port{host.place}"]
        argv += ["root", "tbf", "rate", f"{bits:.0f}bit", "burst", "131072", "latency", "20ms"]
        subprocess.run(argv, check=True, capture_output=True)

    def freeze(self, pids: list[int], seconds: float) -> None:
        """Stops processes for a while, or for ever."""
        for pid in pids:
            self.frozen[pid] = self.frozen.get(pid, 0) + 1
            kill(pid, signal.SIGSTOP)
        if seconds:
            self.after(seconds, lambda: self.thaw(pids))

    def thaw(self, pids: list[int]) -> None:
        """Lets stopped processes go on."""
        self.tell(f"go on {pids}")
        self.touch(pids)
        for pid in pids:
            self.frozen[pid] -= 1
            if self.frozen[pid] == 0:
                del self.frozen[pid]
                kill(pid, signal.SIGCONT)

    def touch(self, pids: list[int]) -> None:
        """Counts what workers have as nothing until they have made another step."""
        for worker, about in self.notes.workers.items():
            if about.pid in pids:
                self.touched[worker] = time.monotonic()

    def name_of(self, pid: int) -> str:
        """Returns what a process is, for the report."""
        for worker, about in self.notes.workers.items():
            if about.pid == pid:
                return f"worker {worker}"
        return "starting"

    # -- What came of it --------------------------------------------------------------------------

    def check(self) -> None:
        """Adds to the problems what is not as it should be."""
        self.notes.read()
        if self.launcher.returncode != 0:
            self.problems.append(f"the launcher ended with code {self.launcher.returncode}")
        self.problems += self.notes.wrong
        results = set(self.notes.results.values())
        if len(results) != 1:
            self.problems.append(f"results are of these steps: {self.notes.results}")
        limit = self.story.commit_steps
        for epoch, lost in losses(self.notes).items():
            if lost > limit:
                self.problems.append(f"epoch {epoch} makes {lost} steps again; {limit} may be lost")
        words = self.said("launcher")
        if "did not leave a broken epoch" in words and not self.was("stop", "cut", "part", "slow"):
            self.problems.append("a rank did not leave a broken epoch, and none was stopped")
        if "Traceback" in words and "chaos_ranks.py" not in words:
            self.problems.append("the launcher has shown a traceback")

    def was(self, *kinds: str) -> bool:
        """Returns whether such things have happened."""
        return any(kind.startswith(kinds) for kind in self.counts)

    def clean_up(self) -> None:
        """Lets go on what is stopped; then nothing may be left."""
        for host in self.hosts.values():
            if host.cut:
                self.link(host, "up")
        for pid in list(self.frozen):
            kill(pid, signal.SIGCONT)
        until = time.monotonic() + LEAVE_S
        everybody = [*self.hosts.values(), *self.gone]
        while time.monotonic() < until:
            for host in everybody:
                host.process.poll()
            if not self.processes():
                break
            time.sleep(0.05)
        for pid in self.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                self.problems.append(f"process {pid} is left: {words[:200]}")
        for host in everybody:
            code = host.process.poll()
            if code is not None and code not in host.codes:
                self.problems.append(f"worker {host.name} ended with code {code}, not {host.codes}")
        left = [path.name for path in (self.folder / "tmp").iterdir()]
        left = [name for name in left if not name.startswith("torchinductor_")]  # torch's own.
        if left:
            self.problems.append(f"temporary files are left: {left}")

    def show_stacks(self) -> None:
        """Has everybody write its stacks, for the report."""
        for host in self.hosts.values():
            if host.cut and not host.lasting:
                self.link(host, "up")
        for pid in self.processes():
            with contextlib.suppress(OSError):
                caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
                if caught and int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1:
                    kill(pid, signal.SIGUSR1)
        time.sleep(0.5)

    def kill_all(self) -> None:
        """Ends what is left."""
        for pid in self.processes():
            kill(pid, signal.SIGKILL)
        for host in [*self.hosts.values(), *self.gone]:
            host.process.wait()
