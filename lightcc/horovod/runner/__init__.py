"""`horovod.runner`: `run()`, and the modules that programs import from here.

`horovod.runner.launch` is the command line. What Horovod's launcher is made of inside (services,
drivers, MPI) is not here.
"""

from __future__ import annotations

from lightcc.horovod.runner.interactive import _HorovodArgs, run

__all__ = ["_HorovodArgs", "run"]
