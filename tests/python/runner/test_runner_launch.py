"""lightccrun as a user meets it: processes, output, exit codes, signals. The ranks are shell
commands that never touch the engine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import is_running, run_to_end

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.multiproc

LAUNCHER = [sys.executable, "-m", "lightcc.runner"]
PATIENCE_S = 30.0  # A bound on what should take a moment, never a measurement.


def launch(
    *argv: str, stdin: bytes = b"", threads: str | None = "1"
) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    return run_to_end(
        [*LAUNCHER, *argv], text=False, input=stdin, env=environment, timeout=PATIENCE_S
    )


@contextlib.contextmanager
def launched(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [*LAUNCHER, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # As a shell with job control does.
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_pids(directory: Path, count: int) -> list[int]:
    """Waits until `count` ranks have written their process ids into files."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        texts = [path.read_text() for path in directory.glob("pid.*")]
        if len(texts) == count and all(text.endswith("\n") for text in texts):
            return [int(text) for text in texts]
        time.sleep(0.02)
    pytest.fail(f"{count} ranks did not start")


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still running: {[p for p in pids if is_running(p)]}"
        time.sleep(0.02)


FULL = "No space left on device; output is lost"


def test_full_disk_under_standard_output_is_named_and_the_ranks_go_on(tmp_path: Path) -> None:
    done = str(tmp_path / "done")
    program = f"echo a; sleep 0.2; echo b; echo c >&2; touch {done}.$LIGHT_RANK"
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*LAUNCHER, "-np", "2", "sh", "-c", program],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=False,
        )
    text = result.stderr.decode()
    assert result.returncode == 1, text
    assert text.count(f"lightccrun: warning: cannot write standard output: {FULL}") == 1, text
    assert text.rstrip().endswith(f"lightccrun: cannot write standard output: {FULL}"), text
    assert text.count("<stderr>: c") == 2, text
    assert len(list(tmp_path.glob("done.*"))) == 2


def test_full_disk_under_an_output_file_is_named_and_the_ranks_go_on(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    (directory / "rank.1").mkdir(parents=True)
    (directory / "rank.1" / "stdout").symlink_to("/dev/full")
    program = "echo a; sleep 0.2; echo b"
    result = launch("-np", "2", "--output-filename", str(directory), "sh", "-c", program)
    text = result.stderr.decode()
    assert result.returncode == 1, text
    assert text.count(f"lightccrun: warning: cannot write {directory}/rank.1/stdout: {FULL}") == 1
    assert sorted(result.stdout.split()) == [b"[0]<stdout>:"] * 2 + [b"[1]<stdout>:"] * 2 + [
        b"a",
        b"a",
        b"b",
        b"b",
    ]
    assert (directory / "rank.0" / "stdout").read_bytes() == b"a\nb\n"


def test_output_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("in the way")
    result = launch("-np", "1", "--output-filename", str(tmp_path / "out"), "echo", "a")
    assert result.returncode == 1
    assert b"cannot start the job: " in result.stderr
    assert str(tmp_path / "out").encode() in result.stderr


RANK = r"""
echo $LIGHT_RANK/$HOROVOD_SIZE $LIGHT_LOCAL_RANK; test $LIGHT_RANK = 0 || cat
printf 'a'; printf '\377\000c\nd' >&2
"""


def test_ranks_have_a_place_no_input_and_streams_of_their_own(tmp_path: Path) -> None:
    flags = ("-np", "3", "--output-filename", str(tmp_path / "out"))
    result = launch(*flags, "sh", "-c", RANK, stdin=b"x")
    assert result.returncode == 0
    for rank in range(3):
        out, err = b"[%d]<stdout>: " % rank, b"[%d]<stderr>: " % rank
        said = [line for line in result.stdout.splitlines() if line.startswith(out)]
        assert said == [out + b"%d/3 %d" % (rank, rank), out + b"a"]
        said = [line for line in result.stderr.splitlines() if line.startswith(err)]
        assert said == [err + b"\xff\x00c", err + b"d"]
        files = tmp_path / f"out/rank.{rank}"
        assert (files / "stdout").read_bytes() == b"%d/3 %d\na" % (rank, rank)
        assert (files / "stderr").read_bytes() == b"\xff\x00c\nd"


def test_rank_0_alone_reads_standard_input_and_nobody_reads_for_it() -> None:
    flags = ("-np", "2", "--no-prefix")
    result = launch(*flags, "sh", stdin=b"echo $LIGHT_RANK\n")
    assert result.stdout.split() == [b"0"]
    assert b"rank 0 alone reads standard input; others find it empty" in result.stderr
    two = f"{' '.join(LAUNCHER)} {' '.join(flags)} true; cat"
    shell = subprocess.run(["sh", "-c", two], input=b"left", capture_output=True, check=True)
    assert shell.stdout == b"left"


def test_input_that_no_rank_can_read_is_told(tmp_path: Path) -> None:
    flags = ("--listen", "127.0.0.1:0", "--secret-file", str(tmp_path / "secret"))
    for argv in (("--min-np", "1"), (*flags, "--start-timeout", "1")):
        result = launch("-np", "1", *argv, "cat", stdin=b"x")
        assert b"nobody reads standard input: ranks of " in result.stderr


def test_a_reader_that_is_slow_gets_each_line_whole() -> None:
    # In some of these, the rank exits while what it wrote last waits behind a megabyte.
    counts = range(160_000, 230_000, 30_000)
    command = [*LAUNCHER, "-np", "1", "seq"]
    jobs = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE) for n in counts]
    time.sleep(2.0)  # Longer than an agent waits for what descendants write.
    for count, job in zip(counts, jobs, strict=True):
        output, _ = job.communicate(timeout=60)
        assert job.returncode == 0
        prefix = b"[0]<stdout>: "
        assert output.splitlines() == [b"%s%d" % (prefix, n) for n in range(1, count + 1)], count


def test_the_first_failing_rank_decides_exit_code_and_last_words(tmp_path: Path) -> None:
    script = (
        f"echo $$ > {tmp_path}/pid.$LIGHT_RANK; "
        'if [ "$LIGHT_RANK" = 1 ]; then sleep 0.3; echo bad loss >&2; exit 7; fi; exec sleep 600'
    )
    result = launch("-np", "3", "sh", "-c", script)
    assert result.returncode == 7
    assert result.stderr.splitlines()[-3:] == [
        b"lightccrun: 2 other ranks were ended",
        b"lightccrun: failed first: rank 1 on localhost: exit code 7; "
        b"its last lines on standard error:",
        b"lightccrun:     bad loss",
    ]
    wait_gone(wait_for_pids(tmp_path, 3))


def test_ranks_that_ignore_sigterm_or_are_stopped_are_ended(tmp_path: Path) -> None:
    script = (
        f"echo $$ > {tmp_path}/pid.$LIGHT_RANK; case $LIGHT_RANK in "
        "0) sleep 0.5; exit 5;; 1) kill -STOP $$; exec sleep 600;; esac; "
        'trap "" TERM; while :; do sleep 1; done'
    )
    assert launch("-np", "3", "sh", "-c", script).returncode == 5
    wait_gone(wait_for_pids(tmp_path, 3))


def test_children_left_behind_by_a_rank_end_with_the_job(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid.$LIGHT_RANK; echo x"
    result = launch("-np", "8", "--prefix-output-with-timestamp", "sh", "-c", script)
    assert result.returncode == 0
    assert re.search(rb"^20\S+.*\[0\]<stdout>: x$", result.stdout, re.MULTILINE)
    wait_gone(wait_for_pids(tmp_path, 8))


def test_a_command_that_cannot_be_executed_is_126(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    assert launch("-np", "1", str(tmp_path / "data")).returncode == 126


def test_the_secret_is_in_the_environment_and_in_no_argument_list(tmp_path: Path) -> None:
    script = (
        f"echo $LIGHT_SECRET > {tmp_path}/secret.$LIGHT_RANK; "
        f"echo $$ > {tmp_path}/pid.$LIGHT_RANK; exec sleep 600"
    )
    with launched("-np", "2", "sh", "-c", script):
        wait_for_pids(tmp_path, 2)
        secrets = {path.read_text().strip() for path in tmp_path.glob("secret.*")}
        assert len(secrets) == 1
        secret = secrets.pop().encode()
        assert len(secret) >= 32
        for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                assert secret not in cmdline.read_bytes()


def test_ctrl_c_reaches_every_rank_once_and_nothing_else_is_said(tmp_path: Path) -> None:
    script = (
        f"trap 'echo caught; exit 0' INT; echo $$ > {tmp_path}/pid.$LIGHT_RANK; "
        "while :; do sleep 0.05; done"
    )
    with launched("-np", "2", "sh", "-c", script) as process:
        pids = wait_for_pids(tmp_path, 2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGINT
    assert sorted(output.splitlines()) == [b"[0]<stdout>: caught", b"[1]<stdout>: caught"]
    assert b"Traceback" not in errors
    wait_gone(pids)


def test_a_second_ctrl_c_kills_what_ignores_the_first(tmp_path: Path) -> None:
    script = (
        f"trap 'echo no >> {tmp_path}/caught.$LIGHT_RANK' INT TERM; "
        f"echo $$ > {tmp_path}/pid.$LIGHT_RANK; while :; do sleep 0.05; done"
    )
    with launched("-np", "2", "sh", "-c", script) as process:
        pids = wait_for_pids(tmp_path, 2)
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + PATIENCE_S
        while len(list(tmp_path.glob("caught.*"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGINT
    assert b"Traceback" not in errors
    wait_gone(pids)


def test_sigterm_to_the_launcher_ends_the_ranks(tmp_path: Path) -> None:
    with launched(
        "-np", "2", "sh", "-c", f"echo $$ > {tmp_path}/pid.$LIGHT_RANK; exec sleep 600"
    ) as process:
        pids = wait_for_pids(tmp_path, 2)
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    wait_gone(pids)


SAVES = """
trap 'echo $LIGHT_RANK asked; sleep $0; echo $LIGHT_RANK saved; exit 0' TERM USR1
echo $$ > $1/pid.$LIGHT_RANK; while :; do sleep 0.05; done
"""


@pytest.mark.parametrize(("signum", "seconds"), [(signal.SIGTERM, 6), (signal.SIGUSR1, 0)])
def test_ranks_have_time_to_save_after_a_signal(
    signum: signal.Signals, seconds: int, tmp_path: Path
) -> None:
    flags = ("-np", "2", "--no-prefix")
    with launched(*flags, "sh", "-c", SAVES, str(seconds), str(tmp_path)) as process:
        wait_for_pids(tmp_path, 2)
        process.send_signal(signum)
        output, errors = process.communicate(timeout=PATIENCE_S)
    said = [f"{rank} {word}".encode() for rank in range(2) for word in ("asked", "saved")]
    assert sorted(output.splitlines()) == said
    is_end = signum == signal.SIGTERM
    assert process.returncode == (128 + signum if is_end else 0)
    assert (b"SIGTERM: the ranks have 25 s to end (--grace)" in errors) == is_end


def test_what_outlives_the_time_after_sigterm_is_killed(tmp_path: Path) -> None:
    with launched("-np", "1", "--grace", "0.2", "sh", "-c", SAVES, "600", str(tmp_path)) as process:
        pids = wait_for_pids(tmp_path, 1)
        process.terminate()
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert output == b"[0]<stdout>: 0 asked\n"
    wait_gone(pids)


def test_no_rank_outlives_a_killed_launcher(tmp_path: Path) -> None:
    # The rank that is the shell's child is no child of the agent: only its group is.
    script = f"sh -c 'echo $$ > {tmp_path}/pid.'$LIGHT_RANK'; sleep 600; :'; :"
    with launched("-np", "2", "sh", "-c", script) as process:
        pids = wait_for_pids(tmp_path, 2)
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    wait_gone(pids)


def test_no_rank_outlives_a_killed_agent(tmp_path: Path) -> None:
    with launched(
        "-np", "2", "sh", "-c", f"echo $$ > {tmp_path}/pid.$LIGHT_RANK; exec sleep 600"
    ) as process:
        pids = wait_for_pids(tmp_path, 2)
        parent = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert b"host localhost was lost" in errors
    wait_gone(pids)


def test_a_reader_that_leaves_ends_the_job(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid.$LIGHT_RANK; while :; do echo y; done"
    with launched("-np", "2", "sh", "-c", script) as process:
        pids = wait_for_pids(tmp_path, 2)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=PATIENCE_S) == 128 + signal.SIGPIPE
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    wait_gone(pids)


def test_a_flag_without_effect_is_one_line_and_the_job_runs() -> None:
    result = launch("-np", "1", "--no-prefix", "--mpi", "--autotune", "echo", "x")
    assert (result.returncode, result.stdout) == (0, b"x\n")
    assert result.stderr.splitlines() == [
        b"lightccrun: --mpi has no effect: lightccrun starts the ranks itself, without MPI",
        b"lightccrun: --autotune has no effect: nothing is searched at run time",
    ]


TRACEBACK = """
import os, pathlib, sys, time
rank, folder = os.environ["LIGHT_RANK"], pathlib.Path(sys.argv[1])
(folder / f"here.{rank}").touch()
while len(list(folder.glob("here.*"))) < 3:
    time.sleep(0.001)
for line in ["Traceback (most recent call last):", f"  of {rank}", f"ValueError: {rank}"]:
    print(line, file=sys.stderr, flush=True)
sys.exit(1)
"""


def test_tracebacks_come_rank_by_rank_and_once(tmp_path: Path) -> None:
    program = tmp_path / "fail.py"
    program.write_text(TRACEBACK)
    result = launch("-np", "3", sys.executable, "-S", str(program), str(tmp_path))
    lines = result.stderr.decode().splitlines()
    begins = [i for i, line in enumerate(lines) if line.endswith("(most recent call last):")]
    assert len(begins) == 3, result.stderr
    order = []
    for begin in begins:
        rank = int(lines[begin][1])
        order.append(rank)
        assert lines[begin + 1 : begin + 3] == [
            f"[{rank}]<stderr>:   of {rank}",
            f"[{rank}]<stderr>: ValueError: {rank}",
        ]
    assert lines[-1] == f"lightccrun: failed first: rank {order[-1]} on localhost: exit code 1"


def test_a_traceback_of_a_rank_that_goes_on_is_shown_meanwhile(tmp_path: Path) -> None:
    program = 'echo "Traceback (most recent call last):" >&2; exec sleep 600'
    with launched("-np", "1", "sh", "-c", f"echo $$ > {tmp_path}/pid.0; {program}") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"[0]<stderr>: Traceback (most recent call last):\n"


def test_a_python_file_without_python_is_told_before_anything_starts(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("print(1)")
    result = launch("-np", "2", str(program))
    assert result.returncode == 2
    assert f"did you mean python {program}?".encode() in result.stderr
    result = launch("-np", "1", "no-such-program.py")
    assert result.returncode == 127
    assert b"cannot run 'no-such-program.py': No such file or directory" in result.stderr
    assert b"did you mean python no-such-program.py?" in result.stderr


STORED = """
import lightcc as hvd, numpy as np
hvd.init()
print(hvd.allreduce(np.ones(1), op=hvd.Sum))
"""


def test_ranks_of_ones_own_environment_meet_in_a_served_store() -> None:
    with launched("--store", "127.0.0.1") as server:
        assert server.stdout is not None
        shown = dict(server.stdout.readline().decode().strip().split("=", 1) for _ in range(2))
        assert set(shown) == {"LIGHT_RENDEZVOUS", "LIGHT_SECRET"}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", STORED],
                env=os.environ | shown | {"LIGHT_SIZE": "2", "LIGHT_RANK": str(rank)},
                stdout=subprocess.PIPE,
            )
            for rank in range(2)
        ]
        assert [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks] == [b"[2.]\n"] * 2
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S) == 0


def test_a_served_store_takes_a_secret_that_is_there() -> None:
    environment = os.environ | {"LIGHT_SECRET": "abc"}
    with subprocess.Popen(
        [*LAUNCHER, "--store", "127.0.0.1"], env=environment, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        text = server.stdout.readline() + server.stdout.readline()
        server.terminate()
    assert b"LIGHT_SECRET as it is here" in text
    assert b"abc" not in text


def test_threads_of_ranks_are_told_where_nobody_set_them_and_somebody_asks() -> None:
    result = launch("-np", "2", "sh", "-c", "echo $OMP_NUM_THREADS", threads=None)
    assert result.stdout.count(b": 1\n") == 2
    assert b"OMP" not in result.stderr
    result = launch("--verbose", "-np", "2", "true", threads=None)
    assert result.stderr.count(b"OMP_NUM_THREADS=1: set for each rank") == 1


def test_more_ranks_than_cores_cost_a_line() -> None:
    one = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *LAUNCHER]
    result = subprocess.run([*one, "-np2", "true"], capture_output=True, check=True)
    assert result.stderr == b"lightccrun: localhost: 2 ranks share 1 core: they take turns\n"
