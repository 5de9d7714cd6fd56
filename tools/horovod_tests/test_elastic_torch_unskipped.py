"""The elastic tests that Horovod skips for torch, since its survivors abort; here they must pass.

`tools/horovod_suite.py` runs this file in the folder test/integration of a checkout of Horovod,
whose test/utils is in PYTHONPATH. The tests are Horovod's own, inherited.
"""

from __future__ import annotations

import os
import unittest
from typing import Any

from elastic_common import BaseElasticTests  # type: ignore[import-not-found]

SKIPPED = {
    "test_all_hosts_blacklisted",
    "test_fault_tolerance_without_scaling",
    "test_min_hosts_timeout",
    "test_single_rank_failure",
}


class UnskippedElasticTorchTests(BaseElasticTests, unittest.TestCase):  # type: ignore[misc]
    """Those of Horovod's tests that its own class for torch skips."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Names the program that the ranks run."""
        super().__init__(os.path.abspath("data/elastic_torch_main.py"), *args, **kwargs)  # noqa: PTH100

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """Takes `np` as well, which one of the tests still says for `num_proc`."""
        if "np" in kwargs:
            kwargs["num_proc"] = kwargs.pop("np")
        return super()._run(*args, **kwargs)


for _name in dir(BaseElasticTests):
    if _name.startswith("test_") and _name not in SKIPPED:
        setattr(UnskippedElasticTorchTests, _name, None)
