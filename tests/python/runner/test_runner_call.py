"""Functions called on the ranks of a new job: results, failures, and nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightcc.runner.arguments import LaunchOptions, parse
from lightcc.runner.call import CallError, call_on_ranks, rank_command

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.multiproc
PATIENCE_S = 60.0  # A bound on what should take a moment, never a measurement.


def call(ranks: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    options = parse(["-np", str(ranks), "x"])
    assert isinstance(options, LaunchOptions)
    options = dataclasses.replace(options, command=rank_command(sys.executable))
    return call_on_ranks(function, args, kwargs, options)


def my_rank() -> int:
    return int(os.environ["LIGHT_RANK"])


def test_results_come_by_rank_and_of_any_size(capsys: pytest.CaptureFixture[str]) -> None:
    offset = 10

    def function(data: bytes, *, times: int) -> tuple[int, str, bytes]:
        sys.stdout.write(f"rank {my_rank() + offset}\n")
        return my_rank(), sys.stdin.read(), data[:1] * (len(data) * times + my_rank())

    data = b"x" * 2_500_000  # More than a frame, a pipe and the agent's backlog hold.
    expected = [(rank, "", b"x" * (len(data) * 2 + rank)) for rank in range(3)]
    assert call(3, function, data, times=2) == expected
    assert sorted(capsys.readouterr().out.splitlines()) == [
        f"[{rank}]<stdout>: rank {rank + offset}" for rank in range(3)
    ]


class StubbornError(Exception):
    """Cannot be made from what pickle remembers of it."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def raise_value_error() -> None:
    raise ValueError("no data")


def raise_stubborn() -> None:
    raise StubbornError("one", "two")


def return_a_lock() -> Any:
    import threading

    return threading.Lock()


def leave() -> None:
    sys.exit(0)


@pytest.mark.parametrize(
    ("fail", "text", "cause"),
    [
        (raise_value_error, "rank 1 on localhost: exit code 1: ValueError: no data", ValueError),
        (raise_stubborn, "StubbornError: onetwo", RuntimeError),
        (return_a_lock, "the result: cannot be pickled: ", TypeError),
    ],
)
def test_a_rank_that_fails_ends_the_others_and_is_named(
    fail: Callable[[], Any], text: str, cause: type
) -> None:
    def function() -> Any:
        if my_rank() == 1:
            return fail()
        time.sleep(10 * PATIENCE_S)
        return None

    with pytest.raises(CallError) as caught:
        call(2, function)
    assert text in str(caught.value)
    assert caught.value.rank == 1
    assert type(caught.value.__cause__) is cause


def test_a_rank_that_leaves_without_a_result_is_an_error() -> None:
    with pytest.raises(CallError, match="rank 0 ended before the function had returned"):
        call(1, leave)


def test_what_cannot_be_pickled_starts_nothing() -> None:
    with pytest.raises(TypeError, match="the function or its arguments: cannot be pickled"):
        call(1, print, return_a_lock())


def run_script(path: Path, text: str, *how: str) -> subprocess.CompletedProcess[str]:
    path.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, *(how or [str(path)])],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=path.parent,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    )


@pytest.mark.parametrize("how", [(), ("-m", "script")], ids=["script", "module"])
def test_without_cloudpickle_functions_of_modules_and_scripts_can_be_called(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    done = run_script(
        tmp_path / "script.py",
        """
        import sys

        sys.modules["cloudpickle"] = None
        from test_runner_call import call, my_rank

        class Own:
            def __init__(self, value):
                self.value = value

        def twice(own):
            sys.modules["cloudpickle"] = None
            return Own(own.value * 2 + my_rank())

        if __name__ == "__main__":
            print([own.value for own in call(2, twice, Own(21))])
            try:
                call(1, lambda: 1)
            except TypeError as error:
                print(error)
        """,
        *how,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "[42, 43]"
    assert "with cloudpickle installed, local functions can be" in second


def test_ranks_end_with_their_caller(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, pathlib, time
            from test_runner_call import call, my_rank

            def wait():
                path = pathlib.Path({str(tmp_path)!r}, f"pid.{{my_rank()}}")
                path.with_suffix(".new").write_text(str(os.getpid()))
                path.with_suffix(".new").rename(path)
                time.sleep(1000)

            call(1, wait)
            """
        )
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    deadline = time.monotonic() + PATIENCE_S
    with subprocess.Popen(
        [sys.executable, str(script)], stderr=subprocess.DEVNULL, env=environment
    ) as caller:
        try:
            while not (tmp_path / "pid.0").exists():
                assert caller.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            rank = int((tmp_path / "pid.0").read_text())
            caller.send_signal(signal.SIGINT)
            caller.wait(PATIENCE_S)
            while Path(f"/proc/{rank}").exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            caller.kill()
