"""Plans of gradients: schedules that parse or do not, and the best plan against all plans."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lightcc.fusion.plans import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    CostLine,
    Gradient,
    best,
    by_arrival,
    cost_of,
    parse_positions,
    parse_scopes,
    piecewise,
    scopewise,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAMES = ["conv1.weight", "conv1.bias", "conv10.weight", "head.weight", "head.bias"]


def gradients(*sizes: int, kind: str = "float32") -> list[Gradient]:
    return [Gradient(f"g{i}", size, kind) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("schedule", "positions"),
    [("2;6", [0, 2, 6]), ("0", [0]), ("0;3", [0, 3]), ("7", [0, 7]), ("1;2;3", [0, 1, 2, 3])],
)
def test_positions_are_ascending_numbers(schedule: str, positions: list[int]) -> None:
    assert parse_positions(schedule, "it") == positions


@pytest.mark.parametrize(
    "schedule", ["", ";", "2;", "6;2", "2;2", "-1", "1.5", "two", "2,6", " 2", "\u00b2", None, 26]
)
def test_other_positions_are_refused_with_an_example(schedule: str) -> None:
    with pytest.raises(ValueError, match=r"^where is .*ascending positions.*'2;6'"):
        parse_positions(schedule, "where")


def test_pieces_begin_at_the_positions() -> None:
    assert piecewise("abcdefgh", [0, 2, 6]) == [list("ab"), list("cdef"), list("gh")]
    assert piecewise("abc", [0]) == [list("abc")]
    assert piecewise("abc", [0, 2, 600]) == [list("ab"), ["c"]]
    assert piecewise("", [0, 2]) == []


def test_scopes_are_different_words() -> None:
    assert parse_scopes("encoder;decoder.0", "it") == ["encoder", "decoder.0"]
    assert parse_scopes("", "it") == []


@pytest.mark.parametrize("schedule", [";", "a;", "a;;b", "a;a", "a; b", " ", None, 3])
def test_other_scopes_are_refused_with_an_example(schedule: str) -> None:
    with pytest.raises(ValueError, match=r"^where is .*prefixes of names.*'encoder;decoder'"):
        parse_scopes(schedule, "where")


def test_a_scope_is_a_prefix_that_ends_where_a_part_of_the_name_does() -> None:
    assert scopewise(NAMES, ["conv1"]) == [
        ["conv1.weight", "conv1.bias"],
        ["conv10.weight", "head.weight", "head.bias"],
    ]
    assert scopewise(NAMES, ["head.bias", "conv1."]) == [
        ["head.bias"],
        ["conv1.weight", "conv1.bias"],
        ["conv10.weight", "head.weight"],
    ]
    assert scopewise(["a/w:0", "a:0", "ab/w:0"], ["a"]) == [["a/w:0", "a:0"], ["ab/w:0"]]


def test_the_first_scope_that_matches_counts_and_empty_ones_vanish() -> None:
    assert scopewise(NAMES, ["head", "head.bias", "tail"]) == [
        ["head.weight", "head.bias"],
        ["conv1.weight", "conv1.bias", "conv10.weight"],
    ]
    assert scopewise(NAMES, []) == [NAMES]
    assert scopewise([], ["head"]) == []


def test_arrival_begins_with_a_small_bucket_and_goes_on_with_large_ones() -> None:
    half = FIRST_BUCKET_BYTES // 2
    order = gradients(half, half, 1, BUCKET_BYTES - 1, 1, 2 * BUCKET_BYTES, 1)
    assert by_arrival(order, 1 << 40) == [["g0", "g1"], ["g2", "g3"], ["g4"], ["g5"], ["g6"]]
    assert by_arrival(order[:2], half) == [["g0"], ["g1"]]
    assert by_arrival(gradients(5, 0, 5), 0) == [["g0"], ["g1"], ["g2"]]
    assert by_arrival([], 100) == []


# -- The best plan --------------------------------------------------------------------------------


def end_of(
    buckets: Sequence[Sequence[Gradient]],
    ready: dict[str, float],
    cost: Callable[[float], float],
) -> float:
    """Returns when the last bucket ends, by going through them."""
    now = 0.0
    for bucket in buckets:
        now = max(now, *(ready[g.name] for g in bucket)) + cost(sum(g.num_bytes for g in bucket))
    return now


def all_plans(order: Sequence[Gradient]) -> list[list[list[Gradient]]]:
    plans = []
    for cuts in itertools.product((False, True), repeat=len(order) - 1):
        plan = [[order[0]]]
        for gradient, cut in zip(order[1:], cuts, strict=True):
            if cut:
                plan.append([])
            plan[-1].append(gradient)
        plans.append(plan)
    return plans


def is_allowed(plan: Sequence[Sequence[Gradient]], limit: int) -> bool:
    return all(
        len({g.kind for g in bucket}) == 1
        and (len(bucket) == 1 or sum(g.num_bytes for g in bucket) <= limit)
        for bucket in plan
    )


@pytest.mark.parametrize("seed", range(300))
def test_the_best_plan_ends_as_early_as_the_best_of_all_plans(seed: int) -> None:
    dice = random.Random(seed)
    kinds = ["float32"] if seed % 3 else ["float32", "float16"]
    given = [
        Gradient(f"g{i}", dice.choice([0, 1, dice.randrange(1000), 10**4]), dice.choice(kinds))
        for i in range(dice.randrange(1, 10))
    ]
    ready = {g.name: dice.choice([0.0, dice.random() * 10]) for g in given}
    limit = dice.choice([0, 500, 1500, 10**6])
    lines = [
        CostLine(dice.choice([300, 2000]), dice.random(), dice.random() / 100),
        CostLine(float("inf"), dice.random() * 3, dice.random() / 1000),
    ]
    cost = cost_of(lines)

    def cost_of_one(num_bytes: float) -> float:
        line = next(line for line in lines if num_bytes <= line.most_bytes)
        return line.seconds + line.seconds_per_byte * num_bytes

    plan, end = best(given, ready, cost, limit)
    by_name = {g.name: g for g in given}
    buckets = [[by_name[name] for name in bucket] for bucket in plan]
    order = sorted(given, key=lambda g: ready[g.name])
    assert [g for bucket in buckets for g in bucket] == order
    assert is_allowed(buckets, limit)
    assert end == pytest.approx(end_of(buckets, ready, cost_of_one), rel=1e-12)
    least = min(
        end_of(candidate, ready, cost_of_one)
        for candidate in all_plans(order)
        if is_allowed(candidate, limit)
    )
    assert end == pytest.approx(least, rel=1e-12)


def test_a_costly_start_makes_one_bucket_and_a_cheap_one_makes_many() -> None:
    given = gradients(100, 100, 100, 100)
    ready = {g.name: float(i) for i, g in enumerate(given)}
    assert best(given, ready, cost_of([CostLine(float("inf"), 50.0, 0.0)]), 10**6)[0] == [
        ["g0", "g1", "g2", "g3"]
    ]
    assert best(given, ready, cost_of([CostLine(float("inf"), 0.0, 0.005)]), 10**6)[0] == [
        ["g0"],
        ["g1"],
        ["g2"],
        ["g3"],
    ]
    assert best([], {}, cost_of([CostLine(float("inf"), 1.0, 1.0)]), 1) == ([], 0.0)


def test_the_first_line_that_allows_the_size_counts() -> None:
    cost = cost_of([CostLine(10, 1.0, 0.0), CostLine(float("inf"), 0.0, 1.0)])
    np.testing.assert_array_equal(cost(np.array([0.0, 10.0, 11.0])), [1.0, 1.0, 11.0])
