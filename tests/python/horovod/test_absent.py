"""Names of Horovod's that programs import or probe."""

from __future__ import annotations

import pytest
from programs import RUN, output

import lightcc
import lightcc.torch
from lightcc.horovod.common.basics import HorovodBasics


@pytest.mark.parametrize(
    "owner",
    [lightcc, lightcc.torch, lightcc.torch.mpi_ops, HorovodBasics()],
    ids=["lightcc", "torch", "mpi_ops", "basics"],
)
def test_a_name_that_is_not_there_is_an_attribute_error(owner: object) -> None:
    assert not hasattr(owner, "nothing")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        owner.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_names_that_clients_import_are_there_and_one_under_all_names() -> None:
    program = """
import horovod.torch.elastic
from horovod.torch import elastic, rank
from horovod.torch.elastic import ElasticSampler, TorchState, run
from horovod.torch.elastic.state import get_handler_registry, set_handler_registry
from horovod.common.elastic import ObjectState, State, notification_manager, run_fn
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.runner.elastic.constants import RESET_LIMIT_EXCEEDED_MESSAGE
import lightcc.elastic
assert lightcc.elastic.State is State and issubclass(TorchState, ObjectState)
assert HostUpdateResult.mixed == HostUpdateResult.added | HostUpdateResult.removed == 3

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


def test_the_driver_has_the_address_of_a_named_interface() -> None:
    from lightcc.horovod.runner.util import network

    assert network.get_driver_ip({"lo"}) == "127.0.0.1"
    with pytest.raises(RuntimeError, match=r"none of \['nic0', 'nic1'\] is up; candidates: .*lo"):
        network.get_driver_ip({"nic1", "nic0"})
