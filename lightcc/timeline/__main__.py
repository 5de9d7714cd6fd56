"""`python -m lightcc.timeline merge|summary FILE`: see docs/running/timeline.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc._figures import duration
from lightcc._flags import Parser
from lightcc.timeline import report
from lightcc.timeline.clocks import clock_offsets
from lightcc.timeline.merging import merge
from lightcc.timeline.summary import summarize
from lightcc.timeline.trace import TraceError, read_all

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from lightcc.timeline.trace import Trace


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m lightcc.timeline",
        description="Reads rank 0's timeline FILE, and those of other ranks beside it.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    merging = commands.add_parser("merge", help="one file of all ranks, on one clock")
    summary = commands.add_parser("summary", help="where the steps went, and which rank was late")
    for command in (merging, summary):
        command.add_argument("file", type=Path, metavar="FILE", help="rank 0's timeline")
    merging.add_argument("-o", "--output", type=Path, required=True, metavar="MERGED")
    how = summary.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="for programs")
    how.add_argument("--steps", action="store_true", help="a line for each step, in milliseconds")
    return parser


def _merge(traces: Sequence[Trace], output: Path) -> None:
    if any(output.resolve() == trace.path.resolve() for trace in traces):
        msg = f"{output} is one of the files to merge; give it another name"
        raise TraceError(msg)
    lines = ",\n".join(json.dumps(event) for event in merge(traces))
    output.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    for trace, offset in zip(traces, clock_offsets(traces), strict=True):
        if offset.error_s is None:
            how = "by the time of day, as no operation is in both files"
        else:
            how = f"to {duration(offset.error_s)}" if offset.error_s > 0 else "exactly"
        count = len(trace.operations)
        sys.stdout.write(f"rank {trace.rank}: {count} operations, on rank 0's clock {how}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code: 1 where a file is not what it should be."""
    args = _parser().parse_args(arguments)
    try:
        traces = read_all(args.file)
        if args.command == "merge":
            _merge(traces, args.output)
        else:
            summary = summarize(traces[0])
            if args.json:
                sys.stdout.write(json.dumps(report.as_dict(summary), indent=2) + "\n")
            else:
                sys.stdout.write((report.steps_text if args.steps else report.text)(summary))
    except (TraceError, OSError) as error:
        sys.stderr.write(f"python -m lightcc.timeline: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
