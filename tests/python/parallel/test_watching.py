"""What a user sees of running ranks: log lines, stats(), reporters, lightcc-top and Prometheus."""

from __future__ import annotations

import json
import os
import re
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exposition import check_exposition

import lightcc as hvd
from lightcc._stats import metrics_http as _metrics_http
from lightcc._stats.statistics import METRICS
from lightcc.runner import launch
from lightcc.testing import RankProcesses, spawn_ranks
from lightcc.top import cli, export, reading, screen
from lightcc.top.reading import Link, Rank, Reading

PATIENCE_S = 30.0


def own_rank() -> Rank:
    """Returns what this process answers."""
    (found,) = [one for one in reading.read_ranks().ranks if one.pid == os.getpid()]
    return found


# -- A rank and who asks it -----------------------------------------------------------------------


@pytest.mark.usefixtures("world")
def test_entries_of_stats_are_attributes() -> None:
    hvd.allreduce(np.ones(2000, np.float32))  # More than goes in one shot.
    stats = hvd.stats()
    assert stats.operations == stats["operations"] == 1
    assert stats.payload_bytes == 8000
    assert stats.allreduce_costs[0].samples == 1
    assert set(stats.scalars()) == {metric.name for metric in METRICS}
    with pytest.raises(AttributeError, match="has no entry 'operation'"):
        _ = stats.operation


def test_a_rank_answers_while_there_is_a_world(monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.init()
    hvd.allreduce(np.ones(4, np.float32))
    one = own_rank()
    assert (one.rank, one.size, one.counters["operations"]) == (0, 1, 1)
    hvd.shutdown()
    assert os.getpid() not in [one.pid for one in reading.read_ranks().ranks]
    monkeypatch.setenv("LIGHT_STAT", "0")
    hvd.init()
    assert os.getpid() not in [one.pid for one in reading.read_ranks().ranks]
    hvd.shutdown()


@pytest.mark.usefixtures("world")
def test_a_forked_child_does_not_keep_the_socket() -> None:
    assert own_rank().pid == os.getpid()
    kept, done = os.pipe()
    started, starts = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(starts, b"x")
        os.read(kept, 1)
        os._exit(0)
    try:
        os.read(started, 1)  # The child's hooks of fork() have run.
        hvd.shutdown()
        name = f"@lightcc-stat-{os.getpid()}-"
        assert name not in Path("/proc/net/unix").read_text()
    finally:
        os.write(done, b"x")
        os.waitpid(child, 0)
        for descriptor in (kept, done, started, starts):
            os.close(descriptor)


def watch_each_other() -> tuple[int, list[int], list[int], list[Any]]:
    hvd.init()
    values = np.ones(10_000)  # Reported at once: ranks of a host do not wait for large ones.
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(values, name="late")
        hvd.send(np.ones(1), 1)
    else:
        hvd.recv(np.ones(1), 0)  # Nothing was asked for before "late".
    seen: list[Any] = []
    awaited: list[int] = []
    if hvd.rank() == 0:
        deadline = time.monotonic() + PATIENCE_S
        while not awaited and time.monotonic() < deadline:
            awaited = hvd.stats().awaited_ranks
            time.sleep(0.01)
        own = own_rank()
        while len(seen) < hvd.size() and time.monotonic() < deadline:
            ranks = [one for one in reading.read_ranks().ranks if one.job == own.job]
            seen = [(one.rank, one.size) for one in ranks]
    hvd.barrier()
    if handle is None:
        handle = hvd.allreduce_async(values, name="late")
    hvd.synchronize(handle)
    stats = hvd.stats()
    hvd.barrier()
    return stats.in_flight, awaited, stats.last_asked, seen


@pytest.mark.multiproc
def test_rank_0_knows_who_is_awaited_and_all_ranks_can_be_asked() -> None:
    first, second = spawn_ranks(watch_each_other, 2)
    assert first[0] == second[0] == 0
    assert first[1] == [1]
    # The transfer and the barrier, which either may end, and what rank 1 was late for.
    assert sum(first[2]) == 3
    assert first[2][1] >= 1
    assert second[1:] == ([], [], [])
    assert first[3] == [(0, 2), (1, 2)]


def test_an_answer_that_is_damaged_counts_as_none() -> None:
    for text in (b"", b"{", b"[]", b"null", b'{"version": 1}', b"[" * 100_000):
        assert reading._parse(reading._decode(text)) is None
    answer: dict[str, Any] = {"version": 1, "pid": 1, "rank": "0", "size": 1, "job": "a"}
    answer |= {"hostname": "h", "command": [], "started_unix_s": 0, "monotonic_s": 0}
    assert reading._parse(answer | {"statistics": {}}) is None


def look_at_a_rank_that_waits() -> str:
    hvd.init()
    seen = ""
    deadline = time.monotonic() + PATIENCE_S
    while hvd.rank() == 1 and "in _allreduce_now" not in seen and time.monotonic() < deadline:
        found, _ = reading.read_stacks()
        mine = [it["job"] for it in found if it["pid"] == os.getpid()]
        seen = "".join(it["stacks"] for it in found if (it["job"], it["rank"]) == (*mine, 0))
    hvd.allreduce(np.ones(10_000), name="late")
    return seen


@pytest.mark.multiproc
def test_a_rank_that_waits_in_a_collective_tells_where_it_is() -> None:
    _, seen = spawn_ranks(look_at_a_rank_that_waits, 2)
    assert seen.startswith("MainThread:\n")
    assert "in look_at_a_rank_that_waits\n    hvd.allreduce(np.ones(10_000)" in seen


@pytest.mark.usefixtures("world")
def test_the_launcher_shows_stacks_of_one_job(capsys: pytest.CaptureFixture[str]) -> None:
    job = own_rank().job
    assert launch.main(["--stacks", job]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"job {job}: rank 0 (process {os.getpid()})\nMainThread:\n")
    assert launch.main(["--stacks", "no job"]) == 1
    assert "no rank that can be asked runs here" in capsys.readouterr().err
    assert cli.main(["--job", job, "--count", "1", "--text"]) == 0
    assert cli.main(["--job", "no job", "--count", "1", "--text"]) == 1


# -- Reporters ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("world")
def test_a_reporter_calls_with_counters_and_rates() -> None:
    seen: list[tuple[int, dict[str, float]]] = []
    enough = threading.Event()

    def log(step: int, values: dict[str, float]) -> None:
        seen.append((step, values))
        if len(seen) >= 2:
            enough.set()

    with hvd.report_stats(log, interval_s=0.01):
        hvd.allreduce(np.ones(4, np.float32))
        assert enough.wait(PATIENCE_S)
    assert seen[-1][0] == 0
    assert seen[-1][1]["operations"] == 1
    assert any(values["payload_bytes_per_second"] > 0 for _, values in seen)


@pytest.mark.usefixtures("world")
def test_a_reporter_ends_with_a_failing_callback_or_the_world(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def fail(*values: object) -> None:
        calls.append(values)
        raise ArithmeticError

    failing = hvd.report_stats(fail, interval_s=0.001)
    failing._thread.join(PATIENCE_S)
    assert not failing._thread.is_alive()
    assert len(calls) == 1
    assert "the callback of report_stats() failed" in caplog.text
    reporter = hvd.report_stats(lambda *_: None, interval_s=0.01)
    hvd.shutdown()
    reporter._thread.join(PATIENCE_S)
    assert not reporter._thread.is_alive()


@pytest.mark.usefixtures("world")
def test_a_reporter_refuses_what_it_cannot_use() -> None:
    with pytest.raises(ValueError, match="interval_s is 0: expected a number of seconds > 0"):
        hvd.report_stats(print, interval_s=0)
    with pytest.raises(TypeError, match="callback is 3: expected a function"):
        hvd.report_stats(3)  # type: ignore[arg-type]


# -- The screen -----------------------------------------------------------------------------------

ZERO: dict[str, Any] = {metric.name: 0 for metric in METRICS} | {
    "last_asked": [],
    "awaited_ranks": [],
    "slow_ranks": [],
}


def rank(number: int, taken_s: float, **counters: Any) -> Rank:
    return Rank(
        pid=100 + number,
        rank=number,
        size=2,
        job="j0b",
        hostname="h",
        command=("train.py",),
        started_unix_s=time.time() - 3661,
        taken_s=taken_s,
        counters=ZERO | counters,
    )


def two(taken_s: float, first: dict[str, Any], second: dict[str, Any]) -> Reading:
    links = {"eth0": Link(int(first.get("network_bytes_sent", 0)), 0, 1e9)}
    ranks = (rank(0, taken_s, **first), rank(1, taken_s, **second))
    return Reading(ranks, (), taken_s, links)


def test_the_screen_shows_rates_of_two_readings() -> None:
    before = two(10, {"last_asked": [5, 5]}, {})
    work = {"steps": 20, "operations": 400, "payload_bytes": 3_000_000}
    now = two(
        12,
        work | {"network_bytes_sent": 50_000_000, "last_asked": [6, 24]},
        work | {"network_retransmits": 8},
    )
    shown = screen.make_screen(before, now)
    text = screen.as_text(shown)
    assert all(len(line) <= screen.TEXT_COLUMNS for line in text.splitlines())
    assert "job j0b: 2 of 2 ranks here, for 1:01:01: train.py" in text
    assert "10 steps/s, tensors 3 MB/s, network 200 Mb/s out, 0 b/s in, 4 resent/s" in text
    assert "the others wait for rank 1 in 95% of the operations" in text
    assert "eth0: 200 Mb/s out, 0 b/s in, 20% of 1 Gb/s" in text
    assert [row.cells[-1] for row in shown.jobs[0].rows] == ["runs", "runs"]


def test_the_screen_names_who_is_awaited() -> None:
    before = two(10, {}, {})
    waiting = {"in_flight": 1, "awaited_ranks": [1], "awaited_seconds": 7.2, "last_asked": [0, 0]}
    shown = screen.make_screen(before, two(11, waiting, {}))
    assert shown.jobs[0].advice == "all wait for rank 1, for 7 s now"
    assert [row.cells[-1] for row in shown.jobs[0].rows] == ["waits", "blocks others"]


def test_the_screen_names_who_is_slow() -> None:
    before = two(10, {}, {})
    slow = {"slow_ranks": [{"rank": 1, "factor": 2.96, "seconds": 3.0}], "last_asked": [0, 9]}
    shown = screen.make_screen(before, two(11, slow, {"operations": 5}))
    advice = "rank 1 is slow: a step takes it 3.0 times as long as the others"
    assert shown.jobs[0].advice == advice
    assert shown.jobs[0].rows[1].cells[-1] == "is slow"


def test_a_first_reading_a_silent_process_and_nobody_have_a_screen() -> None:
    first = screen.as_text(screen.make_screen(None, two(10, {}, {})))
    assert "rates come with the next reading" in first
    nobody = screen.make_screen(None, Reading((), (77,), 10.0, {}))
    assert "process 77 does not answer: it is stopped, or busy" in screen.as_text(nobody)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_narrow_screen_leaves_columns_out(columns: int) -> None:
    rows = screen.make_screen(None, two(10, {}, {})).jobs[0].rows
    widths = screen.fitting_columns(rows, columns)
    assert sum(widths.values()) + 2 * len(widths) <= columns
    assert {"RANK", "STEPS/s", "OPS/s", "LATE", "STATE"} <= {screen.TITLES[i] for i in widths}
    assert (len(widths) == len(screen.TITLES)) == (columns == 120)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (7, "7 B"),
        (1.25, "1.25 B"),
        (999, "999 B"),
        (999.7, "1.00 kB"),
        (1e6, "1 MB"),
        (123_456_789, "123 MB"),
        (2.5e15, "2500 TB"),
    ],
)
def test_numbers_are_scaled_to_three_digits(value: float, text: str) -> None:
    assert screen.scaled(value, "B") == text


def test_on_a_terminal_the_screen_is_live_and_leaves_what_was_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {"slow_ranks": [{"rank": 1, "factor": 2.96, "seconds": 3.0}], "last_asked": [0, 9]}
    monkeypatch.setattr(cli, "read_ranks", lambda: two(10, slow, {}))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["--interval", "0.1", "--count", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("\x1b[?1049h\x1b[H\x1b[Jlightcc-top ")
    assert shown.endswith("\x1b[?1049l")
    rows = re.findall(r"\x1b\[1;31m +1 .* is slow\x1b\[0m", shown)
    assert len(rows) == shown.count("\x1b[1;31m") == 2


# -- Programs -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("world")
def test_prometheus_has_every_counter() -> None:
    hvd.allreduce(np.ones(4, np.float32))
    own = own_rank()
    samples = check_exposition(export.as_prometheus(Reading((own,), (5,), 0.0, {})))
    labels = f'{{job="{own.job}",rank="0",pid="{own.pid}"}}'
    assert samples[f"lightcc_operations_total{labels}"] == 1
    assert samples[f"lightcc_payload_bytes_total{labels}"] == 16
    assert samples[f"lightcc_in_flight{labels}"] == 0
    assert samples["lightcc_silent_processes{}"] == 1
    assert "harp_stat_problems{}" in samples  # One path for both.


@pytest.mark.usefixtures("world")
def test_prometheus_can_scrape_ranks() -> None:
    def read() -> str:
        return export.as_prometheus(reading.read_ranks())

    with _metrics_http.MetricsServer(("127.0.0.1", 0), "lightcc-top", read) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with urllib.request.urlopen(server.url) as answer:
            samples = check_exposition(answer.read().decode())
        server.shutdown()
        thread.join()
    assert any(f'pid="{os.getpid()}"' in key for key in samples)


@pytest.mark.usefixtures("world")
def test_the_program_shows_this_rank_as_text_json_and_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fast = ["--interval", "0.1", "--count", "1"]
    assert cli.main(fast) == 0
    assert f"  {os.getpid()}  " in capsys.readouterr().out
    assert cli.main([*fast, "--json"]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    assert os.getpid() in [one["pid"] for one in ranks]
    path = tmp_path / "lightcc.prom"
    assert cli.main([*fast, "--textfile", str(path)]) == 0
    assert f'pid="{os.getpid()}"' in path.read_text()
    assert os.listdir(tmp_path) == ["lightcc.prom"]
    assert cli.main([*fast, "--textfile", str(tmp_path / "no" / "x")]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_the_program_says_where_nobody_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "read_ranks", lambda: Reading((), (), 0.0, {}))
    assert cli.main(["--count", "1"]) == 1
    assert "no rank of yours runs on this machine" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--interval", "0"], ["--count", "x"], ["--serve", "nowhere"]])
def test_wrong_commands_end_with_code_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2


# -- The log --------------------------------------------------------------------------------------


def reduce_once() -> None:
    hvd.init()
    hvd.allreduce(np.ones(2000, np.float32), name="gradient")


def log_of(level: str, **environment: str) -> str:
    with RankProcesses(reduce_once, 2, env={"LIGHT_LOG_LEVEL": level, **environment}) as ranks:
        results = ranks.wait(PATIENCE_S)
    ranks.check(results)
    return "".join(result.output for result in results)


@pytest.mark.multiproc
def test_the_log_tells_what_runs_and_each_bucket() -> None:
    assert log_of("warning") == ""
    info = log_of("info", LIGHT_NUM_STREAMS="2")
    assert f"lightcc {hvd.__version__}, 2 ranks on 1 host: [0-1]" in info
    assert info.count("network: none, as all ranks share this host's memory") == 2
    assert "LIGHT_NUM_STREAMS=2" in info
    assert "bucket" not in info
    apart = log_of("debug", LIGHT_2D_ALLREDUCE="1")
    assert apart.count("ALLREDUCE, 1 tensors from 'allreduce.gradient', 8000 bytes") == 2
