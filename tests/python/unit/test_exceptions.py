"""Each error code of the engine has one class, and nothing of an error gets lost."""

from __future__ import annotations

import pickle

import pytest

import lightcc as hvd
from lightcc import _core

CLASSES: dict[str, type[Exception]] = {
    "invalid argument": ValueError,
    "mismatch": hvd.RankMismatchError,
    "peer failed": hvd.PeerFailedError,
    "timeout": hvd.CollectiveTimeoutError,
    "shut down": hvd.ShutDownError,
    "system": hvd.EngineError,
    "unimplemented": NotImplementedError,
    "internal": hvd.EngineError,
}


def test_every_code_has_exactly_the_documented_class() -> None:
    table = _core.error_table()
    assert [code for code, _, _ in table] == list(range(1, len(CLASSES) + 1))
    assert {cls for _, _, cls in table} == set(CLASSES.values())
    assert [cls for _, _, cls in table] == list(CLASSES.values())


@pytest.mark.parametrize(("code", "name", "cls"), _core.error_table())
def test_code_makes_its_class_with_text_and_rank(
    code: int, name: str, cls: type[Exception]
) -> None:
    error = _core.make_error(code, f"it was {name}", 3)
    assert type(error) is cls
    assert str(error) == f"it was {name}"
    if isinstance(error, hvd.HorovodInternalError):
        assert error.rank == 3


@pytest.mark.parametrize("code", [0, 9, 255])
def test_unknown_code_is_an_engine_error(code: int) -> None:
    assert type(_core.make_error(code, "text")) is hvd.EngineError


def test_error_without_a_rank_has_none() -> None:
    error = _core.make_error(3, "text")
    assert isinstance(error, hvd.PeerFailedError)
    assert error.rank is None


def test_engine_text_that_is_not_utf8_still_arrives() -> None:
    error = _core.make_error(8, "caf\u00e9 \u20ac")
    assert str(error) == "caf\u00e9 \u20ac"


@pytest.mark.parametrize("cls", sorted(set(CLASSES.values()), key=repr))
def test_error_survives_pickling(cls: type[Exception]) -> None:
    error = cls("text", 2) if issubclass(cls, hvd.HorovodInternalError) else cls("text")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == "text"
    assert getattr(copy, "rank", None) == getattr(error, "rank", None)


def test_internal_errors_are_what_elastic_training_catches() -> None:
    for cls in set(CLASSES.values()) - {ValueError, NotImplementedError}:
        assert issubclass(cls, hvd.HorovodInternalError)
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    assert not issubclass(hvd.HostsUpdatedInterrupt, hvd.HorovodInternalError)
    assert hvd.HostsUpdatedInterrupt(skip_sync=True).skip_sync
