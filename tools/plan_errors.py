"""Compares what lightcc.plan predicts with what `lightcc.bench train` measured on emulated hosts.

    python -m lightcc.bench train --json train.json ...      # as root
    python tools/plan_errors.py train.json [--tcp 200m=156m]

`--tcp LINK=RATE` says what TCP reaches on a link, as `lightcc.bench cluster` shows it. Prints a row
of a table for each variant that the planner knows, and the median and largest error. The error
compares the predicted step with the quickest of the measured ones: what else runs on the machine
only makes steps longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from lightcc.bench.cluster import parse_rate
from lightcc.bench.layer_table import read_table
from lightcc.plan.costs import Costs
from lightcc.plan.steps import predict
from lightcc.plan.variants import Site, Variant
from lightcc.plan.workload import from_table

#: What the benchmark calls them.
VARIANTS = {
    "2d": Variant("2d"),
    "flat": Variant("flat", two_level=False),
    "2d+topk": Variant("2d, top-k", compression="topk"),
    "2d:LIGHT_NUM_STREAMS=4": Variant("2d, 4 lanes", lanes=4),
    "2d:LIGHT_FUSION_STRATEGY=none": Variant("2d, no fusion", fusion="none"),
    "2d:LIGHT_FUSION_STRATEGY=horovod": Variant("2d, as Horovod", fusion="horovod"),
}


def rate_pair(text: str) -> tuple[float, float]:
    """Returns the two rates of LINK=RATE."""
    link, _, tcp = text.partition("=")
    return parse_rate(link), parse_rate(tcp)


def row_of(row: dict[str, Any], tcp: dict[float, float], costs: Costs) -> tuple[str, float]:
    """Returns the line of the table for a measured row, and the error."""
    site = Site(
        hosts=row["hosts"],
        gpus=row["ranks"] // row["hosts"],
        link_bps=row["link_bps"],
        tcp_bps=tcp.get(row["link_bps"], row["link_bps"]),
    )
    workload = from_table(read_table()[row["model"]])
    variant = VARIANTS[row["variant"]]
    predicted = predict(workload, variant, site, costs).step_s
    error = predicted / row["min_s"] - 1
    cells = (
        row["model"],
        f"{row['link_bps'] / 1e9:g} Gb/s",
        variant.name,
        f"{1e3 * predicted:.0f} ms",
        f"{1e3 * row['min_s']:.0f} ms",
        f"{1e3 * row['step_s']:.0f} ms",
        f"{error:+.1%}",
    )
    return f"| {' | '.join(cells)} |", error


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Compares predictions with measured steps.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--tcp", type=rate_pair, action="append", default=[], metavar="LINK=RATE")
    parser.add_argument("--costs", type=Path, metavar="FILE")
    args = parser.parse_args()
    costs = Costs.read(args.costs) if args.costs else Costs()
    lines = [line for file in args.files for line in file.read_text().splitlines()]
    measured = [row for line in lines if (row := json.loads(line))["kind"] == "training"]
    known = [row for row in measured if row["variant"] in VARIANTS and row["time_scale"] == 1]
    rows = [row_of(row, dict(args.tcp), costs) for row in known]
    sys.stdout.write("| model | link | variant | predicted | quickest | median | error |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|\n")
    sys.stdout.writelines(f"{line}\n" for line, _ in rows)
    errors = [abs(error) for _, error in rows]
    sys.stdout.write(f"\n{len(rows)} rows: median error {statistics.median(errors):.1%}, ")
    sys.stdout.write(f"largest {max(errors):.1%}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
