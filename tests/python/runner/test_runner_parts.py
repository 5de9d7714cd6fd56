"""The launcher's parts that need no process: hosts, flags, lines, frames, the summary."""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path

import pytest

from lightcc import _addresses
from lightcc.runner import flags
from lightcc.runner.agent import frames
from lightcc.runner.agent.agent_job import job_for
from lightcc.runner.arguments import InfoRequest, LaunchOptions, StoreRequest, parse
from lightcc.runner.environment import (
    default_environment,
    dialed_environment,
    forwarded_environment,
    slot_environment,
)
from lightcc.runner.hosts import (
    Host,
    HostError,
    Slot,
    assign_slots,
    number_ranks,
    parse_hosts,
    read_hostfile,
)
from lightcc.runner.network import NetworkError, StorePlan, is_local, plan_store
from lightcc.runner.output import MAX_HELD_LINES, MAX_LINE_BYTES, LineCutter, RankStream, Sink
from lightcc.runner.summary import RankEnd, early_leaver, failure_lines, first_failure, hint


def launch_options(*argv: str) -> LaunchOptions:
    options = parse(argv)
    assert isinstance(options, LaunchOptions)
    return options


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        parse(argv)
    assert leaving.value.code == 2
    return capsys.readouterr().err


# -- Hosts ----------------------------------------------------------------------------------------


def test_host_list_gives_names_and_slots() -> None:
    assert parse_hosts("a:2,me@b.example,[fd00::1]:3") == [
        Host("a", 2),
        Host("me@b.example", 1),
        Host("fd00::1", 3),
    ]


def test_a_host_named_twice_has_the_sum_of_its_slots() -> None:
    assert parse_hosts("a:2,b:1,a:1") == [Host("a", 3), Host("b", 1)]


@pytest.mark.parametrize(
    "text", ["", "a,,b", "-oProxyCommand=x", "a:0", "a:x", "a b", "a:99999999"]
)
def test_malformed_host_lists_are_refused_by_entry(text: str) -> None:
    with pytest.raises(HostError, match="--hosts"):
        parse_hosts(text)


def test_hostfile_takes_both_spellings_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# cluster\na slots=2\n\nb:3  # fast\nc\n")
    assert read_hostfile(path) == [Host("a", 2), Host("b", 3), Host("c", 1)]


def test_hostfile_takes_limits_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    text = "a slots=2 max_slots=4\nb max-slots=3\nc:2 max_slots = 5\n"
    path.write_text(text, encoding="utf-8-sig")
    assert read_hostfile(path) == [Host("a", 2), Host("b", 3), Host("c", 2)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a slots=2\nb slot=2\n", ":2: "), ("# nothing\n", "names no host"), ("-x\n", ":1: ")],
)
def test_hostfile_errors_name_file_and_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(HostError, match=expected) as caught:
        read_hostfile(path)
    assert str(path) in str(caught.value)


def test_uneven_hosts_number_local_and_cross_ranks_as_horovod_does() -> None:
    slots = assign_slots([Host("a", 3), Host("b", 1), Host("c", 2)], None)
    assert slots == [
        Slot("a", 0, 6, 0, 3, 0, 3),
        Slot("a", 1, 6, 1, 3, 0, 2),
        Slot("a", 2, 6, 2, 3, 0, 1),
        Slot("b", 3, 6, 0, 1, 1, 3),
        Slot("c", 4, 6, 0, 2, 2, 3),
        Slot("c", 5, 6, 1, 2, 1, 2),
    ]


def test_ranks_of_a_host_need_not_be_adjacent() -> None:
    assert [(slot.local_rank, slot.cross_rank) for slot in number_ranks(["a", "b", "a", "b"])] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_too_few_slots_is_an_error_that_counts_them() -> None:
    with pytest.raises(HostError, match=r"-np 5 needs 5 slots, but the hosts have 3 \(a:2, b:1\)"):
        assign_slots([Host("a", 2), Host("b", 1)], 5)


# -- Flags ----------------------------------------------------------------------------------------


def test_flags_after_the_command_belong_to_the_command() -> None:
    options = launch_options("-np", "2", "train.py", "-np", "9", "--hosts", "x", "-v")
    assert options.command == ["train.py", "-np", "9", "--hosts", "x", "-v"]
    assert len(options.slots) == 2


def test_double_dash_separates_the_command() -> None:
    assert launch_options("-np", "1", "--", "ls", "--", "x").command == ["ls", "--", "x"]


def test_without_np_every_slot_is_used() -> None:
    assert len(launch_options("-H", "a:2,b:1", "x").slots) == 3


def test_tuning_flags_become_variables_and_others_set_nothing() -> None:
    assert launch_options("-np", "1", "--gloo", "x").environment == {}
    autotuned = launch_options("-np", "1", "--autotune", "--autotune-log-file", "log.csv", "x")
    assert autotuned.environment == {}
    assert autotuned.command == ["x"]
    environment = launch_options(
        *("-np", "1", "--fusion-threshold-mb", "32", "--cache-capacity", "7"),
        *("--no-stall-check", "--stall-check-warning-time-seconds", "1.5"),
        *("--stall-check-shutdown-time-seconds", "9", "--log-level", "debug"),
        *("--log-hide-timestamp", "--network-interfaces", "eth0,eth1", "x"),
    ).environment
    expected = {
        "LIGHT_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "1.5",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9",
        "LIGHT_LOG_LEVEL": "debug",
        "HOROVOD_LOG_HIDE_TIME": "1",
        "LIGHT_IFACE": "eth0,eth1",
    }
    assert environment.items() >= expected.items()
    unfused = launch_options("-np", "1", "--fusion-threshold-mb", "0", "--start-timeout", "5", "x")
    assert unfused.start_timeout_s == 5
    assert unfused.environment == {"LIGHT_FUSION_STRATEGY": "none", "HOROVOD_START_TIMEOUT": "5"}


SPELLINGS = [(flag, name) for flag in flags.REFUSED + flags.NOTED for name in flag.names.split()]


@pytest.mark.parametrize(("flag", "name"), SPELLINGS)
def test_refused_flags_say_why_and_noted_ones_cost_a_line(
    capsys: pytest.CaptureFixture[str], flag: flags.Flag, name: str
) -> None:
    given = [name, *["5"] * flag.values]
    if flag in flags.REFUSED:
        for argv in ([*given, "-np", "1", "x"], given):
            assert f"{flag.name}: {flag.reason}" in error_of(capsys, *argv)
    else:
        options = launch_options(*given, "-np", "1", "x")
        assert options.notes == [f"{flag.name} has no effect: {flag.reason}"]
        assert (options.command, options.environment) == (["x"], {})


def test_a_flag_and_its_opposite_are_told_apart() -> None:
    for given in ("--torus-allreduce", "--no-torus-allreduce"):
        (note,) = launch_options(given, "-np", "1", "x").notes
        assert note.startswith(f"{given} has no effect")
    assert launch_options("-np", "1", "x").notes == []


def test_the_cycle_reaches_the_strategy_that_has_one() -> None:
    options = launch_options("--cycle-time-ms", "2.5", "-np", "1", "x")
    assert options.environment == {"HOROVOD_CYCLE_TIME": "2.5"}
    assert "LIGHT_FUSION_STRATEGY=horovod" in options.notes[0]


@pytest.mark.parametrize("flag", ["-np2", "-n 2", "--np 2", "--nproc-per-node 2"])
def test_other_launchers_spellings_of_the_ranks_work(flag: str) -> None:
    options = launch_options(*flag.split(), "--tag-output", "--log-dir", "logs", "x", "-np3")
    assert (len(options.slots), options.output_directory) == (2, Path("logs"))
    assert options.command == ["x", "-np3"]


def test_the_old_spelling_of_the_interfaces_works() -> None:
    assert launch_options("--network-interface", "eth0", "-np", "1", "x").interfaces == ["eth0"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["x"], "-np says how many ranks"),
        (["-np", "2"], "no command"),
        (["-np", "0", "x"], "'0' is not a number of ranks"),
        (["-np", "two", "x"], "'two' is not a number of ranks"),
        (["-np", "2", "--start-timeout", "nan", "x"], "'nan' is not a number of seconds"),
        (["-np", "2", "--log-level", "loud", "x"], "invalid choice"),
        (["-np", "2", "--nonsense", "x"], "--nonsense"),
        (["-np", "2", "--verbos=1", "x"], "--verbos=1; did you mean --verbose?"),
        (["-H", "a:2", "--nproc-per-node", "2", "x"], "--nproc-per-node is for one host"),
        (["-H", "a:2", "-hostfile", "f", "x"], "give one of them"),
        (["-H", "a:2", "-np", "3", "x"], "have 2"),
        (["-H", "-oProxyCommand=evil", "x"], "expected one argument"),
        (["-np", "1", "-i", "/no/such/key", "x"], "/no/such/key is not a file"),
        (["-np", "1", "--network-interfaces", "a,,b", "x"], "empty name"),
        (["-np", "1", "--cycle-time-ms", "soon", "x"], "'soon' is not a number of milliseconds"),
    ],
)
def test_mistakes_end_with_code_2_and_the_reason(
    capsys: pytest.CaptureFixture[str], argv: list[str], expected: str
) -> None:
    assert expected in error_of(capsys, *argv)


def test_version_and_check_build_need_nothing_else() -> None:
    assert parse(["--version"]) == InfoRequest(check_build=False)
    assert parse(["-cb"]) == InfoRequest(check_build=True)


# -- Environment ----------------------------------------------------------------------------------


def test_a_rank_sees_both_spellings_of_its_place() -> None:
    slot = number_ranks(["a", "a", "b"])[1]
    environment = slot_environment(slot, rendezvous="1.2.3.4:5", secret="s")
    for name in (
        "RANK",
        "SIZE",
        "LOCAL_RANK",
        "LOCAL_SIZE",
        "CROSS_RANK",
        "CROSS_SIZE",
        "HOSTNAME",
    ):
        assert environment[f"LIGHT_{name}"] == environment[f"HOROVOD_{name}"]
    assert environment["LIGHT_RENDEZVOUS"] == "1.2.3.4:5"
    assert environment["LIGHT_SECRET"] == "s"
    assert environment["HOROVOD_CONTROLLER"] == "gloo"
    assert "HOROVOD_SECRET" not in environment


@pytest.mark.parametrize(
    ("flags", "variables", "found"),
    [
        ([], {}, "defaults"),
        (["--horovod"], {}, ""),
        ([], {"LIGHTCC_HOROVOD": "1"}, ""),
        ([], {"LIGHT_RANK": "3"}, "environment"),  # The launcher is a child of a rank.
    ],
)
def test_ranks_are_told_where_torch_distributed_meets(
    flags: list[str], variables: dict[str, str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIGHT_RANK", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    options = launch_options("-H", "a:1,b:2", *flags, "x")
    job = job_for("b", options, {}, "c:1", "s", ("a", 7))
    told = {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "a"}
    told["MASTER_PORT"] = "7"
    for kind in ("defaults", "environment"):
        about = job["ranks"][1][kind]
        assert {name: about.get(name) for name in told} == (
            told if kind == found else dict.fromkeys(told)
        )


def test_the_login_session_is_not_forwarded() -> None:
    mine = {"OMP_NUM_THREADS": "1", "HOME": "/h", "SSH_AUTH_SOCK": "/s", "PATH": "/bin", "PWD": "/"}
    of_pod = {"KUBERNETES_PORT": "1", "OMPI_MCA_x": "1", "NVIDIA_VISIBLE_DEVICES": ""}
    assert forwarded_environment(mine | of_pod) == {"OMP_NUM_THREADS": "1", "PATH": "/bin"}


def test_of_the_launcher_a_dialled_rank_sees_what_concerns_lightcc() -> None:
    mine = {"LIGHT_IFACE": "eth1", "HOROVOD_X": "1", "LIGHT_SECRET": "s", "LIGHT_SECRET_FILE": "f"}
    assert dialed_environment(mine | {"PATH": "/bin", "TOKEN": "t"}) == {
        "LIGHT_IFACE": "eth1",
        "HOROVOD_X": "1",
    }


# -- Network --------------------------------------------------------------------------------------


def test_loopback_may_have_ipv6_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_addresses, "is_own", lambda _, address: address == "::1")
    assert plan_store(["localhost"], []) == StorePlan("::1", {"localhost": "::1"})
    assert _addresses.to_dial(_addresses.every_address()) == "::1"


def test_a_deleted_working_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the working directory was deleted" in error_of(capsys, "-np", "2", "true")


def test_a_local_job_keeps_its_store_on_loopback() -> None:
    assert is_local("localhost")
    assert plan_store(["localhost"], ["lo"]).bind == "127.0.0.1"


def test_a_named_interface_decides_the_store_address() -> None:
    plan = plan_store(["localhost", "host.invalid"], ["lo"])
    assert plan.bind == "127.0.0.1"
    assert plan.advertised == {"localhost": "127.0.0.1", "host.invalid": "127.0.0.1"}


def test_unknown_interface_lists_the_candidates() -> None:
    text = (
        r"--network-interfaces: no interface 'nic9' .* is up; candidates: .*\blo \(127\.0\.0\.1\)"
    )
    with pytest.raises(NetworkError, match=text):
        plan_store(["host.invalid"], ["nic9"])
    with pytest.raises(NetworkError, match=text):
        plan_store(["localhost"], ["lo", "nic9"])


def test_a_host_that_does_not_resolve_is_named_first() -> None:
    text = r"^host 'host\.invalid' cannot be resolved: .*--network-interfaces"
    with pytest.raises(NetworkError, match=text):
        plan_store(["localhost", "host.invalid"], [])


# -- Output ---------------------------------------------------------------------------------------


def test_lines_come_out_whole_however_the_bytes_arrive() -> None:
    data = b"one\n\xff\x00two\r\nprogress 1\rprogress 2\r\n\nlast"
    whole = [b"one\n", b"\xff\x00two\r\n", b"progress 1\r", b"progress 2\r\n", b"\n", b"last\n"]
    for seed in range(50):
        rng = random.Random(seed)
        cutter = LineCutter()
        lines, rest = [], data
        while rest:
            length = rng.randint(1, 6)
            lines += cutter.feed(rest[:length])
            rest = rest[length:]
        assert [*lines, cutter.finish()] == whole, f"seed {seed}"


def test_an_endless_line_is_cut_and_memory_bounded() -> None:
    cutter = LineCutter()
    lines = cutter.feed(b"x" * (MAX_LINE_BYTES + 1))
    assert [len(line) for line in lines] == [MAX_LINE_BYTES + 2]
    assert cutter.finish() == b""


def test_a_stream_prefixes_lines_copies_bytes_and_keeps_the_tail(tmp_path: Path) -> None:
    out = io.BytesIO()
    copy = Sink((tmp_path / "stderr").open("wb", buffering=0), "a file", pytest.fail)
    stream = RankStream(out, b"[3]<stderr>: ", timestamps=False, copy_to=copy)
    for number in range(30):
        stream.feed(b"line %d\n" % number)
    stream.feed(b"end")
    stream.finish()
    lines = out.getvalue().splitlines()
    assert lines[0] == b"[3]<stderr>: line 0"
    assert lines[-1] == b"[3]<stderr>: end"
    assert list(stream.tail)[-2:] == [b"line 29", b"end"]
    assert len(stream.tail) == 20
    assert (tmp_path / "stderr").read_bytes().endswith(b"line 29\nend")


@pytest.mark.parametrize(
    ("on_terminal", "expected"), [(True, b"[1]\r[1] 5%\r[1]10%\n"), (False, b"[1] 5%\n[1]10%\n")]
)
def test_bars_are_lines_in_a_file_and_bars_on_a_terminal(
    on_terminal: bool, expected: bytes
) -> None:
    out = io.BytesIO()
    stream = RankStream(out, b"[1]", timestamps=False, copy_to=None, on_terminal=on_terminal)
    stream.feed(b"\r 5%\r10%")
    stream.finish()
    assert out.getvalue() == expected


def test_a_traceback_is_held_until_it_is_released() -> None:
    out = io.BytesIO()
    begun: list[RankStream] = []
    stream = RankStream(out, b"[1]", timestamps=False, copy_to=None, on_traceback=begun.append)
    stream.feed(b"before\nTraceback (most recent call last):\n  File\nValueError: x\n")
    assert out.getvalue() == b"[1]before\n"
    assert begun == [stream]
    assert stream.ends_with_traceback
    stream.release()
    stream.feed(b"after\n")
    assert out.getvalue().splitlines()[1:] == [
        b"[1]Traceback (most recent call last):",
        b"[1]  File",
        b"[1]ValueError: x",
        b"[1]after",
    ]


def test_a_traceback_without_end_is_not_held_for_ever() -> None:
    out = io.BytesIO()
    stream = RankStream(out, b"", timestamps=False, copy_to=None, on_traceback=lambda _stream: None)
    stream.feed(b"Traceback (most recent call last):\n")
    stream.feed(b"  File\n" * MAX_HELD_LINES)
    assert len(out.getvalue().splitlines()) == MAX_HELD_LINES + 1


def test_a_file_that_cannot_be_written_is_given_up_once_and_named() -> None:
    reported: list[str] = []
    with Path("/dev/full").open("wb") as full:
        sink = Sink(full, "the log", reported.append)
        for _ in range(3):
            sink.write(b"x" * 10_000)
        sink.close()
    assert reported == ["cannot write the log: No space left on device; output is lost"]


# -- Frames ---------------------------------------------------------------------------------------


def test_frames_survive_any_cutting() -> None:
    sent = [frames.Frame(frames.STDOUT, 7, b"x" * n) for n in (0, 1, 300)]
    data = b"".join(frames.encode(*frame) for frame in sent)
    reader = frames.FrameReader()
    received = [frame for i in range(len(data)) for frame in reader.feed(data[i : i + 1])]
    assert received == sent


@pytest.mark.parametrize("data", [b"Last login: today", b"O\0\0\0\0\xff\xff\xff\xff"])
def test_what_is_not_a_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.FrameReader().feed(data)


# -- Summary --------------------------------------------------------------------------------------


def test_a_rank_that_fell_over_another_is_not_blamed() -> None:
    victim = RankEnd(0, "a", 1, [b"lightcc.HorovodInternalError: rank 1 failed"])
    culprit = RankEnd(1, "b", 1, [b"Traceback", b"ValueError: bad loss"])
    assert first_failure([victim, culprit]) is culprit
    assert first_failure([victim]) is victim


def test_the_first_failing_rank_comes_last_with_its_words() -> None:
    killed = RankEnd(2, "b", -9, [b"out of luck"])
    lines = failure_lines([killed, RankEnd(0, "a", 3)], ended=1)
    assert lines == [
        b"lightccrun: also failed: rank 0 on a: exit code 3",
        b"lightccrun: 1 other rank was ended",
        b"lightccrun: failed first: rank 2 on b: killed by SIGKILL (exit code 137); "
        b"its last lines on standard error:",
        b"lightccrun:     out of luck",
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            b"ModuleNotFoundError: No module named 'lightcc'",
            f"no lightcc; lightccrun is of {sys.executable}",
        ),
        (b"ModuleNotFoundError: No module named 'horovod'", "only with --horovod, and not where"),
        (b"bdb.BdbQuit", "breakpoint() found no input on rank 3: rank 0 alone"),
        (b"ModuleNotFoundError: No module named 'x'", ""),
    ],
)
def test_last_words_that_hide_their_cause_have_it_named(words: bytes, expected: str) -> None:
    found = hint(RankEnd(3, "a", 1, [b"Traceback", words]), ["python", "train.py"])
    assert expected in found
    assert bool(found) == bool(expected)


LEFT = b"lightcc.exceptions.ShutDownError: lightcc ... by rank 1 finishing before the others."


def test_a_rank_that_left_early_is_named() -> None:
    failures = [RankEnd(2, "b", 1, [LEFT]), RankEnd(0, "a", 1, [LEFT])]
    hosts = {0: "a", 1: "a", 2: "b"}
    left = early_leaver(failures, hosts)
    assert left == "rank 1 on a finished while others still waited for it: fewer steps?"
    assert failure_lines(failures, 0, left) == [
        b"lightccrun: failed: rank 2 on b: exit code 1",
        b"lightccrun: failed: rank 0 on a: exit code 1",
        b"lightccrun: rank 1 on a finished while others still waited for it: fewer steps?",
    ]


def test_a_rank_that_failed_did_not_leave_early() -> None:
    hosts = {0: "a", 1: "a"}
    assert not early_leaver(
        [RankEnd(0, "a", 1, [LEFT]), RankEnd(1, "a", 1, [b"ValueError"])], hosts
    )
    assert not early_leaver([RankEnd(0, "a", 1, [LEFT]), RankEnd(1, "a", -9)], hosts)
    assert not early_leaver([RankEnd(0, "a", 1, [b"ValueError"])], hosts)


def test_the_store_alone_takes_an_address() -> None:
    assert parse(["--store", "10.0.0.1"]) == StoreRequest("10.0.0.1", 0)
    assert parse(["--store", "node-a:29400"]) == StoreRequest("node-a", 29400)
    assert parse(["--store", "[fd00::1]:29400"]) == StoreRequest("fd00::1", 29400)
    assert parse(["--store", "[fd00::1]"]) == StoreRequest("fd00::1", 0)


@pytest.mark.parametrize("text", ["", ":1", "fd00::1", "a:65536", "a:b", "[::1"])
def test_the_store_refuses_what_is_no_address(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--store", text])
    assert "is not HOST or HOST:PORT" in capsys.readouterr().err


def test_help_says_what_is_refused_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    assert "SUPPRESS" not in text
    refused = text[text.index("refused, and why:") : text.index("accepted without effect")]
    for flag in flags.REFUSED:
        assert flag.name in refused
        assert " ".join(flag.reason.split()) in " ".join(refused.split())


def test_ranks_of_a_host_compute_on_one_thread_unless_told_otherwise() -> None:
    two = assign_slots([Host("a", 2)], 2)
    assert default_environment(two, {}) == {"OMP_NUM_THREADS": "1"}
    assert default_environment(two, {"OMP_NUM_THREADS": "8"}) == {}
    assert default_environment(assign_slots([Host("a", 1), Host("b", 1)], 2), {}) == {}
