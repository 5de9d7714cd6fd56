"""What the benchmark says of its results: statistics, tables and files."""

from __future__ import annotations

import io
import json
import math
from typing import TYPE_CHECKING

import pytest

from lightcc.bench import cli, report
from lightcc.bench.cases import model_case, size_case
from lightcc.bench.cluster import NominalHosts, parse_rate
from lightcc.bench.measure import MEMCPY, Samples

if TYPE_CHECKING:
    from pathlib import Path


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert report.percentile(values, 99) == 99.0
    assert report.percentile([3.0], 99) == 3.0


def test_rows_compare_best_ways_with_lightcc() -> None:
    case = model_case("vgg16")
    rows = report.make_rows(
        case,
        2,
        [
            Samples("lightcc", "async", [0.2, 0.1, 0.3]),
            Samples("gloo", "bucket25", [0.8, 0.8]),
            Samples("gloo", "async", [1.0]),
            Samples("mpich", "loop", note="died\nlong story"),
            Samples(MEMCPY, "", [0.001]),
        ],
    )
    assert [row.ratio for row in rows] == pytest.approx([1.0, 4.0, 5.0, None, 0.005])
    assert [row.best for row in rows] == [True, True, False, True, True]
    assert rows[0].algbw_gbs == pytest.approx(138_357_544 * 4 / 0.2 / 1e9)
    assert rows[0].busbw_gbs == rows[0].algbw_gbs
    assert rows[4].busbw_gbs is None
    lines = [report.table_line(row) for row in rows]
    assert lines[3].endswith("died")
    assert lines[4].endswith(" 0.005")
    assert " gloo/async * " in lines[2]
    assert lines[0].split()[:4] == ["553", "MB", "lightcc/async", "200"]
    assert max(map(len, [*lines[:3], report.table_header()])) <= 100


def test_rows_of_links_fit_a_terminal() -> None:
    case = size_case("allreduce", 1 << 30, 4, inplace=True)
    (row,) = report.make_rows(
        case,
        4,
        [Samples("2d:LIGHT_NUM_STREAMS=4", "", [12.5], wire_bytes=1 << 30, calls=1)],
        NominalHosts(2, parse_rate("1g")),
    )
    line = report.table_line(row, hosts=True)
    assert line.split()[:4] == ["1G", "2d:LIGHT_NUM_STREAMS=4", "12.5", "s"]
    assert max(len(line), len(report.table_header(hosts=True))) <= 100


def test_json_lines_hold_every_field() -> None:
    case = size_case("allreduce", 4096, 2, inplace=True)
    file = io.StringIO()
    report.write_json(
        file, "result", report.make_rows(case, 2, [Samples("lightcc", "", [1e-5])])[0]
    )
    line = json.loads(file.getvalue())
    assert line["kind"] == "result"
    assert line["size_bytes"] == 4096
    assert math.isclose(line["median_us"], 10.0)


def test_a_file_that_cannot_be_written_is_said_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--json: .*No such file"):
        cli.main(["--json", str(tmp_path / "no" / "x")])
    assert list(tmp_path.iterdir()) == []
