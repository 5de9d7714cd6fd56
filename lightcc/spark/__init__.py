"""Spark starts the ranks: each is a process of a task.

    results = lightcc.spark.run(train, args=(0.1,), num_proc=4)

The tasks are one barrier stage, so all run at once. Each starts a fresh interpreter with what
`lightccrun` would set, and hands back what the function returned. The driver serves the job's
store. See docs/running/spark.md.

Horovod's estimators are not here: train in `run()`, on data that its ranks read.
"""

from __future__ import annotations

try:
    import pyspark as _pyspark  # noqa: F401  says at once where it is missing
except ModuleNotFoundError as error:
    if error.name != "pyspark":
        raise
    text = f"{__name__} needs pyspark, which is not installed: pip install 'lightcc[spark]'"
    raise ModuleNotFoundError(text, name="pyspark") from error

from lightcc.spark.elastic import run_elastic
from lightcc.spark.runner import run

__all__ = ["run", "run_elastic"]
