"""What is read out of timelines, on files made by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lightcc.timeline import __main__ as tool, report
from lightcc.timeline.clocks import clock_offsets
from lightcc.timeline.merging import merge
from lightcc.timeline.summary import summarize
from lightcc.timeline.trace import FIRST_DEVICE_ROW, FIRST_LANE, TraceError, read, read_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class File:
    """Events of one rank, in milliseconds."""

    def __init__(self, rank: int = 0, clock: str = "boot", steady_ms: float = 0) -> None:
        about = {"rank": rank, "size": 2, "host": "h", "clock": clock, "steady_us": steady_ms * 1e3}
        start = {"start_time_since_epoch_in_micros": 1e9 + steady_ms * 1e3}
        self.events: list[dict[str, Any]] = []
        self._metadata("process_name", 0, start)
        self._metadata("lightcc", 0, about)
        self._metadata("process_name", FIRST_LANE, {"name": "lane 0"})
        self._names: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    def _metadata(self, name: str, pid: int, args: dict[str, Any]) -> None:
        self.events.append({"name": name, "ph": "M", "pid": pid, "args": args})

    def _event(self, phase: str, pid: int, at_ms: float, **more: Any) -> None:
        self.events.append({"ph": phase, "ts": at_ms * 1e3, "pid": pid} | more)

    def operation(
        self,
        name: str,
        ticks: dict[int, float],
        announced: float,
        run: tuple[float, float],
        sequence: int = 0,
        **topk: int,
    ) -> File:
        if name not in self._names:
            self._names[name] = len(self._names) + 1
            self._metadata("process_name", self._names[name], {"name": name})
        pid = self._names[name]
        self._event("B", pid, min(ticks.values()), name="NEGOTIATE_ALLREDUCE")
        for rank, at in ticks.items():
            self._event("X", pid, at, name=str(rank), dur=0)
        self._event("E", pid, announced)
        args = {"sequence": sequence, "lane": 0, "bytes": 100}
        self._event("B", pid, announced, name="ALLREDUCE", args=args)
        self._event("B", pid, announced, name="QUEUE")
        self._event("E", pid, run[0])
        self._event("B", pid, run[0], name="SHM_ALLREDUCE")
        self._event("E", pid, run[1])
        self._event("E", pid, run[1], args={"dtype": "float32", "shape": "[25]"})
        what = {"tensors": 1, "bytes": 100} | topk
        duration = (run[1] - run[0]) * 1e3
        self._event("X", FIRST_LANE, run[0], name="SHM_ALLREDUCE", dur=duration, args=what)
        return self

    def device(
        self, row: str, times: tuple[float, float], sequence: int, what: str = "", **more: str
    ) -> File:
        """Adds a slice of a GPU's row; without `what` the moment at which inputs were ready."""
        if row not in self._rows:
            self._rows[row] = FIRST_DEVICE_ROW + len(self._rows)
            self._metadata("process_name", self._rows[row], {"name": row})
            self._metadata("lightcc_device", self._rows[row], {"device": 0, "error_us": 12.0})
        args: dict[str, Any] = {"what": what or "ready", "bucket_bytes": 1000, "tensors": 1}
        args |= {"tensor": "a"} | ({"bytes": 600} if what.startswith("copy") else {})
        self._event(
            "X",
            self._rows[row],
            times[0],
            name="NCCL_ALLREDUCE",
            dur=(times[1] - times[0]) * 1e3,
            args=args | {"sequence": sequence} | more,
        )
        return self

    def write(self, path: Path) -> Path:
        path.write_text("[\n" + ",\n".join(json.dumps(event) for event in self.events) + "\n]")
        return path


def two_steps() -> File:
    file = File()
    for step, at in enumerate((0.0, 100.0)):
        # b runs while a is not handed in yet; rank 1 is late with a.
        file.operation("b", {0: at, 1: at + 1}, at + 1, (at + 2, at + 5), 2 * step)
        file.operation("a", {0: at + 10, 1: at + 30}, at + 30, (at + 32, at + 40), 2 * step + 1)
    return file


def test_a_steps_parts_add_up(tmp_path: Path) -> None:
    summary = summarize(read(two_steps().write(tmp_path / "t.json")))
    assert (summary.rank, summary.size, len(summary.steps)) == (0, 2, 2)
    first, last = summary.steps
    assert first.end - first.start == pytest.approx(0.1)
    assert last.end - last.start == pytest.approx(0.04)
    for step in summary.steps:
        assert step.hidden == pytest.approx(0.003)
        assert step.exposed == pytest.approx(0.008)
        assert step.waiting == pytest.approx(0.022)
    assert first.alone == pytest.approx(0.067)
    assert last.alone == pytest.approx(0.007)


def two_steps_on_a_gpu() -> File:
    """Returns steps whose GPU is behind the host: it is in the first one when the second begins."""
    file = two_steps()
    for step, at in enumerate((50.0, 150.0)):
        b, a = 2 * step, 2 * step + 1
        file.device("GPU 0 inputs", (at + 1, at + 1), b)
        file.device("GPU 0 NCCL", (at + 2, at + 6), b, "ncclAllReduce")
        file.device("GPU 0 inputs", (at + 20, at + 20), a)
        # Half of it is hidden. Another stream is busy meanwhile, which counts once.
        file.device("GPU 0 NCCL", (at + 18, at + 22), a, "ncclAllReduce")
        file.device("GPU 0 to host", (at + 21, at + 55), a, "copy to host")
    return file


def test_communication_of_gpus_is_split_by_when_inputs_were_ready_there(tmp_path: Path) -> None:
    summary = summarize(read(two_steps_on_a_gpu().write(tmp_path / "t.json")))
    devices = summary.devices
    assert devices is not None
    assert len(devices.steps) == len(summary.steps) == 2
    for step in devices.steps:
        assert step.by_device
        assert step.hidden == pytest.approx(0.006)
        assert step.exposed == pytest.approx(0.035)
        assert step.communication == pytest.approx(0.041)
    assert devices.error_s == pytest.approx(12e-6)
    assert list(devices.rows) == ["GPU 0 NCCL", "GPU 0 to host"]
    nccl = devices.rows["GPU 0 NCCL"]
    assert (nccl.spans, nccl.num_bytes, nccl.failed) == (4, 4000, 0)
    assert devices.rows["GPU 0 to host"].num_bytes == 1200
    assert nccl.seconds == pytest.approx(0.016)
    # What the host's rows say is not changed by that.
    assert summary.steps[0].hidden == pytest.approx(0.003)
    text = report.text(summary)
    assert "GPUs communicated for 82.0 ms in 2 steps, by their clocks (to 12.0 us):" in text
    assert "before the last inputs of the step were ready on the GPU" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_without_moments_on_the_gpu_the_hosts_are_taken(tmp_path: Path) -> None:
    file = two_steps()
    file.device("GPU 0 NCCL", (2, 5), 0, "ncclAllReduce")
    file.device("GPU 0 NCCL", (32, 40), 1, "ncclAllReduce")
    devices = summarize(read(file.write(tmp_path / "t.json"))).devices
    assert devices is not None
    first, last = devices.steps
    assert not first.by_device
    assert first.hidden == pytest.approx(0.003)
    assert first.exposed == pytest.approx(0.008)
    assert last.communication == 0


def test_what_a_gpu_did_not_end_is_said_and_not_counted(tmp_path: Path) -> None:
    file = two_steps_on_a_gpu()
    file.device("GPU 0 NCCL", (200, 900), 3, "ncclAllReduce", failed="rank 1 is gone")
    summary = summarize(read(file.write(tmp_path / "t.json")))
    devices = summary.devices
    assert devices is not None
    assert devices.rows["GPU 0 NCCL"].failed == 1
    assert devices.rows["GPU 0 NCCL"].seconds == pytest.approx(0.016)
    text = report.text(summary)
    assert "1 failed" in text
    assert "the first failure on a row: rank 1 is gone" in text


def test_parts_of_a_bucket_move_its_bytes_together(tmp_path: Path) -> None:
    file = two_steps()
    for start in (2, 3, 4):
        file.device("GPU 0 NCCL", (start, start + 1), 0, "ncclReduceScatter")
    devices = summarize(read(file.write(tmp_path / "t.json"))).devices
    assert devices is not None
    assert (devices.rows["GPU 0 NCCL"].spans, devices.rows["GPU 0 NCCL"].num_bytes) == (3, 1000)


def test_lost_spans_count_as_missing(tmp_path: Path) -> None:
    file = two_steps_on_a_gpu()
    lost = {"ph": "i", "name": "LOST_SPANS", "ts": 5, "pid": 0, "s": "p", "args": {"spans": 3}}
    file.events.append(lost)
    trace = read(file.write(tmp_path / "t.json"))
    assert trace.lost_records == 3
    assert len(trace.operations) == 4


@pytest.mark.parametrize("make", [two_steps, two_steps_on_a_gpu])
def test_each_step_has_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[], File]
) -> None:
    path = make().write(tmp_path / "t.json")
    assert tool.main(["summary", "--steps", str(path)]) == 0
    header, first, last = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["step", "took", "alone", "hidden"]
    assert [float(number) for number in first.split()[:4]] == [0, 100, 67, 3]
    assert last.split()[0] == "1"
    if make is two_steps_on_a_gpu:
        assert header.endswith("GPU hidden GPU exposed")
        assert [float(number) for number in last.split()[-2:]] == [6, 35]


def test_rows_of_gpus_are_merged_behind_lanes(tmp_path: Path) -> None:
    two_steps_on_a_gpu().write(tmp_path / "t.json")
    events = merge(read_all(tmp_path / "t.json"))
    rows = sorted(
        (event["tid"], event["args"]["name"])
        for event in events
        if event.get("name") == "thread_name"
    )
    assert [name for _, name in rows] == [
        "lane 0",
        "GPU 0 inputs",
        "GPU 0 NCCL",
        "GPU 0 to host",
        "b",
        "a",
    ]
    (about,) = [event["args"] for event in events if event.get("name") == "lightcc"]
    assert about["device_error_s"] == pytest.approx(12e-6)


def test_the_late_rank_is_the_one_all_others_waited_for(tmp_path: Path) -> None:
    summary = summarize(read(two_steps().write(tmp_path / "t.json")))
    assert summary.late_rank == 1
    assert summary.late[0].seconds == pytest.approx(2 * 0.021)
    assert (summary.late[0].operations, summary.compared_operations) == (4, 4)
    assert summary.slowest[0][0] == "a"
    file = File().operation("a", {0: 0, 1: 0.01}, 0.02, (1, 100))
    even = summarize(read(file.write(tmp_path / "even.json")))
    assert even.late_rank is None
    assert "no rank was late" in report.text(even)


def test_what_top_k_saved_is_summed(tmp_path: Path) -> None:
    file = File()
    topk = {"topk_dense_bytes": 1000, "topk_sent_bytes": 20}
    file.operation("a", {0: 0}, 1, (2, 3), 0, **topk)
    file.operation("b", {0: 4}, 5, (6, 7), 1, **topk)
    summary = summarize(read(file.write(tmp_path / "t.json")))
    assert (summary.dense_bytes, summary.sent_bytes) == (2000, 40)
    text = report.text(summary)
    assert "compression sent 40 B instead of 2.00 kB: 98.0% saved" in text
    assert "which rank was late is in rank 0's file" in text


def test_files_of_one_machine_share_its_clock(tmp_path: Path) -> None:
    two_steps().write(tmp_path / "t.json")
    File(1, steady_ms=7).write(tmp_path / "t.rank1.json")
    traces = read_all(tmp_path / "t.json")
    offset = clock_offsets(traces)[1]
    assert offset.seconds == pytest.approx(0.007)
    assert offset.error_s == 0


def test_files_of_two_machines_are_compared_by_their_operations(tmp_path: Path) -> None:
    # Rank 1's clock is 50 ms behind; ways take 1 ms up at least, and 3 ms down.
    first, second = File(clock="one"), File(1, clock="other", steady_ms=12345)
    for sequence, (at, up, down) in enumerate([(100.0, 1, 9), (200.0, 5, 3)]):
        heard = at + up
        ticks = {0: at - 5, 1: heard}
        first.operation("a", ticks, heard, (heard + 10, heard + 11), sequence)
        there = heard + down - 50
        second.operation("a", {1: at - 50}, there, (there + 10, there + 11), sequence)
    first.write(tmp_path / "t.json")
    second.write(tmp_path / "t.rank1.json")
    offset = clock_offsets(read_all(tmp_path / "t.json"))[1]
    assert offset.error_s == pytest.approx(0.002)
    assert offset.seconds == pytest.approx(0.050 + (0.001 - 0.003) / 2)
    lonely = File(1, clock="third", steady_ms=40).write(tmp_path / "t.rank1.json")
    offset = clock_offsets([read(tmp_path / "t.json"), read(lonely)])[1]
    assert offset.seconds == pytest.approx(0.040)
    assert offset.error_s is None


def test_a_merged_file_has_a_process_for_each_rank(tmp_path: Path) -> None:
    two_steps().write(tmp_path / "t.json")
    other = File(1, steady_ms=-3)
    other.operation("b", {1: 4}, 5, (6, 7)).write(tmp_path / "t.rank1.json")
    output = tmp_path / "merged"
    assert tool.main(["merge", str(tmp_path / "t.json"), "-o", str(output)]) == 0
    events = json.loads(output.read_text())
    assert events == merge(read_all(tmp_path / "t.json"))
    assert {event["pid"] for event in events} == {0, 1}
    named = [e["args"]["name"] for e in events if e.get("name") == "process_name"]
    assert named == ["rank 0 on h", "rank 1 on h"]
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event.get("name") == "thread_name"
    }
    assert set(threads.values()) == {"lane 0", "a", "b"}
    timed = [event for event in events if event["ph"] != "M"]
    assert all((event["pid"], event["tid"]) in threads for event in timed)
    begun = {pid: min(e["ts"] for e in timed if e["pid"] == pid) for pid in (0, 1)}
    assert begun == {0: pytest.approx(3000), 1: pytest.approx(4000)}


def test_a_merged_file_is_in_order_by_what_perfetto_sorts_by(tmp_path: Path) -> None:
    for rank in (0, 2, 10):
        file = File(rank).operation("a", {rank: 1}, 2, (3, 4))
        file.events.append({"ph": "i", "name": "CYCLE_START", "ts": 5000, "pid": 0, "s": "p"})
        file.write(tmp_path / ("t.json" if rank == 0 else f"t.rank{rank}.json"))
    events = merge(read_all(tmp_path / "t.json"))
    ranks = [e["args"]["name"] for e in events if e.get("name") == "process_name"]
    assert ranks == sorted(ranks) == ["rank 00 on h", "rank 02 on h", "rank 10 on h"]
    threads = sorted(
        (event["pid"], event["tid"], event["args"]["name"])
        for event in events
        if event.get("name") == "thread_name"
    )
    rows = ("marks", "lane 0", "a")
    # One that has its process' number is the main thread.
    assert threads == [(rank, 11 + i, rows[i]) for rank in (0, 2, 10) for i in range(3)]
    assert [(event["tid"], event["s"]) for event in events if event["ph"] == "i"] == [(11, "t")] * 3


def test_a_merge_does_not_overwrite_what_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = two_steps().write(tmp_path / "t.json")
    before = path.read_text()
    assert tool.main(["merge", str(path), "-o", str(path)]) == 1
    assert "give it another name" in capsys.readouterr().err
    assert path.read_text() == before


def test_a_file_cut_in_the_middle_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = two_steps().write(tmp_path / "t.json")
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    trace = read(path)
    assert 0 < len(trace.operations) < 4
    assert summarize(trace).seconds > 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is no JSON"),
        ("{}", "it holds no list of events"),
        ("[1]", "it holds no list of events"),
        ('[{"ph": "B", "pid": 1}]', "an event lacks what it should have"),
        ('[{"ph": "X", "name": "1", "pid": 1, "ts": "now"}]', "an event lacks"),
        ('[{"ph": "X", "name": "N", "pid": 2100000000, "ts": 1, "dur": 1}]', "an event lacks"),
        (
            '[{"ph": "M", "name": "process_name", "pid": 2100000000, "args": {"name": "GPU 0"}},\n'
            '{"ph": "X", "name": "N", "pid": 2100000000, "ts": 1, "dur": -1, "args": {}}]',
            "a slice of -1 us",
        ),
    ],
)
def test_what_is_no_timeline_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=why):
        read(path)
    assert tool.main(["summary", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_horovods_own_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "horovod.json"
    path.write_text(
        '[\n{"name": "process_name", "ph": "M", "pid": 0, '
        '"args": {"start_time_since_epoch_in_micros":1700000000000000}},\n'
        '{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.x"}},\n'
        '{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 10, "pid": 1},\n'
        '{"ph": "X", "name": "1", "ts": 11, "pid": 1, "dur": 0},\n'
        '{"ph": "X", "name": "0", "ts": 1011, "pid": 1, "dur": 0},\n'
        '{"ph": "E", "ts": 1012, "pid": 1},\n'
        '{"ph": "B", "name": "ALLREDUCE", "ts": 1020, "pid": 1},\n'
        '{"ph": "B", "name": "GLOO_ALLREDUCE", "ts": 1030, "pid": 1},\n'
        '{"ph": "E", "ts": 1050, "pid": 1},\n'
        '{"ph": "E", "ts": 1060, "pid": 1, "args": {"dtype": "float32", "shape": "[3]"}},\n'
        '{"ph": "i", "name": "CYCLE_START", "ts": 1070, "s": "g"}]'
    )
    trace = read(path)
    (operation,) = trace.operations
    assert (operation.name, operation.kind) == ("allreduce.x", "ALLREDUCE")
    assert operation.finished == pytest.approx(1060e-6)
    assert summarize(trace).late_rank == 0


def test_a_summary_for_programs_and_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = two_steps().write(tmp_path / "t.json")
    assert tool.main(["summary", "--json", str(path)]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["late_rank"] == 1
    assert reported["steps"][0]["alone"] == pytest.approx(0.067)
    assert "devices" in reported
    path = two_steps_on_a_gpu().write(tmp_path / "t.json")
    assert tool.main(["summary", "--json", str(path)]) == 0
    devices = json.loads(capsys.readouterr().out)["devices"]
    assert devices["hidden"] == pytest.approx(0.012)
    assert devices["rows"]["GPU 0 NCCL"]["spans"] == 4
    assert tool.main(["summary", str(path)]) == 0
    text = capsys.readouterr().out
    assert "rank 1 was late: look there first" in text
    assert "SHM_ALLREDUCE" in text
    assert all(len(line) <= 100 for line in text.splitlines())
