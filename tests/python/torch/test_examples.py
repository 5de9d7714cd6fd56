"""The torch examples run, learn, and say what they promise; their models are the known ones."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import examples_played
import pytest
import torch
from examples_played import EXAMPLES
from gpu_arrays import FAKE_CUDA, needs_fake_cuda
from launchers import free_ports

from lightcc.bench.models import MODELS as KNOWN
from lightcc.testing import spawn_ranks

HERE = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.multiproc


def play(*words: str) -> tuple[int, str]:
    return examples_played.play(*words)


def played(ranks: int, *words: str, code: int = 0, **variables: str) -> str:
    """Runs a script with its arguments; returns what rank 0 has printed."""
    results = spawn_ranks(play, ranks, *words, env=variables, timeout_s=200)
    assert [result[0] for result in results] == [code] * ranks, results
    return results[0][1]


@pytest.mark.extra
def test_digits_reach_their_accuracy_and_say_what_was_hidden() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which ships the data, is not installed")
    said = played(2, "pytorch_digits.py", "--epochs", "5", "--accuracy", "0.85")
    assert len(re.findall(r"^epoch +\d+: loss \d", said, re.MULTILINE)) == 5
    assert re.search(r"^accuracy 0\.[89]\d+ on 360 images", said, re.MULTILINE)
    assert re.search(r"^\d+ samples/s on 2 ranks$", said, re.MULTILINE)
    assert re.search(r"step\(\) waited \d.*\d % hidden behind the backward pass", said)
    assert re.search(r"^all ranks hold the same weights, bit for bit: [0-9a-f]{16}$", said,
                     re.MULTILINE)  # fmt: skip


FAKES = {
    "LD_LIBRARY_PATH": str(FAKE_CUDA.parent),
    "PYTHONPATH": os.pathsep.join([str(HERE / "cuda_site"), str(HERE)]),
}


@pytest.mark.extra
@needs_fake_cuda
def test_digits_train_on_a_gpu_where_there_is_one() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which ships the data, is not installed")
    arguments = ["--epochs", "1", "--accuracy", "0.2"]
    launcher = [sys.executable, "-m", "lightcc.runner", "-np", "2", "--no-prefix"]
    result = subprocess.run(
        [*launcher, sys.executable, str(EXAMPLES / "pytorch_digits.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        # Ranks with a thread for each core would take turns in spinning.
        env={**os.environ, "OMP_NUM_THREADS": "1", **FAKES},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " parameters on cuda, on 1437 digits\n" in result.stdout
    assert "\nall ranks hold the same weights, bit for bit: " in result.stdout


@pytest.mark.extra
def test_digits_fail_when_the_accuracy_is_missed_and_stay_on_the_cpu() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which ships the data, is not installed")
    arguments = ["--epochs", "1", "--accuracy", "1.01", "--no-cuda"]
    said = played(1, "pytorch_digits.py", *arguments, code=1)
    assert "(1.01 is asked for)" in said
    assert " parameters on cpu, on 1437 digits\n" in said


TWO_BY_TWO = {
    "LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2", "LIGHT_TOPK_THRESHOLD": "16K",
}  # fmt: skip


@pytest.mark.slow
def test_one_percent_of_the_gradient_learns_the_digits_as_well_and_sends_less() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which ships the data, is not installed")
    arguments = ["--compression", "topk", "--epochs", "12", "--margin", "0.05"]
    said = played(4, "pytorch_compression.py", *arguments, code=0, **TWO_BY_TWO)
    row = r" +(0\.\d{3}) +\d+\.\d ms +(\d+\.\d) kB$"
    dense = re.search(rf"^dense{row}", said, re.MULTILINE)
    topk = re.search(rf"^topk{row}", said, re.MULTILINE)
    assert dense is not None, said
    assert topk is not None, said
    assert float(dense[1]) > 0.9
    assert float(dense[2]) > 20 * float(topk[2]) > 0
    assert said.endswith("all ranks hold the same weights, bit for bit\n")


@pytest.mark.slow  # One more that trains; another one fails like it.
def test_compressed_digits_fail_when_the_accuracies_differ() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which ships the data, is not installed")
    played(1, "pytorch_compression.py", "--epochs", "1", "--margin", "-1", code=1)


@pytest.mark.slow
def test_the_language_model_beats_character_frequencies() -> None:
    said = played(2, "pytorch_char_lm.py", "--minutes", "0.2")
    assert "it writes: 'The " in said
    assert "all ranks hold the same weights, bit for bit" in said


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("flags", [(), ("--hsdp",)])
def test_a_sharded_model_learns_text_and_goes_on(flags: tuple[str, ...], tmp_path: Path) -> None:
    bits = []
    for begin, end in ((0, 20), (20, 30)):
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
        common |= {"WORLD_SIZE": "4", "LIGHT_TOPK_THRESHOLD": "0"}
        words = [*flags, "--checkpoint", str(tmp_path / "checkpoint"), "--steps", str(end)]
        env = [common | {"RANK": str(rank)} for rank in range(4)]
        results = spawn_ranks(play, 4, "fsdp_text.py", *words, env=env, hosts=[0, 0, 1, 1])
        said = re.search(rf"^step {begin} to {end}, 4 ranks: (\d\.\d+) bits", results[0][1])
        assert said, results[0][1]
        bits.append(float(said[1]))
    assert bits[1] < bits[0] < 4.5  # By frequency alone: 4.6.


@pytest.mark.slow
def test_the_synthetic_benchmark_prints_horovods_lines() -> None:
    small = ["--batch-size", "1", "--num-warmup-batches", "1", "--num-batches-per-iter", "1"]
    said = played(
        2, "pytorch_synthetic_benchmark.py", "--no-cuda", "--fp16-allreduce", *small,
        "--num-iters", "2", "--model", "resnet50",
    )  # fmt: skip
    number = r"\d+\.\d"
    expected = [
        "Model: resnet50", "Batch size: 1", "Number of CPUs: 2", r"Running warmup\.\.\.",
        r"Running benchmark\.\.\.", rf"Iter #0: {number} img/sec per CPU",
        rf"Iter #1: {number} img/sec per CPU", rf"Img/sec per CPU: {number} \+-{number}",
        rf"Total img/sec on 2 CPU\(s\): {number} \+-{number}",
    ]  # fmt: skip
    assert re.fullmatch("\n".join(expected), said.strip()), said


@pytest.fixture(scope="module")
def models() -> Any:
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module("models").MODELS
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.mark.parametrize("name", ["resnet50", "resnet101", "vgg16", "inception_v3"])
def test_image_models_have_the_known_parameters(models: Any, name: str) -> None:
    with torch.device("meta"):
        parameters = list(models[name]().parameters())
    known = [shape for layer in KNOWN[name]() for shape in layer.shapes]
    assert sorted(tuple(p.shape) for p in parameters) == sorted(known)


@pytest.mark.slow  # It is initialised and run three times.
def test_transformer_xl_has_41_million_parameters_and_a_memory(models: Any) -> None:
    torch.manual_seed(0)
    model = models["transformer_xl"](length=8)
    assert 40.5e6 < sum(p.numel() for p in model.parameters()) < 41.5e6
    text, _ = model.inputs(1)
    with torch.no_grad():
        first = model(text)
        again = model(text)  # Now with the first segment in memory.
        assert not torch.equal(first, again)
        # Causal: what comes later does not change what is predicted before.
        model.memories = None
        changed = text.clone()
        changed[:, -1] = (text[:, -1] + 1) % 204
        assert torch.equal(model(changed)[:, :-1], first[:, :-1])


def test_distances_meet_keys() -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        shifted = importlib.import_module("models.transformer_xl").shifted
    finally:
        sys.path.remove(str(EXAMPLES))
    length, total = 3, 5
    distances = torch.arange(total - 1, -1, -1).expand(1, length, total)
    moved = shifted(distances)[0]
    for query in range(length):
        for key in range(total - length + query + 1):
            assert moved[query, key] == total - length + query - key
