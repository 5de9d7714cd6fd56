"""What Horovod has and lightcc does not have yet: a sentence, and no surprise for who probes."""

from __future__ import annotations

import pytest
from programs import RUN, output

import lightcc
import lightcc.torch
from lightcc.horovod.common.basics import HorovodBasics

NAMES = {"elastic": "elastic jobs"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "owner",
    [lightcc, lightcc.torch, lightcc.torch.mpi_ops, HorovodBasics()],
    ids=["lightcc", "torch", "mpi_ops", "basics"],
)
def test_a_name_that_is_not_there_yet_says_so_and_probing_works(owner: object, name: str) -> None:
    assert not hasattr(owner, name)
    with pytest.raises(NotImplementedError, match=f"{name}: .* not support (the )?{NAMES[name]}"):
        getattr(owner, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'") as caught:
        owner.nothing  # type: ignore[attr-defined]  # noqa: B018
    assert not isinstance(caught.value, NotImplementedError)


def test_importing_such_a_name_is_an_import_error_that_says_so() -> None:
    program = """
lines = [
    "import horovod.torch.elastic",
    "from horovod.torch import elastic",
    "from horovod.torch.elastic import run",
    "from horovod.torch import rank, elastic",
]
for line in lines:
    try:
        exec(line)
    except ImportError as error:
        assert "this version of lightcc does not support" in str(error), (line, error)
    else:
        raise SystemExit(line)
from horovod.torch import mpi_ops
try:
    from horovod.torch import nothing
except ImportError as error:
    assert "cannot import name 'nothing'" in str(error), error
"""
    output(*RUN, "-c", program)


def test_names_that_clients_import_from_the_operations_are_there() -> None:
    program = """
from horovod.torch.mpi_ops import (
    Adasum, Average, Compression, HorovodInternalError, ProcessSet, Sum, add_process_set,
    check_installed_version, get_average_backwards_compatibility_fun, global_process_set,
    gpu_available, handle_average_backwards_compatibility, init, num_rank_is_power_2,
    remove_process_set, shutdown,
)
import pickle
from horovod.common.basics import HorovodBasics, ProcessSet as third, global_process_set as one_set
from horovod.common.exceptions import HorovodVersionMismatchError
from horovod.common.util import EXTENSIONS, HorovodVersionMismatchError as error_too
from horovod.common.process_sets import ProcessSet as other
from horovod.torch.compression import Compression as same
assert other is third is ProcessSet and same is Compression and one_set is global_process_set
assert handle_average_backwards_compatibility(None, False) is Sum and "torch" in EXTENSIONS
error = pickle.loads(pickle.dumps(error_too("torch", "1.0", "2.0")))
assert isinstance(error, HorovodVersionMismatchError) and isinstance(error, ImportError)
assert (error.name, error.version, error.installed_version) == ("torch", "1.0", "2.0")
assert str(error) == "built for torch 1.0, but torch 2.0 is installed"
"""
    output(*RUN, "-c", program)
