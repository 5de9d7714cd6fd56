"""What ranks must have in common: saved, restored and synchronised together."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcc import _world
from lightcc._discovery import elastic
from lightcc._discovery.plan import HostUpdateResult
from lightcc._ops import basics
from lightcc._ops.functions import allgather_object, broadcast_object
from lightcc.elastic._passing_on import PassingOn, receive
from lightcc.elastic._replicas import digest, odd_ranks, sample
from lightcc.elastic._slow import SlowReport
from lightcc.exceptions import HorovodInternalError, HostsUpdatedInterrupt, PeerFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO, ClassVar

    from lightcc._typing import Array


#: Version of a state that is in part another rank's.
_TORN = -1
#: With which training begins. Each commit adds 1, and 0 is no commit at all.
_FIRST = 1


class State:
    """The base of all states. Subclasses say what `save`, `restore`, `sync` and `reset` do.

    Attributes:
        can_roll_forward: Whether `run(recovery="forward")` takes such a state: it then has `mark`
            and `resume` as well, and `sync` takes over the state of rank `_source`.
        can_be_kept: Whether `run(keep_commits=...)` takes such a state: it then has `write_to` and
            `read_from` as well.
    """

    can_roll_forward: ClassVar[bool] = False
    can_be_kept: ClassVar[bool] = False

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        """Makes the state.

        Args:
            bcast_object: Returns rank 0's object on every rank, as `broadcast_object` does.
            get_rank: Returns this process's rank.
        """
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[int, HostUpdateResult]] = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._rolls_forward = False
        self._version = _FIRST
        self._source = 0
        self._check_every = 0
        self._commits = 0  # In this world.
        self._checks = 0
        self._keep_every = 0
        self._slow_report = SlowReport()
        self._passing_on: PassingOn | None = None
        self._is_level = False

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Has functions called after each change of the world, for example to scale a rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by `run` when the next world stands, before the state is synchronised."""
        self._host_messages = queue.Queue()
        self._commits = self._checks = 0  # As with those who are new.
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update_res: HostUpdateResult) -> None:
        """Takes in a notice, of which `check_host_updates` will know. Any thread may call it."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, then does what `check_host_updates()` does.

        Where `run` rolls forward nothing is copied: a step is finished, which counts.

        Collective: every rank must call it at the same point.

        Raises:
            HostsUpdatedInterrupt: Hosts were added or removed; on all ranks.
            HorovodInternalError: A rank failed; on all ranks.
        """
        _world.finish()  # What has failed by then is not committed.
        self._finish_passing_on()
        self._commits += 1
        is_checked = self._check_every and self._commits % self._check_every == 0
        if self._rolls_forward:
            self.mark()
            self._version += 1
            if is_checked:
                self._compare_replicas()
        else:
            if is_checked:  # What is wrong is not saved.
                self._compare_replicas()
            self.save()
            self._version += 1
        if self._keep_every:
            self._keep(every=self._keep_every)
        self._is_level = True
        self.check_host_updates()
        self._is_level = False

    def check_host_updates(self) -> None:
        """Raises where the world should be made anew because of the hosts.

        Collective: every rank must call it at the same point. What rank 0 knows counts.

        Raises:
            HostsUpdatedInterrupt: Hosts were added or removed; on all ranks.
            HorovodInternalError: A rank failed; on all ranks.
        """
        _world.finish()  # A world that ends in good order has no failure left.
        self._slow_report.give(self._rank)
        before = last = self._last_updated_timestamp
        update = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, result = self._host_messages.get()
            if timestamp > last:
                last = timestamp
                update |= result
        before, last, update = self._bcast_object((before, last, update))
        self._last_updated_timestamp = last
        if last > before:
            raise HostsUpdatedInterrupt(update == HostUpdateResult.removed)

    def save(self) -> None:
        """Saves the state in this process's memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Takes over rank 0's state. Collective: every rank must call it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Prepares for another world; nothing, unless a subclass has something to do."""

    # -- Newcomers ------------------------------------------------------------------------------

    @property
    def is_level(self) -> bool:
        """Whether the world has ended within a commit, so that all ranks have the same state."""
        return self._is_level

    def begin_training(self) -> None:
        """Called by `run` before each call of the training function."""
        self._is_level = False

    def can_pass_on(self) -> bool:
        """Returns whether `pass_on` may be called in place of `sync`; the same on all ranks."""
        return False

    def pass_on(self, newcomers: Sequence[int]) -> None:
        """Has newcomers take over the state that all others have. Collective.

        For the others it only begins: `_finish_passing_on` comes before the state changes.

        Args:
            newcomers: Ranks that have no state.

        Raises:
            HorovodInternalError: A rank failed, or what has arrived is damaged; on all ranks.
        """
        if basics.rank() in newcomers:
            self._version = _TORN
            receive(self._targets, newcomers)
            self._arrive()
        else:
            about, arrays = self._parts()
            self._passing_on = PassingOn(about, arrays, newcomers)

    def end_training(self, *, failed: bool) -> None:
        """Called by `run` after each call of the training function.

        Args:
            failed: Whether its world has failed.

        Raises:
            HorovodInternalError: A rank failed while it took over the state, or before GPUs had
                finished what was synchronized; on all ranks.
        """
        if not failed:
            self._finish_passing_on()
            _world.finish()
            return
        with contextlib.suppress(HorovodInternalError, ValueError):
            self._finish_passing_on()

    def _finish_passing_on(self) -> None:
        """Waits until newcomers have the state that is about to change."""
        passing_on, self._passing_on = self._passing_on, None
        if passing_on is not None:
            passing_on.wait()

    def _parts(self) -> tuple[bytes, list[Array]]:
        """Returns what newcomers need: what is small, and bytes that stay until the next step."""
        raise NotImplementedError

    def _targets(self, about: bytes) -> list[Array]:
        """Returns where the bytes are to arrive."""
        raise NotImplementedError

    def _arrive(self) -> None:
        """Takes over what has arrived there."""
        raise NotImplementedError

    # -- Comparing replicas ---------------------------------------------------------------------

    def samples(self, turn: int) -> Iterator[bytes]:
        """Yields parts of what must be the same on all ranks; other parts for another `turn`."""
        del turn
        yield from ()

    def check_replicas_every(self, commits: int) -> None:
        """Called by `run(check_replicas=...)` before anything else.

        Raises:
            ValueError: The state has nothing that could be compared.
        """
        if next(self.samples(0), None) is None:
            msg = (
                f"check_replicas does not go with this {type(self).__name__}: it has neither a "
                "model of torch nor an array of numpy"
            )
            raise ValueError(msg)
        self._check_every = commits

    def _compare_replicas(self) -> None:
        """Compares a sample of the replicas. Collective.

        Raises:
            PeerFailedError: Others differ from this rank and most ranks.
            RuntimeError: This rank differs from most; or, on all ranks, there is no majority.
        """
        own = digest(self.samples(self._checks))
        self._checks += 1
        found = odd_ranks(allgather_object(own, name="lightcc.elastic.replicas"))
        if basics.rank() in found:
            msg = f"the replica of rank {basics.rank()} is another one than that of most ranks"
            raise RuntimeError(msg)
        if found:
            ranks = ", ".join(map(str, found))
            msg = f"rank {ranks} has another replica than most ranks: its results were wrong"
            raise PeerFailedError(msg, found[0])

    # -- Commits that outlive ranks -------------------------------------------------------------

    def keep_commits_every(self, commits: int) -> None:
        """Called by `run(keep_commits=...)` before anything else.

        Raises:
            ValueError: States of this class cannot be kept.
        """
        if not self.can_be_kept:
            msg = f"keep_commits does not go with {type(self).__name__}, which cannot be kept"
            raise ValueError(msg)
        worker = elastic.worker()
        if worker is None or worker.kept is None:
            warnings.warn(
                "keep_commits has no effect: no agent of an elastic lightccrun is there that could "
                "keep them",
                RuntimeWarning,
                stacklevel=2,
            )
        self._keep_every = commits

    def begin_from_kept(self) -> None:
        """Takes the newest kept commit on rank 0, where no rank has a newer state. Collective.

        The launcher makes that worker rank 0 whose agent keeps it.

        Raises:
            RuntimeError: Rank 0 cannot read it; on rank 0.
            HorovodInternalError: A rank failed; on all ranks.
        """
        worker = elastic.worker()
        if basics.rank() == 0 and worker and worker.commit and worker.kept is not None:
            self._version = worker.kept.read(self.read_from)
            if not self._version:
                msg = f"commit {worker.commit}, which the agent of this host keeps, is not whole"
                raise RuntimeError(msg)
        if not self._rolls_forward:
            self._version = broadcast_object(self._version, name="lightcc.elastic.version")

    def save_to(self, path: str | os.PathLike[str]) -> None:
        """Writes the last commit into a file, which is there as a whole or not at all.

        One rank is enough: all have the same.

        Args:
            path: Of the file; one that is there is replaced.

        Raises:
            OSError: The file cannot be written.
            NotImplementedError: States of this class cannot be written.
        """
        target = Path(path)
        partial = target.with_name(f"{target.name}.partial")
        try:
            with partial.open("wb") as file:
                self.write_to(file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def load_from(self, path: str | os.PathLike[str]) -> None:
        """Takes over what `save_to` has written. Rank 0 alone needs it, before training begins.

        Only files that can be trusted may be loaded: they are pickled.

        Raises:
            OSError: The file cannot be read.
            NotImplementedError: States of this class cannot be read.
        """
        with Path(path).open("rb") as file:
            self.read_from(file)

    def write_to(self, file: BinaryIO) -> None:
        """Writes the last commit."""
        raise NotImplementedError

    def read_from(self, file: BinaryIO) -> None:
        """Takes over a commit that `write_to` has written."""
        raise NotImplementedError

    def keep_beginning(self) -> None:
        """Has agents keep the state with which training begins, or goes on after a failure.

        Called by `run` on all ranks. The failure may have come before they kept the last commit.
        """
        self._keep()

    def _keep(self, *, every: int = 1) -> None:
        """Has the agent keep the last commit, if it is one out of so many."""
        worker = elastic.worker()
        if worker is None or worker.kept is None:
            return
        worker.version = self._version
        if (self._version - _FIRST) % every:
            return
        try:
            worker.kept.write(self._version, self.write_to)
        except OSError as error:
            warnings.warn(f"commit {self._version} is not kept: {error}", stacklevel=3)

    # -- Rolling forward ------------------------------------------------------------------------

    def roll_forward(self) -> None:
        """Called by `run(recovery="forward")` before anything else.

        Raises:
            ValueError: States of this class cannot.
        """
        if not self.can_roll_forward:
            msg = f"recovery='forward' does not go with {type(self).__name__}: use 'rollback'"
            raise ValueError(msg)
        self._rolls_forward = True

    def take_over(self) -> None:
        """Synchronises from the rank with most commits, the first of several. Collective.

        Raises:
            RuntimeError: No rank has a whole state: those that had one have failed while they
                passed it on; on all ranks.
            HorovodInternalError: A rank failed; on all ranks.
        """
        own = (self._version, -basics.rank())
        version, source = max(allgather_object(own, name="lightcc.elastic.source"))
        if version == _TORN:
            msg = "no rank that is left has a whole state: begin from a checkpoint"
            raise RuntimeError(msg)
        self._source = -source
        if self._version < version:
            self._version = _TORN
        self.sync()
        self._version = version

    def mark(self) -> None:
        """Keeps what `resume` needs of a step that is finished, and no copies of what is large."""
        raise NotImplementedError

    def resume(self) -> None:
        """Goes back to the last finished step, from which what is large has not moved."""
        raise NotImplementedError


class ObjectState(State):
    """Python objects as attributes, which travel pickled."""

    can_roll_forward = True
    can_be_kept = True

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        """Makes the state.

        Args:
            bcast_object: As of `State`.
            get_rank: As of `State`.
            kwargs: Each becomes an attribute. What is saved is a reference, not a copy.
        """
        self._saved_state = kwargs
        self._set_attributes()
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self) -> None:
        """Keeps what the attributes are now."""
        self._save_attributes()

    def restore(self) -> None:
        """Sets the attributes to what was saved last."""
        self._set_attributes()

    def sync(self) -> None:
        """Sets the attributes to what rank 0 has saved. Collective, if there is one at all.

        Where `run` rolls forward, it is what the rank with most commits has saved.
        """
        if self._saved_state:
            saved = self._saved_state
            self._saved_state = (
                broadcast_object(saved, self._source) if self._source else self._bcast_object(saved)
            )
            self._set_attributes()

    def can_pass_on(self) -> bool:
        """Returns whether `pass_on` may be called: not where `sync` is somebody else's."""
        return getattr(self.sync, "__func__", None) is ObjectState.sync

    def _parts(self) -> tuple[bytes, list[Array]]:
        """Returns the number of commits and the attributes, pickled; and nothing large."""
        return pickle.dumps((self._version, self._saved_state), pickle.HIGHEST_PROTOCOL), []

    def _targets(self, about: bytes) -> list[Array]:
        """Remembers what it gets, and needs no targets."""
        self._arrived = pickle.loads(about)  # noqa: S301  from a rank of this job
        return []

    def _arrive(self) -> None:
        """Sets the attributes."""
        self._version, self._saved_state = self._arrived
        del self._arrived
        self._set_attributes()

    def samples(self, turn: int) -> Iterator[bytes]:
        """Yields parts of the attributes that are arrays of numpy."""
        for name in sorted(self._saved_state):
            value = getattr(self, name)
            is_array = type(value).__module__ == "numpy" and hasattr(value, "reshape")
            if is_array and value.size and not value.dtype.hasobject:
                yield sample(value.reshape(-1), value.size, turn).tobytes()

    def write_to(self, file: BinaryIO) -> None:
        """Writes the attributes as they were saved last, pickled."""
        pickle.dump(self._saved_state, file, pickle.HIGHEST_PROTOCOL)

    def read_from(self, file: BinaryIO) -> None:
        """Sets the attributes to what was written."""
        self._saved_state = pickle.load(file)  # noqa: S301  the caller's own
        self._set_attributes()

    def mark(self) -> None:
        """Keeps what the attributes are now."""
        self._save_attributes()

    def resume(self) -> None:
        """Sets the attributes to what was kept last."""
        ObjectState.restore(self)

    if TYPE_CHECKING:  # Attributes have the names that the caller chooses.

        def __getattr__(self, name: str) -> Any: ...

    def _save_attributes(self) -> None:
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)
