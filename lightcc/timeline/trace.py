"""What one rank's file holds. Times are seconds since that file was started."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NEGOTIATE = "NEGOTIATE_"
_MICROSECOND = 1e-6
#: What a device's row says at the moment at which a bucket's inputs were ready.
READY = "ready"

#: The lowest pid of a lane; those of tensors are below.
#: (csrc/lightcc/engine/timeline/timeline_encoder.cpp)
FIRST_LANE = 2_000_000_000
#: The lowest pid of a device's row; lanes are below.
#: (csrc/lightcc/engine/timeline/device_row_encoder.cpp)
FIRST_DEVICE_ROW = 2_100_000_000


class TraceError(ValueError):
    """A file is not a timeline; the text names it and says why."""


@dataclass
class Operation:
    """One time that a tensor was handed in."""

    name: str
    kind: str  #: "ALLREDUCE", ...
    begin: float
    ticks: dict[int, float] = field(default_factory=dict)  #: When each rank handed it in.
    announced: float | None = None
    started: float | None = None
    finished: float | None = None
    sequence: int | None = None  #: The announcement's number, the same on all ranks.
    lane: int = 0
    num_bytes: int = 0


@dataclass
class Bucket:
    """One collective that a lane ran."""

    lane: str
    algorithm: str  #: "SHM_ALLREDUCE", ...
    start: float
    end: float
    tensors: int = 1
    num_bytes: int = 0
    dense_bytes: int = 0  #: What it would have sent uncompressed.
    sent_bytes: int = 0  #: What was sent of it.


@dataclass
class DeviceSpan:
    """What a GPU's stream did for a bucket, or when the bucket's inputs were ready there."""

    row: str  #: "GPU 0 NCCL".
    algorithm: str  #: The bucket's: "NCCL_ALLREDUCE".
    what: str  #: The call: "ncclAllReduce".
    start: float
    end: float
    sequence: int  #: The announcement's number.
    bucket_bytes: int
    num_bytes: int | None = None  #: Those that it moved, where that is known.
    failed: str = ""  #: Why the GPU did not do it.

    @property
    def is_ready(self) -> bool:
        """Whether it is the moment at which inputs were ready."""
        return self.what == READY


@dataclass
class Trace:
    """One file."""

    path: Path
    rank: int = 0
    size: int = 0  #: Ranks of the job; 0 where the file does not say.
    host: str = ""
    clock: str = ""  #: Files of one clock need no offset.
    steady_s: float = 0.0  #: That clock, when the file was started.
    epoch_s: float = 0.0  #: Time since 1970, when the file was started.
    events: list[dict[str, Any]] = field(default_factory=list)
    tracks: dict[int, str] = field(default_factory=dict)  #: What a pid of `events` stands for.
    operations: list[Operation] = field(default_factory=list)
    buckets: list[Bucket] = field(default_factory=list)
    device_spans: list[DeviceSpan] = field(default_factory=list)
    device_error_s: float = 0.0  #: Their times are wrong by so much at most.
    lost_records: int = 0
    error: str = ""  #: How the job failed.


def read_all(path: str | Path) -> list[Trace]:
    """Reads `path`, rank 0's file, and those of other ranks beside it, by rank.

    Raises:
        TraceError: There is no such file, or one of them is not a timeline.
    """
    first = read(path)
    path = Path(path)
    pattern = re.compile(re.escape(path.stem) + r"\.rank(\d+)" + re.escape(path.suffix))
    found = [(match, other) for other in path.parent.iterdir() if (match := _match(pattern, other))]
    others = [read(other) for _, other in sorted(found, key=lambda pair: int(pair[0][1]))]
    return [first, *others]


def _match(pattern: re.Pattern[str], path: Path) -> re.Match[str] | None:
    return pattern.fullmatch(path.name)


def read(path: str | Path) -> Trace:
    """Reads one file, lightcc's or Horovod's, also if its writer was killed in the middle.

    Raises:
        TraceError: There is no such file, or it is not a timeline.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read: {error}"
        raise TraceError(msg) from error
    trace = Trace(path)
    trace.events = _events(path, text)
    parser = _Parser(trace)
    try:
        for event in trace.events:
            parser.take(event)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        msg = f"{path} is not a timeline: an event lacks what it should have ({error!r})"
        raise TraceError(msg) from error
    return trace


def _events(path: Path, text: str) -> list[dict[str, Any]]:
    try:
        events = json.loads(text)
    except json.JSONDecodeError as error:
        events = _complete_lines(text)
        if not events:
            msg = f"{path} is not a timeline: it is no JSON ({error})"
            raise TraceError(msg) from error
    if isinstance(events, dict):
        events = events.get("traceEvents")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        msg = f"{path} is not a timeline: it holds no list of events"
        raise TraceError(msg)
    return events


def _complete_lines(text: str) -> list[dict[str, Any]]:
    """Returns the events of a file that ends in the middle; each has a line of its own."""
    events = []
    for line in text.splitlines():
        try:
            event = json.loads(line.strip().rstrip(",]"))
        except json.JSONDecodeError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


class _Parser:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._depth: dict[int, int] = {}
        self._current: dict[int, Operation] = {}

    def take(self, event: dict[str, Any]) -> None:
        phase = event.get("ph")
        if phase == "M":
            self._metadata(event)
        elif phase == "i":
            self._mark(event)
        elif phase == "X":
            self._complete(event)
        elif phase == "B":
            self._begin(event)
        elif phase == "E":
            self._end(event)

    def _metadata(self, event: dict[str, Any]) -> None:
        trace, arguments = self._trace, event["args"]
        if event["name"] == "lightcc":
            trace.rank, trace.size = int(arguments["rank"]), int(arguments["size"])
            trace.host, trace.clock = arguments["host"], arguments["clock"]
            trace.steady_s = arguments["steady_us"] * _MICROSECOND
        elif event["name"] == "lightcc_device":
            error_s = arguments["error_us"] * _MICROSECOND
            trace.device_error_s = max(trace.device_error_s, error_s)
        elif event["name"] == "process_name" and "name" in arguments:
            if event["pid"] > 0:  # 0 is the rank.
                trace.tracks[event["pid"]] = arguments["name"]
        elif event["name"] == "process_name":
            trace.epoch_s = arguments["start_time_since_epoch_in_micros"] * _MICROSECOND

    def _mark(self, event: dict[str, Any]) -> None:
        if event["name"] == "LOST_RECORDS":
            self._trace.lost_records += event["args"]["records"]
            self._current.clear()
        elif event["name"] == "LOST_SPANS":
            self._trace.lost_records += event["args"]["spans"]
        elif event["name"] == "WORLD_FAILED":
            self._trace.error = event["args"]["error"]

    def _complete(self, event: dict[str, Any]) -> None:
        pid, at = event["pid"], event["ts"] * _MICROSECOND
        if pid >= FIRST_DEVICE_ROW:
            self._device_span(event)
        elif pid >= FIRST_LANE:
            arguments = event["args"]
            bucket = Bucket(
                lane=self._trace.tracks[pid],
                algorithm=event["name"],
                start=at,
                end=at + event["dur"] * _MICROSECOND,
                tensors=arguments["tensors"],
                num_bytes=arguments["bytes"],
                dense_bytes=arguments.get("topk_dense_bytes", 0),
                sent_bytes=arguments.get("topk_sent_bytes", 0),
            )
            self._trace.buckets.append(bucket)
        elif pid in self._current and event["name"].isdigit():
            self._current[pid].ticks[int(event["name"])] = at

    def _device_span(self, event: dict[str, Any]) -> None:
        arguments, start = event["args"], event["ts"] * _MICROSECOND
        if event["dur"] < 0:
            msg = f"a slice of {event['dur']} us"
            raise ValueError(msg)
        span = DeviceSpan(
            row=self._trace.tracks[event["pid"]],
            algorithm=event["name"],
            what=arguments["what"],
            start=start,
            end=start + event["dur"] * _MICROSECOND,
            sequence=int(arguments["sequence"]),
            bucket_bytes=int(arguments["bucket_bytes"]),
            num_bytes=arguments.get("bytes"),
            failed=arguments.get("failed", ""),
        )
        self._trace.device_spans.append(span)

    def _begin(self, event: dict[str, Any]) -> None:
        pid, what, at = event["pid"], event["name"], event["ts"] * _MICROSECOND
        depth = self._depth.get(pid, 0)
        self._depth[pid] = depth + 1
        if what.startswith(_NEGOTIATE):
            self._open(pid, what.removeprefix(_NEGOTIATE), at)
        elif depth == 0:
            operation = self._current.get(pid)
            if operation is None or operation.announced is None or operation.sequence is not None:
                operation = self._open(pid, what, at)
            operation.announced = at
            arguments = event.get("args", {})
            operation.sequence = arguments.get("sequence", -1)
            operation.lane = arguments.get("lane", 0)
            operation.num_bytes = arguments.get("bytes", 0)
        elif what != "QUEUE" and (operation := self._current.get(pid)) is not None:
            operation.started = at if operation.started is None else operation.started

    def _open(self, pid: int, kind: str, at: float) -> Operation:
        operation = Operation(self._trace.tracks.get(pid, f"tensor {pid}"), kind, at)
        self._current[pid] = operation
        self._trace.operations.append(operation)
        return operation

    def _end(self, event: dict[str, Any]) -> None:
        pid, at = event["pid"], event["ts"] * _MICROSECOND
        self._depth[pid] = max(self._depth.get(pid, 0) - 1, 0)
        operation = self._current.get(pid)
        if operation is None or self._depth[pid] > 0:
            return
        if operation.announced is None:
            operation.announced = at  # The negotiation's end.
        else:
            operation.finished = at
            del self._current[pid]
