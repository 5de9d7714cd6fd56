"""Horovod's names for programs that are not to be changed: `import horovod.torch` is lightcc.

Three ways to say so, all the same:

    python -m lightcc.horovod train.py --epochs 3   # also -m MODULE, -c CODE
    lightccrun --horovod -np 4 python train.py
    LIGHTCC_HOROVOD=1 python train.py

The variable is the switch. A `.pth` file in site-packages looks at it when an interpreter starts,
and where it is 1 puts a finder (`alias`) first in `sys.meta_path`. So child processes of any kind
(spawn, forkserver, subprocess) have the names, too, and every module is one object under both
names. No package called horovod is installed, and one that is there is not used. The command
`horovodrun` is there when it was asked for: `python -m lightcc.horovod --install-horovodrun`.

This package is itself what `import horovod` gives.
"""

from __future__ import annotations

from lightcc.horovod import alias as _alias
from lightcc.horovod.runner.interactive import run

__version__ = _alias.VERSION

__all__ = ["__version__", "run"]
