"""A TensorFlow that cannot use the kernels is noticed at import."""

from __future__ import annotations

import ctypes

import pytest
import tensorflow as tf

from lightcc import doctor
from lightcc.tensorflow import _library


def test_a_tensorflow_that_calls_back_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.CDLL(str(_library.PATH))
    library.lightcc_tf_calls_back.restype = ctypes.c_bool
    process = ctypes.CDLL(None)
    assert library.lightcc_tf_calls_back(None)
    for wrong in (process.abort, process.getpid):  # It crashes; it calls nothing.
        assert not library.lightcc_tf_calls_back(ctypes.cast(wrong, ctypes.c_void_p))
    monkeypatch.setattr(_library, "_calls_back", lambda _: False)
    with pytest.raises(ImportError, match="does not call back as it does from"):
        _library._load()
    monkeypatch.setattr(_library, "PATH", _library.PATH.with_name("missing.so"))
    with pytest.raises(ImportError, match=r"missing\.so cannot be loaded"):
        _library._load()


def test_the_doctor_tells_that_operations_run_as_kernels() -> None:
    findings = {finding.name: finding for finding in doctor.check_libraries()}
    assert findings["lightcc.tensorflow"].detail == "runs as kernels of TensorFlow"
    assert findings["tensorflow"].detail == tf.__version__
    assert findings["keras"].status == doctor.OK
