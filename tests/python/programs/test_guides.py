"""Every block of code in the README and in the guides runs, or has its reason here why it does not.

A page's blocks have a language. `python title="NAME"` is a program, which a shell block of the page
starts; it runs on two ranks that are forked from a warm process. Other Python blocks of a page run
one after another, as one program of two ranks. Each line of a shell block runs once, and must
succeed. It starts a small program under the name of the page's, as torch takes long to import.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch  # For the warm process that has imported it.
from launchers import free_ports
from processes import run_to_end

from lightcc.runner import arguments
from lightcc.runner.agent import worker
from lightcc.testing import spawn_ranks

ROOT = Path(__file__).resolve().parents[3]
# These two show manifests and batch scripts, which need a cluster.
CLUSTERS = {"kubernetes.md", "slurm.md"}
PAGES = sorted(
    [ROOT / "README.md"]
    + [
        page
        for folder in ("guides", "running")
        for page in (ROOT / "docs" / folder).glob("*.md")
        if page.name not in CLUSTERS
    ]
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
PATIENCE_S = 220.0

# What a shell line must not have if it shall run here, and why.
NOT_RUN = {
    r"\bpip install\b": "lightcc is installed already; downloads",
    r"^make ": "builds, and runs other tests",
    r"^python -m venv|^\. \.venv": "this runs in a virtual environment",
    r"^ssh|^rsync|/etc/": "needs a second machine",
    r"\bnode-[ab]|--hostfile": "test_sshd.py launches on two hosts",
    r"^mpirun|^srun|^torchrun": "test_launchers.py runs them where they are installed",
    r"lightccrun --store|LIGHT_RENDEZVOUS": "test_runner_engine.py does, with the values printed",
    r"lightcc.bench": "takes minutes; test_bench.py runs small ones",
    r"measure/train": "takes minutes; test_bench_train.py runs small ones",
    r"^lightcc-top|--stacks": "asks a running job; parallel/test_watching.py has one",
    r"^harp-": "asks about this machine; tests/python/harp runs it",
    r"--listen|^lightcc-worker": "test_dialing_in.py has hosts that dial in",
    r"--install-horovodrun": "writes beside Python's programs; horovod/test_run.py does",
    r"hosts\.sh": "test_elastic.py has such a script",
    r"chaos_elastic": "takes hours; test_chaos.py plays some",
    r"^python ray_": "needs Ray; test_ray.py runs the programs of that page",
    r"^python spark_": "needs Spark; test_spark.py runs it",
}
if os.geteuid() != 0:
    NOT_RUN[r"two_sites"] = "makes hosts, which needs root"
# Python blocks that do not run here, by a text that they have.
NOT_RUN_PYTHON = {
    "torch.utils.tensorboard": "needs tensorboard; test_watching.py calls a logger",
    "import wandb": "needs wandb; test_watching.py calls a logger",
    "mpi4py": "test_mpi_communicators.py has MPI and its communicators",
    "lightcc.tensorflow": "tensorflow/test_tensorflow_elastic.py has TensorFlow and its states",
    "import keras": "tensorflow/test_keras_example.py runs such a program",
    "import cupy": "needs a GPU; gpu/test_gpu_operations.py has arrays of CuPy",
}

TRAIN = """
import numpy as np
import lightcc as hvd

hvd.init()
for _ in range(3):
    hvd.allreduce(np.ones(1000, np.float32), name="gradient")
hvd.shutdown()
"""


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    title: str
    text: str

    def commands(self) -> list[str]:
        """Returns the commands of a shell block, without comments."""
        text = self.text.replace("\\\n", " ")
        found = [
            " ".join(shlex.split(line, comments=True, posix=False)) for line in text.split("\n")
        ]
        return [line for line in found if line]


BLOCK = re.compile(r'^```(\w*)(?: title="([^"\n]*)")?\n(.*?)^```$', flags=re.MULTILINE | re.DOTALL)


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 1
        found.append(Block(str(page.relative_to(ROOT)), line, match[1], match[2] or "", match[3]))
    return found


BLOCKS = {name: blocks_of(page) for name, page in zip(NAMES, PAGES, strict=True)}
PARTS = {
    name: [
        block
        for block in blocks
        if block.language == "python"
        and not block.title
        and not any(text in block.text for text in NOT_RUN_PYTHON)
    ]
    for name, blocks in BLOCKS.items()
}
# What a program has that a launcher starts as ranks.
OF_RANKS = re.compile(r"^(hvd\.init|dist\.init_process_group)\(", re.MULTILINE)
PROGRAMS = [
    (name, block.title)
    for name, blocks in BLOCKS.items()
    for block in blocks
    if block.title
    and OF_RANKS.search(block.text)
    and not any(text in block.text for text in NOT_RUN_PYTHON)
]
COMMANDS = {
    name: [line for block in blocks if block.language == "sh" for line in block.commands()]
    for name, blocks in BLOCKS.items()
}


def reason_against(command: str) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), None)


def lines_to_run() -> dict[str, list[str]]:
    """Returns the shell lines of each page, without those that do the same on an earlier one."""
    seen: set[str] = set()
    found = {}
    for name, commands in COMMANDS.items():
        lines = [line for line in commands if reason_against(line) is None]
        text = " ".join(lines)
        # What a page sets and what it reads are those of its own lines.
        own = "export " in text or "trace.json" in text
        new = [line for line in lines if own or line not in seen]
        seen.update(new)
        if new:
            found[name] = new
    return found


LINES = lines_to_run()


@pytest.mark.parametrize("name", NAMES)
def test_blocks_have_a_language_and_programs_are_started(name: str) -> None:
    text = (ROOT / name).read_text()
    outside = BLOCK.sub("", text)
    assert not re.search(r"\n\n    \S", outside), "an indented block: nobody knows its language"
    for block in BLOCKS[name]:
        assert block.language in {"python", "sh", "text"}, f"{name}:{block.line}"
        assert not block.title or any(block.title in line for line in COMMANDS[name])


def test_each_reason_is_needed() -> None:
    lines = [line for commands in COMMANDS.values() for line in commands]
    for pattern in NOT_RUN:
        assert any(re.search(pattern, line) for line in lines), pattern
    texts = [block.text for blocks in BLOCKS.values() for block in blocks]
    for text in NOT_RUN_PYTHON:
        assert any(text in block for block in texts), text


def enter(folder: str) -> None:
    """Has what a page's blocks expect of a launcher, and compiles without a compiler."""
    os.chdir(folder)
    os.environ.setdefault("RANK", os.environ["LIGHT_RANK"])
    os.environ.setdefault("WORLD_SIZE", os.environ["LIGHT_SIZE"])
    torch.compile = partial(torch.compile, backend="aot_eager")
    torch.manual_seed(0)


def run_parts(name: str, folder: str) -> list[str]:
    """Runs the Python blocks of a page and returns the names that they have made."""
    enter(folder)
    names: dict[str, object] = {}
    for block in PARTS[name]:
        # The line numbers of the page, for tracebacks.
        source = "\n" * block.line + block.text
        exec(compile(source, ROOT / name, "exec"), names)
    return sorted(name for name in names if not name.startswith("__"))


@pytest.mark.multiproc
@pytest.mark.parametrize("name", [name for name in NAMES if PARTS[name]])
def test_python_blocks_run_on_two_ranks(name: str, tmp_path: Path, port: int) -> None:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    made = spawn_ranks(run_parts, 2, name, str(tmp_path), env=variables)
    assert made[0] == made[1]
    assert made[0]


def run_program(name: str, title: str, folder: str) -> None:
    enter(folder)
    (block,) = (block for block in BLOCKS[name] if block.title == title)
    path = Path(folder, f"{os.environ['LIGHT_RANK']}_{title}")
    path.write_text("\n" * block.line + block.text)
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.multiproc
@pytest.mark.parametrize(("name", "title"), PROGRAMS)
def test_programs_run_on_two_ranks(name: str, title: str, tmp_path: Path, port: int) -> None:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    spawn_ranks(run_program, 2, name, title, str(tmp_path), env=variables)


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.mark.slow  # Starts some thirty small jobs.
@pytest.mark.multiproc
@pytest.mark.parametrize("name", LINES)
def test_shell_lines_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "train.py").write_text(TRAIN)
    for block in BLOCKS[name]:
        if block.title:
            text = TRAIN if OF_RANKS.search(block.text) else block.text
            (tmp_path / block.title).write_text(text)
    script = "".join(f"{line}\n" for line in LINES[name])
    if "trace.json" in script:
        record = ["lightccrun", "-np", "1", "--timeline-filename", "trace.json", sys.executable]
        subprocess.run([*record, "train.py"], cwd=tmp_path, check=True, capture_output=True)
    done = run_to_end(
        ["bash", "-exc", script], cwd=tmp_path, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_the_launchers_page_has_every_flag() -> None:
    parsers = [arguments.make_parser(), worker.make_parser()]
    flags = {name for each in parsers for a in each._actions for name in a.option_strings}
    page = (ROOT / "docs" / "reference" / "lightccrun.md").read_text()
    named = set(re.findall(r"`(--?[a-z][a-z_-]*|-H)`", page))
    assert named == flags
