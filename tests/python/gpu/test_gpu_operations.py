"""Operations on arrays of a real GPU: `make test-gpu`. Two ranks may share one."""

from __future__ import annotations

import pytest
from gpu_operations import every_operation_gives_what_it_gives_for_host_memory

from lightcc import _core
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.gpu


def test_every_operation_gives_the_hosts_bits() -> None:
    try:
        _core.find_gpus()
    except NotImplementedError as error:
        pytest.skip(str(error))
    driver = "libcuda.so.1"
    spawn_ranks(every_operation_gives_what_it_gives_for_host_memory, 2, driver, fresh=True)
