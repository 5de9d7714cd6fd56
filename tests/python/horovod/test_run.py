"""`horovod.run` and `horovodrun`: jobs that a script, a notebook or a shell starts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from programs import PATIENCE_S, RUN, output, write

from lightcc.horovod.__main__ import install_horovodrun
from lightcc.horovod.runner import _HorovodArgs, launch, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.multiproc
def test_run_returns_what_the_ranks_return_and_raises_what_they_raise(tmp_path: Path) -> None:
    script = write(
        tmp_path / "notebook.py",
        """
        import horovod, horovod.runner, numpy as np
        import lightcc as hvd

        assert horovod.run is horovod.runner.run

        def gather(a, b):
            import horovod.common.util
            hvd.init()
            if a == 0 and hvd.rank() == 1:
                raise ValueError("zero")
            gathered = hvd.allgather(np.array([hvd.rank(), a * b])).tolist()
            return gathered if hvd.rank() == 1 else None

        if __name__ == "__main__":
            print(horovod.run(gather, (2,), {"b": 3}, num_proc=2, use_gloo=True))
            try:
                horovod.run(gather, (0, 0), num_proc=2)
            except RuntimeError as error:
                print(error, type(error.__cause__))
        """,
    )
    first, second = output(*RUN, script).splitlines()
    assert first == "[None, [0, 6, 1, 6]]"
    assert second.startswith("Horovod detected that one or more processes exited")
    assert "rank 1 on localhost: exit code 1: ValueError: zero <class 'ValueError'>" in second


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"use_gloo": True, "use_mpi": True}, ValueError, "use_gloo and use_mpi: give one"),
        ({"hosts": "a:1", "hostfile": "f"}, ValueError, "--hosts and --hostfile: give one"),
        ({"hosts": "a:1", "num_proc": 2}, ValueError, "-np 2 needs 2 slots"),
        ({"num_proc": 0}, ValueError, "num_proc: '0' is not a number of ranks"),
        ({"start_timeout": "soon"}, ValueError, "start_timeout: 'soon' is not a number of sec"),
        ({"min_num_proc": 3}, ValueError, "--min-np 3, -np 1.* must not become smaller"),
        ({"reset_limit": 3}, ValueError, "--reset-limit is for elastic jobs"),
        ({"args": (sys._getframe(),)}, TypeError, "the function or its arguments: cannot be pickl"),
    ],
)
def test_arguments_of_run_that_are_not_allowed(
    arguments: dict[str, object], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        run(print, **arguments)  # type: ignore[arg-type]


def test_old_names_of_arguments_warn_and_count() -> None:
    for old, text in (("min_np", "--min-np 3, -np 1"), ("max_np", "--max-np is for elastic jobs")):
        wrong = pytest.raises(ValueError, match=text)
        with pytest.warns(DeprecationWarning, match=f"{old} is deprecated"), wrong:
            run(print, **{old: 3})  # type: ignore[arg-type]
    too_few = pytest.raises(ValueError, match="-np 2 needs 2 slots")
    with pytest.warns(DeprecationWarning, match="np is deprecated"), too_few:
        run(print, np=2, hosts="a:1")


def test_a_parsed_command_line_has_horovods_names(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "horovodrun -np 2 -H localhost:4 --gloo --no-stall-check --mpi-args x python a.py --lr 1"
    monkeypatch.setattr(sys, "argv", line.split())
    args = launch.parse_args()
    assert (args.num_proc, args.hosts, args.command) == (
        2,
        "localhost:4",
        ["python", "a.py", "--lr", "1"],
    )
    assert (args.use_gloo, args.use_mpi, args.no_stall_check, args.mpi_args) == (
        True,
        None,
        True,
        "x",
    )
    assert args.run_func is args.executable is args.min_num_proc is None
    assert vars(_HorovodArgs()).keys() == vars(args).keys()


@pytest.mark.multiproc
def test_arguments_made_by_hand_start_a_job() -> None:
    program = """
import sys
from horovod.runner import _HorovodArgs
from horovod.runner.launch import _run
args = _HorovodArgs()
args.num_proc = 2
args.command = [sys.executable, "-c", "raise SystemExit(3)"]
_run(args)
"""
    said = output(*RUN, "-c", program, code=1)
    assert "RuntimeError: Horovod detected" in said
    assert "exit code 3" in said


@pytest.mark.multiproc
def test_horovodrun_is_installed_when_asked_for_and_is_lightccrun(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    for _ in range(2):  # A second time writes it anew.
        assert install_horovodrun(folder).startswith(f"wrote {folder}/horovodrun")
    command = str(folder / "horovodrun")
    assert output(command, "--version") == "0.28.1\n"
    program = "import horovod, os; print(os.environ['HOROVOD_RANK'], horovod.__version__)"
    argv = [command, "-np", "2", "--mpi", "--no-prefix", sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert sorted(done.stdout.splitlines()) == ["0 0.28.1", "1 0.28.1"]
    assert "--mpi has no effect" in done.stderr
    refused = output(command, "-np", "2", "--config-file", "f", "true", code=2)
    assert "horovodrun: error: --config-file: " in refused


def test_a_horovodrun_of_somebody_else_is_kept(tmp_path: Path) -> None:
    theirs = tmp_path / "horovodrun"
    theirs.write_text("#!/usr/bin/python\nimport horovod\n")
    install = [sys.executable, "-m", "lightcc.horovod", "--install-horovodrun", str(tmp_path)]
    assert f"{theirs} is there and is not lightcc's" in output(*install, code=1)
    assert theirs.read_text() == "#!/usr/bin/python\nimport horovod\n"
    assert "usage:" in output(*install, "more", code=2)
    with pytest.raises(OSError, match="No such file"):
        install_horovodrun(tmp_path / "nowhere")
    assert os.listdir(tmp_path) == ["horovodrun"]
