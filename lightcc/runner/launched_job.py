"""An elastic job whose workers are the launcher's: its agents start and stop them.

The loop is that of a fixed job (`job`). Besides agents and signals it hears of workers, through the
job's store, and of hosts, from a script; each has a thread that only waits. Ranks of agents and of
output lines are the numbers of workers.
"""

from __future__ import annotations

import os
import queue
import selectors
import threading
from typing import TYPE_CHECKING, Any

from lightcc._discovery.plan import Plan
from lightcc.runner.agent import frames
from lightcc.runner.discovery import DiscoveryError, DiscoveryScript
from lightcc.runner.driver import Action, Awaits, Begin, End, FoundSlow, LeftOut, RunsShort, Start
from lightcc.runner.driver.elastic_job import ElasticJob
from lightcc.runner.events import EventFile
from lightcc.runner.job import Job
from lightcc.runner.summary import RankEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lightcc._binding import _core
    from lightcc._discovery.plan import Status
    from lightcc.runner.agent.link import Link
    from lightcc.runner.arguments import LaunchOptions
    from lightcc.runner.elastic_options import ElasticOptions


_PINGS = 4  # Within the time in which one must be answered.


class LaunchedJob(Job):
    """Runs to the end and returns the exit code."""

    def __init__(
        self,
        options: LaunchOptions,
        elastic: ElasticOptions,
        store: _core.StoreClient,
        make_link: Callable[[Start], Link],
        make_job: Callable[[Start], dict[str, Any]],
    ) -> None:
        """Prepares the job.

        Args:
            options: What to run.
            elastic: Where, and how many.
            store: A client of the job's store; it is closed at the end.
            make_link: Starts the agent of a host, with its first worker.
            make_job: Returns what an agent needs to start one more.

        Raises:
            OSError: The file of events cannot be opened.
        """
        super().__init__(options, [])
        self._elastic = elastic
        self._event_file = EventFile(elastic.events, self._on_loss)
        self._job = ElasticJob(elastic.settings, store, self)
        self._make_link = make_link
        self._make_job = make_job
        self._link_of: dict[str, Link] = {}
        self._slots = dict(elastic.hosts)  # By host, as last told.
        self._leaving: set[str] = set()  # Hosts that got SIGTERM; until their agents end.
        self._ends: dict[int, RankEnd] = {}
        self._host_of: dict[int, str] = {}  # By worker that was ever started.
        self._left_out: set[int] = set()  # Workers that were silent.
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._stopping = threading.Event()
        self._script: DiscoveryScript | None = None
        if elastic.script is not None:
            self._script = DiscoveryScript(elastic.script, elastic.slots, options.start_timeout_s)

    def run(self) -> int:
        """Serves agents, workers, hosts and signals until every agent has left."""
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_wake)
        watch = self._job.watch_workers
        threads = [threading.Thread(target=watch, args=(self._post,), daemon=True)]
        if self._script is not None:
            watch_hosts = threading.Thread(
                target=self._watch_hosts, args=(self._script,), daemon=True
            )
            threads.append(watch_hosts)
        else:
            self._post(lambda: self._on_hosts(self._slots))
        for thread in threads:
            thread.start()
        self._after(self._elastic.agent_timeout_s / _PINGS, self._ask_agents)
        try:
            return super().run()
        finally:
            self.results = self._final_results()
            self._stopping.set()
            if self._script is not None:
                self._script.stop()
            self._event_file.close()
            self._job.plans.close()
            threads[0].join()

    def _final_results(self) -> dict[int, bytearray]:
        """Returns what workers sent back, by their last ranks."""
        numbers = self._job.plans.members or tuple(sorted(self.results))
        return {
            rank: self.results[number]
            for rank, number in enumerate(numbers)
            if number in self.results
        }

    def add_link(self, link: Link, slots: int) -> None:
        """Takes in a host whose worker has dialled in. Any thread may call it."""
        self._post(lambda: self._on_joined(link, slots))

    def dismiss(self) -> None:
        """Tells workers that have dialled in too late for the job that it is over."""
        self._job.is_ended = self._ending = True
        while not self._events.empty():
            self._events.get()()

    # -- Threads ----------------------------------------------------------------------------------

    def _post(self, event: Callable[[], None]) -> None:
        self._events.put(event)
        os.write(self._wake_write, b"x")

    def _on_wake(self) -> None:
        os.read(self._wake_read, 4096)
        while not self._events.empty():
            self._events.get()()
        self._wait_for_deadline()

    def _watch_hosts(self, script: DiscoveryScript) -> None:
        first = True
        while not self._stopping.is_set():
            try:
                hosts = script.discover_hosts()
            except DiscoveryError as error:
                text = str(error)
                if first:
                    self._post(lambda text=text: self._job.give_up(text))  # type: ignore[misc]
                    return
                self._post(lambda text=text: self._say(f"warning: {text}"))  # type: ignore[misc]
            else:
                first = False
                self._post(lambda hosts=hosts: self._on_hosts(hosts))  # type: ignore[misc]
            self._stopping.wait(self._elastic.discovery_interval_s)

    # -- Events for the driver --------------------------------------------------------------------

    def _on_hosts(self, hosts: dict[str, int]) -> None:
        self._slots = hosts
        slots = {name: 0 if name in self._leaving else count for name, count in hosts.items()}
        self._job.hosts_seen(slots)

    def _on_joined(self, link: Link, slots: int) -> None:
        self._say(f"host {link.host} has joined with {slots} slots", verbose=True)
        self._event_file.write("host_joined", host=link.host, slots=slots)
        self._links.append(link)
        self._watch(link)
        self._link_of[link.host] = link
        self._slots[link.host] = slots
        if self._closing or self._ending:
            link.close_stdin()  # The job is over, but waits for somebody else.
        self._on_hosts(self._slots)

    def _on_drain(self, link: Link) -> None:
        self._say(f"host {link.host} leaves: its worker got SIGTERM")
        self._event_file.write("host_leaving", host=link.host)
        self._leaving.add(link.host)
        self._on_hosts(self._slots)

    def _on_agent_gone(self, link: Link) -> None:
        super()._on_agent_gone(link)
        self._leaving.discard(link.host)
        if self._elastic.settings.hosts_return and not self._job.is_ended:
            self._slots.pop(link.host, None)
            self._on_hosts(self._slots)

    def heard(self, worker: int, status: Status) -> None:  # noqa: ARG002
        """Writes down why a world has broken, as a worker says."""
        reason = status.fault or status.reason
        if reason and status.epoch:
            self._event_file.write_broken(status.epoch, reason)

    def _on_rank_end(self, end: RankEnd) -> None:
        self._take_leave(end).release()
        self._ends[end.rank] = end
        self._event_file.write(
            "worker_ended", worker=end.rank, host=end.host, code=end.code, lost=end.lost
        )
        if not self._job.is_ended and not end.lost:
            self._job.worker_ended(end.rank, end.code, end.describe())
        self._wait_for_deadline()
        if self._job.is_ended and not any(link.waiting for link in self._links):
            self._close()

    def _on_host_lost(self, link: Link, how: str) -> None:
        words = b" ".join(link.said[-3:]).decode(errors="replace").strip()
        what = "was lost" if link.ready else "could not be reached"
        text = f"host {link.host} {what}: {how}"
        text += f": {words}" if words else ""
        lost, link.waiting = sorted(link.waiting), set()
        if not self._ending:
            self._say(text)
            self._event_file.write("host_lost", host=link.host, reason=text)
        for number in lost:
            self._on_rank_end(RankEnd(number, link.host, 0, lost=True))
        if not self._job.is_ended:
            self._job.host_lost(link.host, text)

    def _on_agent_broken(self, link: Link, text: str) -> None:
        self._say(f"host {link.host}: {text}")
        link.kill()  # Its end says the rest.

    def _on_start_timeout(self) -> None:
        """Does nothing: each host has a limit of its own."""

    def _on_late_agent(self, link: Link) -> None:
        if not link.ready and not link.gone:
            link.said.append(b"no answer within --start-timeout")
            link.kill()

    def _ask_agents(self) -> None:
        """Gives up agents that are stopped: the kernel alone keeps their connections alive.

        What counts is how often they were asked, so that a launcher that was stopped blames nobody.
        """
        for link in self._links:
            if not link.ready or link.gone or self._closing:
                continue
            if link.unanswered >= _PINGS:
                link.said.append(f"no answer for {self._elastic.agent_timeout_s:g} s".encode())
                link.kill()
            else:
                link.unanswered += 1
                link.send(frames.PING)
                self._flush(link)
        self._after(self._elastic.agent_timeout_s / _PINGS, self._ask_agents)

    def _on_tick(self) -> None:
        self._job.tick()
        self._wait_for_deadline()

    def _wait_for_deadline(self) -> None:
        when = self._job.deadline()
        self._deadlines = [entry for entry in self._deadlines if entry[1] != self._on_tick]
        if when is not None:
            self._deadlines.append((when, self._on_tick))

    # -- What the driver says ---------------------------------------------------------------------

    def is_ending(self) -> bool:
        """Returns whether a signal ends the job."""
        return self._ending

    def tell(self, action: Action) -> None:
        """Says what is done, and writes it down."""
        if isinstance(action, Plan):
            self._on_plan(action)
        elif isinstance(action, LeftOut):
            self._on_left_out(action.worker)
        elif isinstance(action, Awaits):
            self._on_awaited(action.workers)
        elif isinstance(action, RunsShort):
            self._on_short(action)
        elif isinstance(action, Begin):
            self._on_beginning(action)
        elif isinstance(action, FoundSlow):
            self._on_slow(action)

    def _on_slow(self, slow: FoundSlow) -> None:
        host = self._host_of[slow.worker]
        what = "is replaced" if slow.is_replaced else "stays"
        self._say(
            f"worker {slow.worker} on {host} is slow, and {what}: its step takes "
            f"{slow.factor:.1f} times the median rank's"
        )
        factor = round(slow.factor, 2)
        self._event_file.write("worker_slow", worker=slow.worker, host=host, factor=factor)

    def _named(self, workers: Iterable[int]) -> str:
        return ", ".join(f"worker {it} on {self._host_of[it]}" for it in workers)

    def _on_left_out(self, worker: int) -> None:
        host = self._host_of[worker]
        self._left_out.add(worker)
        self._say(f"{self._named([worker])} is silent: the others go on without it")
        self._event_file.write("worker_silent", worker=worker, host=host)

    def _on_awaited(self, workers: tuple[int, ...]) -> None:
        settings = self._elastic.settings
        patience = f"{min(settings.stuck_s, settings.elastic_timeout_s):g} s more (--stuck-timeout)"
        is_one = len(workers) == 1
        late = f"{'has' if is_one else 'have'} not left a broken epoch"
        if not self._job.plans.members:
            patience = f"{settings.elastic_timeout_s:g} s in all (--elastic-timeout)"
            late = f"{'is' if is_one else 'are'} not ready after {settings.start_timeout_s:g} s"
        self._say(f"{self._named(workers)} {late}: the others wait for up to {patience}")
        for worker in workers:
            self._event_file.write("worker_awaited", worker=worker, host=self._host_of[worker])

    def _on_short(self, short: RunsShort) -> None:
        settings = self._elastic.settings
        lack = f"of at least {settings.min_np}" if short.have_state else "without the state"
        self._say(
            f"{short.count} ranks {lack} wait for others, for up to "
            f"{settings.elastic_timeout_s:g} s (--elastic-timeout)"
            + (f"; the last failure: {short.failure}" if short.failure else "")
        )

    def _on_beginning(self, begin: Begin) -> None:
        self._say(
            f"no worker that has the state of training is left: all begin from commit "
            f"{begin.version}, which the agent of host {begin.host} keeps"
        )
        self._event_file.write("commit_taken_up", commit=begin.version, host=begin.host)

    def start(self, start: Start) -> None:
        """Has the agent of a host start a worker; the first one comes with the agent."""
        self._host_of[start.worker] = start.host
        self._event_file.write("worker_started", worker=start.worker, host=start.host)
        self._open_streams(start.worker, f"rank.{start.worker}")
        link = self._link_of.get(start.host)
        try:
            if link is None or link.gone:
                link = self._link_of[start.host] = self._make_link(start)
                self._links.append(link)
                self._watch(link)
                found = link
                self._after(self._options.start_timeout_s, lambda: self._on_late_agent(found))
            else:
                job = self._make_job(start)
                link.send_job(job)
                self._flush(link)
        except (OSError, RuntimeError) as error:
            text = f"host {start.host}: {error}"
            self._say(text)
            self._post(lambda: self._job.host_lost(start.host, text))

    def stop(self, worker: int) -> None:
        """Has whichever agent has a worker end it."""
        for link in self._links:
            if not link.gone and not self._closing:
                link.send(frames.STOP, worker)
                self._flush(link)

    def _on_plan(self, plan: Plan) -> None:
        self._say(
            f"epoch {plan.epoch}: {plan.ending or f'workers {list(plan.members)}'}", verbose=True
        )
        if plan.ending:
            self._event_file.write("finishing")
        else:
            self._event_file.write("epoch_planned", epoch=plan.epoch, workers=plan.members)
            self._tell_change(plan)

    def _tell_change(self, plan: Plan) -> None:
        """Says in one line with how many ranks a job goes on, who has come, and who has gone."""
        before = self._job.plans.members
        if before:
            gone = [it for it in before if it not in plan.members]
            came = [it for it in plan.members if it not in before]
        else:  # Only who lacks is worth a line.
            came = []
            gone = [it for it in self._host_of if it not in plan.members]
            if len(plan.members) >= self._elastic.settings.num_proc:
                return
        words = [f"without {self._named([it])} ({self._how_gone(it, plan)})" for it in gone]
        words += [f"with {self._named(came)}, new"] if came else []
        if words:
            one = "1 rank goes on" if before else "1 rank begins"
            more = f"{len(plan.members)} ranks {'go on' if before else 'begin'}"
            what = one if len(plan.members) == 1 else more
            self._say(f"epoch {plan.epoch}: {what}: {'; '.join(words)}")

    def _how_gone(self, worker: int, plan: Plan) -> str:
        if worker in self._ends:
            return self._ends[worker].how()
        if worker in plan.removed:
            return "removed"
        if worker in self._left_out:
            return "silent"
        return "it did not come" if self._job.plans.members else "not ready yet"

    def end(self, end: End) -> None:
        """Has all workers ended."""
        self._error = end.error
        self._event_file.write("job_ended", error=end.error)
        if end.error:
            self._blame(end.error)
        if any(link.waiting for link in self._links):
            self._end()
        else:
            self._close()

    def _blame(self, error: str) -> None:
        """Has the report show the last words of the worker that the driver names, if it does."""
        self._failures = [end for end in self._ends.values() if end.describe() == error]

    def _is_over(self) -> bool:
        return (self._job.is_ended or self._ending) and super()._is_over()
