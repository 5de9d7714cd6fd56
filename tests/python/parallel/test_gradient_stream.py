"""GradientStream as a frontend of no framework uses it: numpy arrays, two ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightcc as hvd
from lightcc._adapter import GradientStream, Slot, plan_groups, put_together, take_apart
from lightcc.fusion import choose_fusion
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

pytestmark = pytest.mark.multiproc

SIZES = {"a": 4, "b": 100_000, "c": 8, "alone": 3}


class ArraySlot(Slot):
    """A slot whose gradient is an array, if this rank has one in the step."""

    __slots__ = ("array", "target")

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, 4 * size, "float32", expected=True)
        self.array: NDArray[np.float32] | None = None
        self.target = np.zeros(size, np.float32)  # What the result of a copied one is put into.


class Arrays:
    """A source: "c" travels as a copy, and "alone" in a way of its own."""

    def take(self, slot: ArraySlot, *, grouped: bool) -> NDArray[np.float32] | None:
        if slot.name == "alone" and not grouped:
            return None
        if slot.array is None:
            slot.array = np.zeros_like(slot.target)
        slot.copied = slot.name == "c"
        return slot.array.copy() if slot.copied else slot.array

    def start_alone(self, slot: ArraySlot) -> Callable[[], None]:
        mine = np.zeros_like(slot.target) if slot.array is None else slot.array
        handle = hvd.allgather_async(mine[None], name=slot.name)

        def finish() -> None:
            slot.array = hvd.synchronize(handle).sum(axis=0, dtype=np.float32)

        return finish

    def put(self, slot: ArraySlot, output: Any) -> None:
        slot.target[:] = output

    def is_expected(self, slot: ArraySlot) -> bool:
        return slot.expected

    def too_many_passes(self, slot: ArraySlot) -> Exception:
        return AssertionError(f"too many passes: {slot.name}")


def make_stream(
    strategy: str | None, groups: int, schedule: str | None = None
) -> tuple[GradientStream[ArraySlot], dict[str, ArraySlot]]:
    slots = {name: ArraySlot(name, size) for name, size in SIZES.items()}
    grouped = {slot: name for name, slot in slots.items() if name in ("a", "b")}
    stream: GradientStream[ArraySlot] = GradientStream(
        Arrays(),
        slots.values(),
        plan_groups(groups, grouped, hvd.global_process_set),
        op=hvd.Sum,
        process_set=hvd.global_process_set,
        fusion=choose_fusion(strategy, None, schedule, None),
    )
    return stream, slots


def step(
    stream: GradientStream[ArraySlot], slots: dict[str, ArraySlot], order: str, absent: str = ""
) -> None:
    """Does a step in which this rank's gradients are its rank plus one."""
    for slot in slots.values():
        slot.array = None
    for name in order.split():
        if name != absent:
            slots[name].array = np.full_like(slots[name].target, hvd.rank() + 1)
            stream.ready(slots[name])
    stream.synchronize()


def check(slots: dict[str, ArraySlot], missing: str = "") -> None:
    everyone = sum(range(1, hvd.size() + 1))
    for name, slot in slots.items():
        found = slot.target if name == "c" else slot.array
        # The sum of what only rank 0 had is 1.
        assert found is not None, name
        np.testing.assert_array_equal(found, 1 if name == missing else everyone, err_msg=name)


def combine_in_every_kind_of_unit() -> None:
    hvd.init()
    order = "alone c b a" if hvd.rank() == 0 else "alone a b c"
    for strategy, groups, schedule in (
        (None, 0, None),
        (None, 1, None),
        ("none", 0, None),
        ("piecewise_fusion", 0, "0;2"),
        ("piecewise_fusion", 1, "0"),
    ):
        stream, slots = make_stream(strategy, groups, schedule)
        for _ in range(3):
            step(stream, slots, order)
            check(slots)
            assert not stream.active
        for absent in SIZES:  # Rank 1 lacks a gradient: it counts as zeros.
            step(stream, slots, order, absent if hvd.rank() == 1 else "")
            check(slots, absent)


def count_passes() -> None:
    hvd.init()
    stream, slots = make_stream(None, 0)
    stream.set_passes(2)
    for slot in slots.values():
        slot.array = np.full_like(slot.target, 1)
        stream.ready(slot)
    assert stream.active
    assert set(stream.handles().values()) == {None}
    stream.send(slots["a"])
    assert stream.handles()[slots["a"]] is not None
    with pytest.raises(AssertionError, match="too many passes: a"):
        stream.ready(slots["a"])
    for name in ("b", "c", "alone"):
        stream.ready(slots[name])
    assert stream.settle() is True
    assert stream.settle() is None
    for slot in slots.values():
        found = slot.target if slot.name == "c" else slot.array
        assert found is not None
        np.testing.assert_array_equal(found, hvd.size())


def test_a_stream_combines_in_every_kind_of_unit() -> None:
    spawn_ranks(combine_in_every_kind_of_unit, np=2)


def test_a_stream_counts_passes() -> None:
    spawn_ranks(count_passes, np=2)


def test_nested_state_is_taken_apart_and_put_together() -> None:
    shared = np.arange(6, dtype=np.float32).reshape(2, 3)
    state = {"step": 3, "moments": [shared, {"again": shared}], "other": np.ones(2, np.int64)}

    def describe(obj: Any) -> tuple[str, tuple[int, ...]] | None:
        return (str(obj.dtype), obj.shape) if isinstance(obj, np.ndarray) else None

    structure, tensors = take_apart(state, describe)
    assert [tensor.shape for tensor in tensors] == [(2, 3), (2,)]
    made, empty = put_together(structure, lambda found: np.empty(found[1], found[0]))
    for target, tensor in zip(empty, tensors, strict=True):
        target[:] = tensor
    assert made["step"] == 3
    assert made["moments"][0] is made["moments"][1]["again"]
    np.testing.assert_array_equal(made["moments"][0], shared)
    np.testing.assert_array_equal(made["other"], state["other"])
