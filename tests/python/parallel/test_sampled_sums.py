"""Sampled steps tell how near compression comes to the sum, and change nothing."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from compressed_grids import SMALL, few_grids, gradients, two_hosts
from grids import Grid

import lightcc as hvd
from lightcc import timeline

if TYPE_CHECKING:
    from pathlib import Path

    from arrays import Array
    from compressed_grids import Blocks

pytestmark = pytest.mark.multiproc

ROWS, COLUMNS = 61, 83
EVERY = 3
STEPS = 8  # So the last sampled step, the sixth, is not the last one.

COMPRESSORS: dict[str, Any] = {
    "topk": hvd.Compression.topk(0.05),
    "momentum": hvd.Compression.topk(0.05, momentum_correction=0.9),
    "warm-up": hvd.Compression.topk(0.02, warmup_steps=20, fp16=True),
    "int8": hvd.Compression.int8,
    "fp8": hvd.Compression.fp8,
    "int4": hvd.Compression.int4,
    "1-bit": hvd.Compression.onebit,
}
#: Of a dense all-reduce, which rounds its result to the dtype.
TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-10}


def inputs_of(step: int, dtype: np.dtype[Any]) -> list[Array]:
    return [
        gradients(step, rank, dtype, ROWS * COLUMNS).reshape(ROWS, COLUMNS)
        for rank in range(hvd.size())
    ]


def agreement(result: Array, total: Array) -> tuple[float, float]:
    given, true = result.astype(np.float64).ravel(), total.ravel()
    error = ((given - true) ** 2).sum() / (true**2).sum()
    return float(error), float(given @ true / np.linalg.norm(given) / np.linalg.norm(true))


def told(name: str, process_set: int = 0) -> Any:
    (tensor,) = (
        t
        for t in hvd.stats().compression
        if (t.name, t.process_set) == (f"allreduce.{name}", process_set)
    )
    return tensor


def train(names: list[str]) -> dict[str, list[str]]:
    """Returns digests of all results; compares what is told, where steps are sampled."""
    hvd.init()
    digests: dict[str, list[str]] = {}
    for kind in names:
        for dtype in map(np.dtype, TOLERANCES):
            name = f"{kind}.{dtype}"
            found = (0.0, 1.0)
            digests[name] = []
            for step in range(STEPS):
                inputs = inputs_of(step, dtype)
                how: dict[str, Any] = {"op": hvd.Average, "prescale_factor": 0.5}
                result = hvd.allreduce(
                    inputs[hvd.rank()], name=name, compression=COMPRESSORS[kind], **how
                )
                digests[name].append(hashlib.sha256(result.tobytes()).hexdigest())
                if step == STEPS // EVERY * EVERY - 1:
                    total = 0.5 * np.mean([x.astype(np.float64) for x in inputs], axis=0)
                    found = agreement(result, total)
            tensor = told(name)
            assert found[0] > 1e-6
            if tensor.samples > 0:
                assert tensor.samples == STEPS // EVERY
                close: dict[str, Any] = {
                    "rtol": TOLERANCES[str(dtype)],
                    "atol": TOLERANCES[str(dtype)] ** 2,
                }
                np.testing.assert_allclose(tensor.relative_error, found[0], **close)
                np.testing.assert_allclose(tensor.cosine, found[1], **close)
    report = hvd.stats()
    errors = [t.relative_error for t in report.compression]
    assert report.scalars()["compression_relative_error"] == max(errors)
    assert report.scalars()["compression_cosine"] == min(t.cosine for t in report.compression)
    assert {t.samples > 0 for t in report.compression} == {max(errors) > 0}
    digests["told"] = [json.dumps([(t.name, t.relative_error) for t in report.compression])]
    return digests


@few_grids
def test_what_is_told_is_what_numpy_finds_and_results_are_the_same_bits(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    names = list(COMPRESSORS)
    sampled = grid.run(train, names, env={**env, **SMALL, "LIGHT_COMPRESSION_SAMPLE": str(EVERY)})
    plain = grid.run(train, names, env={**env, **SMALL})
    assert all(result == sampled[0] for result in sampled)
    assert sampled[0].pop("told") != plain[0].pop("told")
    assert sampled[0] == plain[0]


def train_in_buckets() -> list[str]:
    """Tensors of one bucket have counts of their own; it returns digests and what is told."""
    hvd.init()
    digests = []
    for step in range(6):
        tensors = inputs_of(step, np.dtype("float32"))[: 2 + step % 2]
        mine = [(x * (hvd.rank() + 1)).copy() for x in tensors]
        results = hvd.grouped_allreduce(
            mine, name=f"g{len(mine)}", op=hvd.Sum, compression=COMPRESSORS["topk"]
        )
        digests += [hashlib.sha256(result.tobytes()).hexdigest() for result in results]
    assert {t.samples for t in hvd.stats().compression} <= {0, 1}
    told_of_all = [(t.name, t.samples, t.relative_error) for t in hvd.stats().compression]
    return [*digests, str(told_of_all)]


@pytest.mark.parametrize("hosts", [[0, 1, 2], [0, 0, 1]], ids=["hosts_of_one", "uneven_hosts"])
def test_all_ranks_are_told_the_same(hosts: list[int]) -> None:
    env = {**SMALL, "LIGHT_COMPRESSION_SAMPLE": "3"}
    results = Grid(3, hosts).run(train_in_buckets, env=env)
    assert all(result == results[0] for result in results)
    assert "1, 0." in results[0][-1]
    assert Grid(3, hosts).run(train_in_buckets, env=SMALL)[0][:-1] == results[0][:-1]


def sets_are_sampled_by_themselves() -> None:
    sets = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])]
    hvd.init(process_sets=sets)
    mine = next(process_set for process_set in sets if process_set.included())
    inputs = inputs_of(0, np.dtype("float32"))
    result = inputs[0]
    for step in range(2):
        how: dict[str, Any] = {"name": "x", "op": hvd.Sum, "compression": COMPRESSORS["int4"]}
        result = hvd.allreduce(inputs[hvd.rank()], process_set=mine, **how)
        assert told("x", mine.process_set_id or 0).samples == step
    total = inputs[hvd.rank()].astype(np.float64) + inputs[(hvd.rank() + 2) % 4]
    tensor = told("x", mine.process_set_id or 0)
    np.testing.assert_allclose((tensor.relative_error, tensor.cosine), agreement(result, total))
    hvd.barrier()  # Who leaves ends the world for the other set, too.


def test_a_process_set_has_samples_of_its_own() -> None:
    env = {**SMALL, "LIGHT_COMPRESSION_SAMPLE": "2"}
    Grid(4, [0, 0, 1, 1]).run(sets_are_sampled_by_themselves, env=env)


def steps_that_do_not_count() -> None:
    hvd.init()
    x = np.ones((ROWS, COLUMNS), np.float32)
    for kind in ("topk", "int8"):
        x = np.ones((ROWS, COLUMNS), np.float32)
        for value in (np.nan, 0.0, 1.0):
            x[0, 0] = value
            hvd.allreduce(x * (value != 0.0), name=kind, compression=COMPRESSORS[kind])
        assert told(kind).samples == 1
        assert told(kind).relative_error < 1.0
    if hvd.rank() > 0:
        hvd.allreduce(x, name="joined", op=hvd.Sum, compression=COMPRESSORS["int8"])
        np.testing.assert_allclose(told("joined").relative_error, 0.0, atol=1e-3)
        assert told("joined").samples == 1
    hvd.join()


@two_hosts
def test_neither_zeros_nor_what_is_not_finite_counts_and_who_joined_adds_zeros(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    env = {**env, **SMALL, "LIGHT_COMPRESSION_SAMPLE": "1"}
    grid.run(steps_that_do_not_count, env=env)


def bytes_of_a_step(sampled: bool) -> int:
    hvd.init()
    x = gradients(0, hvd.rank(), np.dtype("float32"), 1 << 18)
    sent = 0
    for step in range(2):  # The second is sampled.
        hvd.barrier()
        before = hvd.stats()
        hvd.allreduce(x, name="x", compression=COMPRESSORS["topk"])
        after = hvd.stats()
        sent = after.network_bytes_sent - before.network_bytes_sent
        assert told("x").samples == (step if sampled else 0)
        compressed = after.compressed_sent_bytes - before.compressed_sent_bytes
        assert compressed < 0.2 * x.nbytes  # What compression sends is counted as ever.
    return int(sent)


@two_hosts
def test_a_sample_costs_a_dense_allreduce(grid: Grid, env: dict[str, str], blocks: Blocks) -> None:
    del blocks
    env = {**env, **SMALL}
    plain = grid.run(bytes_of_a_step, False, env=env)
    sampled = grid.run(bytes_of_a_step, True, env={**env, "LIGHT_COMPRESSION_SAMPLE": "2"})
    dense = (1 << 18) * 4 // 2  # Of two hosts, each rank sends its half of the tensor once.
    for more, less in zip(sampled, plain, strict=True):
        assert dense <= more - less <= 1.05 * dense


def train_by_the_flag() -> list[tuple[str, float]]:
    hvd.init()
    for step in range(4):
        hvd.allreduce(inputs_of(step, np.dtype("float32"))[hvd.rank()], name="x")
    tensor = told("x")
    assert tensor.samples == 2
    return [(tensor.relative_error, tensor.cosine)]


@two_hosts
def test_the_timeline_has_samples_of_operations(
    tmp_path: Path, grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    path = tmp_path / "trace.json"
    more = {"LIGHT_COMPRESSION_SAMPLE": "2", "LIGHT_TOPK_ALLREDUCE": "1"}
    env = {**env, **SMALL, **more, "LIGHT_TIMELINE": str(path)}
    found = grid.run(train_by_the_flag, env=env)
    for trace, ((error, cosine),) in zip(timeline.read_all(path), found, strict=True):
        samples = [
            event["args"]
            for event in trace.events
            if event["ph"] == "E" and "cosine" in event.get("args", {})
        ]
        assert len(samples) == 2
        assert samples[-1]["relative_error"] == pytest.approx(error, rel=1e-5)
        assert samples[-1]["cosine"] == pytest.approx(cosine, rel=1e-5)
        assert samples[-1]["shape"] == f"[{ROWS}, {COLUMNS}]"
