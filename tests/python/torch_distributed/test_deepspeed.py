"""DeepSpeed's ZeRO trains on the backend lightcc: with gloo's bits, or compressed by one line.

DeepSpeed is in an environment of its own, `.venv-suite`, which `make test-all` makes. Without
it the tests are skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "deepspeed_digits.py"
PYTHON = ROOT / ".venv-suite" / "bin" / "python"
ACCURACY = r"{}, 2 ranks: accuracy (\d\.\d+) on 360 images with ZeRO-{}"

# Ranks are hosts of their own, where top-k would compress. ZeRO-3 leaves a shard of each weight.
PROGRAM = """
import os, runpy, sys
os.environ["LIGHT_HOST_ID"] = os.environ["RANK"]
import torch
import torch.distributed as dist

def report_and_destroy():
    engine = sys.modules["__main__"].engine
    backend = dist.get_backend(engine.optimizer.dp_process_group)
    print(f"ZeRO reduces on {backend}\\n", end="", flush=True)
    weights = [getattr(p, "ds_tensor", p).detach() for p in engine.module.parameters()]
    torch.save(weights, f"{folder}/{dist.get_rank()}.pt")
    destroy()

def compress(*arguments, **named):
    made = initialize(*arguments, **named)
    # ZeRO-3 gathers and scatters in the default group.
    stage = made[0].zero_optimization_stage()
    compress_group(None if stage == 3 else made[0].optimizer.dp_process_group)
    return made

folder, *sys.argv = sys.argv[1:]
if "COMPRESS" in os.environ:
    import deepspeed
    from lightcc.torch.distributed import compress_group
    initialize, deepspeed.initialize = deepspeed.initialize, compress
destroy, dist.destroy_process_group = dist.destroy_process_group, report_and_destroy
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# DeepSpeed imports much: 4 s of CPU on each of four ranks.
PATIENCE_S = 200.0
pytestmark = [pytest.mark.multiproc, pytest.mark.slow]


def train(backend: str, stage: int, folder: Path, **variables: str) -> list[list[torch.Tensor]]:
    """Runs the example on two ranks; returns what each rank holds of the weights."""
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(PROGRAM)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--backend", backend, "--stage", str(stage), "--epochs", "2"]
    done = subprocess.run(
        [PYTHON, *launcher, program, folder, EXAMPLE, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            # For what has a name; DeepSpeed's sums have none.
            "LIGHT_TOPK_ALLREDUCE": "1",
            "LIGHT_TOPK_THRESHOLD": "1",
            **variables,
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"ZeRO reduces on {backend}\n") == 2, done.stdout
    # Two ranks write to one pipe, so another's words may follow in the same line.
    found = re.search(ACCURACY.format(backend, stage), done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) > 0.85
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.skipif(
    not PYTHON.exists(), reason="DeepSpeed is not installed (make .venv-suite/.deepspeed-installed)"
)
@pytest.mark.timeout(3 * PATIENCE_S + 20)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_gives_the_weights_of_gloo_and_learns_compressed(stage: int, tmp_path: Path) -> None:
    ours = train("lightcc", stage, tmp_path / "ours")
    gloo = train("gloo", stage, tmp_path / "gloo")
    # Two summands have one sum, whoever adds them, so nothing is left to rounding.
    for mine, theirs in zip(ours, gloo, strict=True):
        assert len(mine) == 4
        assert all(map(torch.equal, mine, theirs))
    if stage == 1:
        return  # Compressed as stage 2 is.
    rounded = train("lightcc", stage, tmp_path / "rounded", COMPRESS="1")
    for mine, theirs in zip(ours, rounded, strict=True):
        a, b = (torch.cat([it.flatten() for it in weights]) for weights in (mine, theirs))
        # Ninety steps of AdamW make more of what is rounded.
        assert 0 < (a - b).norm() < 0.3 * a.norm()
