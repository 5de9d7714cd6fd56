"""Which of many tests run, where a part of them is enough."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

#: Tests of lightcc beside another program, and the sources that they are about; both as their paths
#: begin. All of them stand on the engine, which has tests of its own.
BESIDE_OTHERS = {
    "tests/python/deploy/": ("deploy/", "lightcc/_discovery/", "lightcc/runner/"),
    "tests/python/parallel/test_perfetto.py": (
        "lightcc/timeline/",
        "csrc/lightcc/engine/device_row",
        "csrc/lightcc/engine/timeline",
    ),
    "tests/python/tensorflow/": (
        "csrc/bindings/tensorflow",
        "csrc/lightcc_tf/",
        "lightcc/_keras/",
        "lightcc/keras/",
        "lightcc/tensorflow/",
    ),
    "tests/python/test_launchers.py": ("lightcc/_discovery/", "lightcc/runner/"),
    "tests/python/test_mpi_": ("csrc/lightcc/collectives/mpi_", "lightcc/_discovery/"),
    "tests/python/test_pod.py": ("deploy/", "lightcc/runner/"),
    "tests/python/test_ray.py": ("lightcc/elastic/", "lightcc/ray/", "lightcc/runner/"),
    "tests/python/test_spark.py": ("lightcc/elastic/", "lightcc/runner/", "lightcc/spark/"),
    "tests/python/torch_distributed/test_deepspeed.py": ("examples/", "lightcc/torch/"),
    "tests/python/torch_distributed/test_trainers.py": ("examples/", "lightcc/torch/"),
}


def is_in_share(name: str, share: int, seed: int) -> bool:
    """Returns whether a test is of the one in `share` that `seed` chooses.

    Seeds that follow one another choose each test once in `share` runs.
    """
    return (zlib.crc32(name.encode()) + seed) % share == 0


def is_beside_what_stayed(file: str, changed: Collection[str]) -> bool:
    """Returns whether a file tests lightcc beside another program, and nothing there changed.

    Args:
        file: A file of tests, as a path from the root of the repository.
        changed: The files that changed, as such paths.
    """
    for begin, sources in BESIDE_OTHERS.items():
        if file.startswith(begin):
            return not any(name.startswith((begin, *sources)) for name in changed)
    return False
