"""Ray starts the ranks: Horovod's executors, whose ranks are actors of a Ray cluster.

    executor = RayExecutor(RayExecutor.create_settings(), num_workers=4)
    executor.start()
    results = executor.run(train, kwargs={"epochs": 3})
    executor.shutdown()

Ray places and starts the actors. The driver serves the job's store, and sets in each actor what
`lightccrun` would set. From there on a rank is like any other. See docs/running/ray.md, also for
Ray Train, which needs nothing of this package.
"""

from __future__ import annotations

try:
    import ray as _ray  # noqa: F401  the real one: says at once where it is missing
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    text = f"{__name__} needs Ray, which is not installed: pip install 'lightcc[ray]'"
    raise ModuleNotFoundError(text, name="ray") from error

from lightcc.ray.elastic import ElasticRayExecutor
from lightcc.ray.runner import RayExecutor
from lightcc.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
