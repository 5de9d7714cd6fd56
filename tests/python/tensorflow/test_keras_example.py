"""The examples for Keras run, learn, and say what they promise."""

from __future__ import annotations

import re

import examples_played
import pytest
import tensorflow as tf  # noqa: F401  for the warm process that has imported it.

from lightcc.testing import spawn_ranks

TWO_BY_TWO = {
    "LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2", "LIGHT_TOPK_THRESHOLD": "16K",
}  # fmt: skip
pytestmark = pytest.mark.multiproc


def play(*words: str) -> tuple[int, str]:
    return examples_played.play(*words)


def test_digits_reach_their_accuracy_with_a_few_percent_of_the_gradients() -> None:
    arguments = ("--epochs", "5", "--topk", "0.05", "--accuracy", "0.8")
    (code, said), _ = spawn_ranks(play, 2, "keras_digits.py", *arguments)
    assert code == 0, said
    line = r"^2 ranks, top-k 5\.0%: accuracy 0\.[89]\d+ on 360 images"
    assert re.search(line, said, re.MULTILINE)
    assert "all ranks hold the same weights, bit for bit" in said


def test_compressed_digits_fail_when_the_accuracies_differ() -> None:
    arguments = ("--epochs", "1", "--margin", "-1")
    (code, said), *_ = spawn_ranks(play, 4, "keras_compression.py", *arguments, env=TWO_BY_TWO)
    assert code == 1, said
    row = r" +0\.\d{3} +\d+\.\d ms +(\d+\.\d) kB$"
    dense = re.search(rf"^dense{row}", said, re.MULTILINE)
    int4 = re.search(rf"^int4{row}", said, re.MULTILINE)
    assert dense is not None, said
    assert int4 is not None, said
    # The broadcast of the weights is among the bytes, and one epoch has eleven steps.
    assert float(dense[1]) > 4 * float(int4[1]) > 0
