"""Compressors that lightcc no longer has are answered in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

import lightcc
import lightcc.torch


@pytest.mark.parametrize("frontend", [lightcc, lightcc.torch])
@pytest.mark.parametrize("name", ["adam", "fp8", "onebit", "powersgd"])
def test_a_name_that_has_left_says_what_takes_its_place(frontend: Any, name: str) -> None:
    compression = frontend.Compression
    with pytest.raises(AttributeError, match=rf"Compression\.{name} is no longer in lightcc: use"):
        getattr(compression, name)
    assert not hasattr(compression, name)


def test_a_name_that_never_was_is_no_compressor() -> None:
    with pytest.raises(AttributeError, match="Compression has no 'zip'"):
        _ = lightcc.Compression.zip
