"""`lightccrun --listen` and `lightcc-worker`: hosts that come by themselves, without ssh."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from dialing import BIN, SECRET, Program, Site, children, code_of
from elastic_training import TRAINING, UNDISTURBED, events_in, results

from lightcc.runner import launch
from lightcc.runner.agent import frames, worker
from lightcc.runner.dial import handshake
from lightcc.runner.dial.seal import Seal, SealError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.multiproc

TOTAL = """
import os, numpy as np, lightcc as hvd
hvd.init()
total = hvd.allreduce(np.arange(3.0) + hvd.rank(), op=hvd.Sum).tolist()
known = [os.environ.get(name) for name in ("LIGHT_HOSTNAME", "OF_WORKER", "OF_LAUNCHER")]
print(hvd.rank(), hvd.size(), total, *known)
"""
WAITING = "import sys, time; print('here', file=sys.stderr, flush=True); time.sleep(600)"


@pytest.fixture(name="stack")
def programs() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def elastic_site(
    stack: contextlib.ExitStack,
    folder: Path,
    story: dict[str, list[object]],
    *flags: str,
    **variables: str,
) -> Site:
    script = folder / "train.py"
    script.write_text(TRAINING)
    command = [sys.executable, str(script), json.dumps(story), str(folder)]
    return Site(stack, "--verbose", *flags, *command, **variables)


def test_ranks_run_where_workers_have_dialled_in(stack: contextlib.ExitStack) -> None:
    flags = ("-np", "3", "--no-prefix", sys.executable, "-c", TOTAL)
    site = Site(stack, *flags, OF_LAUNCHER="does not travel")
    first = site.worker("a", "--slots", "2", OF_WORKER="1")
    first.wait_until_said("joined")
    second = site.worker("b", "--slots", "2", OF_WORKER="2")
    assert site.launcher.end() == 0, site.launcher.said
    assert (first.end(), second.end()) == (0, 0), first.said + second.said
    assert sorted(site.launcher.output.splitlines()) == [
        "0 3 [3.0, 6.0, 9.0] a 1 None",
        "1 3 [3.0, 6.0, 9.0] a 1 None",
        "2 3 [3.0, 6.0, 9.0] b 2 None",
    ]


def test_a_secret_file_that_is_not_there_is_made(
    stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    flags = ("--secret-file", str(tmp_path / "secret"))
    site = Site(stack, *flags, "-np", "1", "true", LIGHT_SECRET="")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert site.worker("a", *flags, LIGHT_SECRET="").end() == 0
    assert site.launcher.end() == 0
    assert f"{tmp_path / 'secret'} has a new secret" in site.launcher.said


def test_who_may_not_join_is_told_why_and_holds_nobody_up(
    stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_text("another one\n")
    flags = ("--secret-file", str(path))
    site = Site(stack, *flags, "-np", "2", "true", LIGHT_SECRET="")
    host, port = handshake.split_address(site.address)
    strangers = [stack.enter_context(socket.create_connection((host, port))) for _ in range(20)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\nHost: everybody\r\n\r\n")
    site.launcher.wait_until_said("the other end is no launcher or worker of lightcc")

    wrong = site.worker("a", LIGHT_SECRET="wrong")
    assert wrong.end() == 1
    assert "the launcher there does not have the same secret" in wrong.said
    site.launcher.wait_until_said("refused a connection from 127.0.0.1: it does not have the same")

    first = site.worker("a", *flags, LIGHT_SECRET="")
    first.wait_until_said("joined")
    refused = site.worker("a", *flags, "--join-timeout", "0", LIGHT_SECRET="")
    assert refused.end() == 1
    assert "a worker named a has joined already, from 127.0.0.1" in refused.said
    second = site.worker("a", *flags, "--slots", "2", LIGHT_SECRET="")
    second.wait_until_said("not yet: a worker named a has joined already")
    first.process.kill()
    assert second.end() == 0, second.said
    assert site.launcher.end() == 0


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (frames.encode(frames.HELLO, 0, b"[]"), "list indices must be integers"),
        (frames.encode(frames.HELLO, 0, b"[" * 100_000), "maximum recursion depth exceeded"),
        (
            b"".join(frames.encode(frames.STDOUT, rank, b"forged\n") for rank in range(2)),
            "it speaks for rank ., which never ran there",
        ),
    ],
)
def test_a_worker_that_lies_ends_its_ranks_and_nothing_else(
    sent: bytes, text: str, stack: contextlib.ExitStack
) -> None:
    site = Site(stack, "-np", "2", "sleep", "600")
    first = site.worker("a")
    first.wait_until_said("joined")
    connection = stack.enter_context(
        socket.create_connection(handshake.split_address(site.address))
    )
    seal = handshake.join(connection, SECRET, handshake.Worker("liar", 1, "3"))
    connection.sendall(seal.wrap(frames.MAGIC + sent))
    assert site.launcher.end() == 1
    assert re.search(f"host liar: sent something unusable: {text}", site.launcher.said)
    assert "Traceback" not in site.launcher.said
    assert first.end() == 0


def test_an_address_where_nobody_listens_is_named(stack: contextlib.ExitStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    argv = (str(BIN / "lightcc-worker"), "--join", address, "--join-timeout", "1.5")
    worker = Program(stack, *argv)
    assert worker.end() == 1
    assert f"cannot join {address}: " in worker.said
    assert "Connection refused (tried for --join-timeout 1.5 s)" in worker.said


def test_too_few_workers_end_the_job_with_who_was_there(stack: contextlib.ExitStack) -> None:
    site = Site(stack, "-np", "3", "--start-timeout", "3", "true")
    worker = site.worker("a", "--slots", "2")
    assert site.launcher.end() == 1
    assert "-np 3 needs 3 slots, but after 3 s" in site.launcher.said
    assert "the workers that have dialled in are: a:2" in site.launcher.said
    assert worker.end() == 75
    assert "the connection to the launcher was lost" in worker.said


def test_a_killed_worker_ends_a_job_of_fixed_ranks(stack: contextlib.ExitStack) -> None:
    site = Site(stack, "-np", "2", sys.executable, "-c", WAITING)
    first, second = site.worker("a"), site.worker("b")
    site.launcher.wait_until_said(r"(?s)here.*here")
    second.process.kill()
    assert site.launcher.end() == 1
    assert "host b was lost: its worker closed the connection" in site.launcher.said
    assert first.end() == 0


def test_a_job_of_fixed_ranks_takes_nobody_in_and_ends_when_a_worker_gets_sigterm(
    stack: contextlib.ExitStack,
) -> None:
    site = Site(stack, "-np", "2", sys.executable, "-c", WAITING)
    first, second = site.worker("a"), site.worker("b")
    site.launcher.wait_until_said(r"(?s)here.*here")
    late = site.worker("c")
    assert late.end() == 1
    assert "the job has started, and its ranks are fixed" in late.said
    second.process.terminate()
    assert site.launcher.end() == 1
    assert "host b leaves: its worker got SIGTERM" in site.launcher.said
    assert (first.end(), second.end()) == (0, 0)


def test_the_end_of_the_launcher_ends_the_ranks(stack: contextlib.ExitStack) -> None:
    script = "import os; print('pid', os.getpid(), file=__import__('sys').stderr, flush=True)"
    site = Site(stack, "-np", "1", sys.executable, "-c", f"{script}; {WAITING}")
    worker = site.worker("a")
    pid = int(site.launcher.wait_until_said(r"pid (\d+)")[1])
    site.launcher.process.kill()
    assert worker.end() == 75
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_workers_of_an_elastic_job_leave_on_sigterm_are_killed_and_come_back(
    stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()  # Until worker 3 takes part.
    story: dict[str, list[object]] = {"3": [-1, "is awaited"]}
    site = elastic_site(stack, tmp_path, story, "-np", "2", "--min-np", "1")
    first = site.worker("a")
    first.wait_until_said("joined")
    second = site.worker("b")
    site.launcher.wait_until_said(r"epoch 1: workers \[0, 1\]")
    site.wait_for(tmp_path / "step.4")
    second.process.terminate()
    assert second.end() == 0, second.said
    site.launcher.wait_until_said(r"epoch 2: workers \[0\]")
    assert "host b leaves: its worker got SIGTERM" in site.launcher.said
    assert "failed" not in site.launcher.said

    lost = site.worker("b")
    site.launcher.wait_until_said(r"epoch 3: workers \[0, 2\]")
    site.wait_for(tmp_path / "joined.2")
    for _ in range(3):  # Until that is committed.
        (tmp_path / "alive").unlink()
        site.wait_for(tmp_path / "alive")
    lost.process.kill()
    site.launcher.wait_until_said(r"epoch 4: workers \[0\]")
    back = site.worker("b")
    assert site.launcher.end() == 0, site.launcher.said
    assert (first.end(), back.end()) == (0, 0)
    assert "host b was lost: its worker closed the connection" in site.launcher.said
    found = results(tmp_path)
    assert set(found) == {"0", "3"}
    for about in found.values():
        assert about["weights"] == UNDISTURBED
        assert about["sizes"] == [2, 1, 2, 1, 2]


def test_a_stopped_rank_is_left_out(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    events = tmp_path / "events"
    flags = ("-np", "2", "--min-np", "1", "--events", str(events))
    site = elastic_site(stack, tmp_path, {}, *flags, LIGHT_PEER_TIMEOUT="1")
    first = site.worker("a")
    first.wait_until_said("joined")
    second = site.worker("b")
    site.launcher.wait_until_said(r"epoch 1: workers \[0, 1\]")
    site.wait_for(tmp_path / "step.4")
    (rank,) = children(second.process.pid)
    os.kill(rank, signal.SIGSTOP)
    site.launcher.wait_until_said(r"epoch 2: workers \[0\]")
    os.kill(rank, signal.SIGCONT)
    site.launcher.wait_until_said(r"epoch 3: workers \[0, 1\]")
    (tmp_path / "wait").unlink()
    assert site.launcher.end() == 0, site.launcher.said
    assert (first.end(), second.end()) == (0, 0)
    for about in results(tmp_path).values():
        assert about["weights"] == UNDISTURBED
    lines = events_in(events)
    assert [line["event"] for line in lines] == [
        *("host_joined", "host_joined", "worker_started", "worker_started", "epoch_planned"),
        *("epoch_broken", "worker_awaited", "worker_silent", "epoch_planned"),
        *("epoch_planned", "finishing", "worker_ended", "worker_ended", "job_ended"),
    ]
    by_event = {line["event"]: line for line in lines}
    assert re.search(r"rank 1\b", by_event["epoch_broken"]["reason"])
    silent = by_event["worker_silent"]
    assert (silent["worker"], silent["host"]) == (1, "b")
    planned = [line["workers"] for line in lines if line["event"] == "epoch_planned"]
    assert planned == [[0, 1], [0], [0, 1]]
    assert by_event["job_ended"]["error"] == ""


@pytest.mark.slow
def test_a_stopped_worker_is_lost_and_its_ranks_leave(
    stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    flags = ("-np", "2", "--min-np", "1")
    site = elastic_site(stack, tmp_path, {}, *flags, LIGHT_PEER_TIMEOUT="1")
    first = site.worker("a")
    first.wait_until_said("joined")
    second = site.worker("b")
    site.launcher.wait_until_said(r"epoch 1: workers \[0, 1\]")
    site.wait_for(tmp_path / "step.4")
    second.process.send_signal(signal.SIGSTOP)
    site.launcher.wait_until_said("host b was lost: .*no answer for 10 s")
    site.launcher.wait_until_said(r"epoch 2: workers \[0\]")
    (tmp_path / "wait").unlink()
    assert site.launcher.end() == 0, site.launcher.said
    second.process.send_signal(signal.SIGCONT)
    assert (first.end(), second.end()) == (0, 75)
    (about,) = results(tmp_path).values()
    assert about["weights"] == UNDISTURBED
    assert about["sizes"] == [2, 1]


def test_as_the_first_process_of_a_container_it_passes_signals_on_and_reaps(
    stack: contextlib.ExitStack,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("a namespace of processes needs root")
    site = Site(stack, "-np", "1", sys.executable, "-c", WAITING)
    command = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    worker = Program(
        stack, *command, str(BIN / "lightcc-worker"), "--join", site.address, "--name", "a"
    )
    site.launcher.wait_until_said("here")
    os.kill(children(worker.process.pid)[0], signal.SIGTERM)
    assert worker.end() == 0, worker.said
    assert site.launcher.end() == 1


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--listen", "-np", "2", "-np", "2"], "no command to run"),
        (["--listen", "python", "train.py"], "'python' is not HOST:PORT; where a command"),
        (["--listen", ":0", "true"], "--listen: -np says how many slots"),
        (["--listen", "-np", "2", "-H", "a:2", "true"], "give it without --hosts"),
        (["--listen", "a:b", "-np", "2", "true"], "'a:b' is not HOST:PORT"),
        (["--listen", ":70000", "-np", "2", "true"], "':70000' is not HOST:PORT"),
        (["--secret-file", "x", "-np", "2", "true"], "--secret-file is for --listen"),
        (["--listen", "--secret-file", "/no/such", "-np", "2", "true"], "No such file"),
        (["-np", "2", "--events", "x", "true"], "--events is for elastic jobs: give --min-np"),
        (["--listen", "192.0.2.1:0", "-np", "2", "true"], "--listen: .*assign requested address"),
    ],
)
def test_flags_of_the_launcher_that_are_not_allowed(
    flags: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHT_SECRET", SECRET)
    assert code_of(launch.main, flags) == 2
    assert re.search(text, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "required: --join"),
        (["--join", "a:b"], "'a:b' is not HOST:PORT"),
        (["--join", "a", "--slots", "0"], "'0' is not a number of slots"),
        (["--join", "a", "--grace", "-1"], "'-1' is not a number of seconds"),
        (["--join", "a", "--name", "a\n"], "'a.n' is no name of a host"),
        (["--join", "a", "--name", "two words"], "'two words' is no name of a host"),
        (["--join", "a", "--secret-file", "/no/such"], "No such file"),
    ],
)
def test_flags_of_a_worker_that_are_not_allowed(
    flags: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(worker.main, flags) == 2
    assert re.search(text, capsys.readouterr().err)


def test_a_worker_whose_peer_is_no_launcher_says_so(stack: contextlib.ExitStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        worker = Program(stack, str(BIN / "lightcc-worker"), "--join", address)
        peer, _ = other.accept()
        with peer:
            peer.sendall(b"220 mail.example.org ESMTP ready\r\n")
            assert worker.end() == 1
    assert "the other end is no launcher or worker of lightcc" in worker.said


def test_a_sealed_record_that_was_changed_repeated_or_dropped_is_refused() -> None:
    ours = Seal(b"one way", b"other way")
    first, second = ours.wrap(b"first"), ours.wrap(b"second")

    def opened(*parts: bytes) -> bytes:
        theirs = Seal(b"other way", b"one way")
        return b"".join(theirs.unwrap(part) for part in parts)

    assert opened(first, second) == b"firstsecond"
    assert opened(first[:7], first[7:] + second) == b"firstsecond"
    changed = first[:4] + b"F" + first[5:]
    for wrong in ((changed,), (first, first), (second,), (b"\xff" * 8,)):
        with pytest.raises(SealError):
            opened(*wrong)
    with pytest.raises(SealError):
        Seal(b"one way", b"other way").unwrap(first)  # Our own, sent back to us.
