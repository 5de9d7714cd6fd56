"""harp-stat shows what it has read: tables, rates, JSON, Prometheus; and its command line."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from exposition import check_exposition
from processes import run_to_end
from stat_files import (
    ENGINE,
    PEER,
    SESSION,
    Values,
    encode_block,
    encode_file,
    example,
    read_all,
    write,
)

from lightcc._stats import metrics_http as _metrics_http, prometheus as _prometheus
from lightcc.harp.stat import cli, export, files, table
from lightcc.harp.stat.rates import Rates

# -- Output ---------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> tuple[int, str, str]:
    code = cli.main(["--dir", str(folder), *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_without_a_process_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, tmp_path)
    assert (code, out) == (1, "")
    assert f"no process publishes anything of HARP in {tmp_path}" in err
    code, _, err = run(capsys, tmp_path, "--pid", "4242")
    assert code == 1
    assert "process 4242 publishes nothing" in err
    code, _, err = run(capsys, tmp_path / "nowhere")
    assert code == 1
    assert "nowhere cannot be read: No such file" in err


def test_totals_are_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, f"harp-{os.getpid()}-0.stat", encode_file(example()))
    code, out, err = run(capsys, tmp_path, "--paths", "--pid", str(os.getpid()))
    assert (code, err) == (0, "")
    assert f"process {os.getpid()}, since 2023-11-1" in out
    assert re.search(r"eth0/3 +- +inline +- +6\.0 MB", out)
    assert re.search(rf"77 +eth0/3 +{PEER} +open +- +5\.0 MB .* 1\.5 ms .* 250\.0 MB/s", out)
    assert "and 2 sessions that are not shown" in out
    assert re.search(r"\n +1 +77 +eth0/3 .* yes\n", out)
    assert "eth0/3: strangers 5" in out


def test_a_dead_or_silent_process_is_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "harp-1-0.stat", encode_file(example()), is_alive=False)
    _, out, _ = run(capsys, tmp_path)
    assert f"DEAD, it left {path}" in out
    assert PEER in out, "its last counters"
    write(tmp_path, "harp-1-0.stat", encode_file(example(written_ns=1)))
    _, out, _ = run(capsys, tmp_path)
    assert re.search(r"has written nothing for \d+ s; is it stopped\?", out)


def test_problems_go_to_stderr_and_processes_beside_them_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = write(tmp_path, "harp-1-0.stat", b"noise")
    code, out, err = run(capsys, tmp_path)
    assert (code, out) == (1, "")
    assert f"{bad} is no file of counters" in err
    write(tmp_path, "harp-2-0.stat", encode_file(example()))
    code, out, err = run(capsys, tmp_path)
    assert code == 0
    assert PEER in out
    assert str(bad) in err


def test_rates_are_over_the_writers_time(tmp_path: Path) -> None:
    path = write(tmp_path, "harp-1-0.stat", b"")

    def reading(**counts: int) -> files.Reading:
        path.write_bytes(encode_file(example(**counts)))
        return files.read_folder(tmp_path)

    before = reading(turns=100, sent=1000, written_ns=10**9)
    now = reading(turns=300, sent=5000, written_ns=3 * 10**9)
    (engine,) = now.processes[0].engines
    rates = Rates(before, now)
    assert rates.of(path, engine)["turns"] == 100
    assert rates.of(path, engine, engine.below[0])["data_bytes_sent"] == 2000
    assert Rates(now, now).of(path, engine) == {}, "nothing was written in between"
    assert Rates(None, now).of(path, engine) == {}
    shown = export.as_json(now, rates)["processes"][0]["engines"][0]
    assert shown["per_second"]["turns"] == 100
    assert shown["sessions_shown"][0]["per_second"] == {"data_bytes_sent": 2000}
    assert "2.0 kB" in table.as_table(now, rates, is_rate=True)


def test_intervals_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "harp-1-0.stat", encode_file(example()))
    code, out, _ = run(capsys, tmp_path, "--interval", "0.1", "--count", "3")
    assert code == 0
    assert out.count("per second") == 3
    code, out, _ = run(capsys, tmp_path, "--interval", "0.1", "--count", "2", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [one["processes"][0]["pid"] for one in lines] == [os.getpid()] * 2


def test_json_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "harp-1-0.stat", encode_file(example()))
    write(tmp_path, "harp-2-0.stat", b"noise")
    _, out, _ = run(capsys, tmp_path, "--json")
    value = json.loads(out)
    (process,) = value["processes"]
    assert process["state"] == "alive"
    (engine,) = process["engines"]
    assert {name for _, _, name, _, _ in ENGINE} <= set(engine)
    assert engine["sessions_there_are"] == 3
    (session,) = engine["sessions_shown"]
    assert {name for _, _, name, _, _ in SESSION} <= set(session)
    assert session["paths_shown"][1] == {"path": 1, "is_quarantined": 1}
    assert value["problems"][0]["file"].endswith("harp-2-0.stat")


def test_prometheus_gets_its_text_format(tmp_path: Path) -> None:
    write(tmp_path, "harp-1-0.stat", encode_file(example()))
    dead = bytearray(encode_file(example()))
    dead[16:20] = (1).to_bytes(4, "little")
    write(tmp_path, "harp-2-0.stat", bytes(dead), is_alive=False)
    out = export.as_prometheus(files.read_folder(tmp_path))
    samples = check_exposition(out)
    pid = f'pid="{os.getpid()}"'
    engine = f'{pid},device="eth0",engine="3"'
    session = f'{engine},session="77",peer="{PEER}"'
    for key, value in {
        f"harp_process_up{{{pid}}}": 1,
        'harp_process_up{pid="1"}': 0,
        f"harp_engine_turns_total{{{engine}}}": 100,
        f'harp_engine_info{{{engine},mode="inline"}}': 1,
        f"harp_engine_sessions_hidden{{{engine}}}": 2,
        f"harp_session_smoothed_rtt_seconds{{{session}}}": 0.0015,
        f"harp_session_pacing_rate_bytes_per_second{{{session}}}": 250_000_000,
        f"harp_session_data_bytes_sent_total{{{session}}}": 5_000_000,
        f'harp_session_info{{{session},state="open"}}': 1,
        f'harp_path_is_quarantined{{{session},path="1"}}': 1,
        "harp_stat_problems{}": 0,
    }.items():
        assert samples[key] == pytest.approx(value), key
    assert not any('pid="1",' in key for key in samples), "a dead process counts nothing"


def test_prometheus_without_processes_is_no_error(tmp_path: Path) -> None:
    out = export.as_prometheus(files.read_folder(tmp_path))
    assert check_exposition(out) == {"harp_stat_problems{}": 0}


def test_labels_are_escaped() -> None:
    assert _prometheus.escape_label('a\\b"c\nd') == 'a\\\\b\\"c\\nd'
    assert _prometheus.escape_help('a\\b"c\nd') == 'a\\\\b"c\\nd'
    engine: Values = ['a"\\b', 0, "x", 0, 0, 0, 0]
    (record,) = read_all(encode_file([encode_block(engine, [], 0, 2, 1)]))
    process = files.Process(Path("/x"), 1, files.ALIVE, 0, (record,))
    text = export.as_prometheus(files.Reading((process,), ()))
    assert (
        check_exposition(text)[r'harp_engine_turns_total{pid="1",device="a\"\\b",engine="0"}'] == 0
    )


# -- Wrong commands -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9470", ("127.0.0.1", 9470)), (":80", ("", 80)), ("[::1]:0", ("::1", 0))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert _metrics_http.parse_address(text) == address


@pytest.mark.parametrize(
    "options",
    [
        ["--interval", "0"],
        ["--interval", "nan"],
        ["--interval", "x"],
        ["--count", "0"],
        ["--pid", "-1"],
    ],
)
def test_wrong_commands_are_refused_with_what_is_allowed(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(options)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert options[0] in err
    assert "expected" in err


def test_the_folder_is_that_of_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARP_STAT_DIR", str(tmp_path))
    assert cli.main([]) == 1
    assert f"of HARP in {tmp_path}" in capsys.readouterr().err


def test_a_reader_of_the_output_may_leave(tmp_path: Path) -> None:
    write(tmp_path, "harp-1-0.stat", encode_file(example()))
    command = f"{sys.executable} -m lightcc.harp.stat --dir {tmp_path} --interval 0.1 | head -1"
    done = run_to_end(["bash", "-c", command], timeout=60, check=True)
    assert "per second" in done.stdout
    assert done.stderr == ""
