"""One rank of `lightcc.testing`: a process that calls a function and files the result.

`python -m lightcc.testing.rank_main DIRECTORY RANK PARENT`. DIRECTORY is private to the test and
holds `call.json` (what to import) and `arguments.pickle`; the outcome goes to `result.RANK`,
written whole or not at all. SIGUSR1 prints all stacks and ends the process; the end of the parent
thread that started it ends it too.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import importlib.util
import json
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def find_function(call: dict[str, str]) -> Callable[..., Any]:
    """Imports what `call` names: `module`, `qualname`, `root` for sys.path, `file` of a script."""
    if call["root"] not in sys.path:
        sys.path.insert(0, call["root"])
    if call["module"] == "__main__":
        # The caller is a script: import it under another name, so that its main part stays asleep.
        spec = importlib.util.spec_from_file_location("__rank_main__", call["file"])
        if spec is None or spec.loader is None:
            msg = f"cannot import {call['file']}"
            raise ImportError(msg)
        module = importlib.util.module_from_spec(spec)
        sys.modules["__rank_main__"] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(call["module"])
    found: Any = module
    for name in call["qualname"].split("."):
        found = getattr(found, name)
    function: Callable[..., Any] = found
    return function


def _picklable(error: BaseException) -> BaseException:
    """Returns `error`, or what it says if it does not survive pickling."""
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes.
    except Exception:  # noqa: BLE001 - whatever its __reduce__ raises, the text must get through.
        return RuntimeError("".join(traceback.format_exception_only(error)).strip())
    return error if isinstance(copy, BaseException) else RuntimeError(str(error))


def main() -> int:
    """Runs the call; returns 0 when it returned and 1 when it raised."""
    directory, rank, parent = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        return 1
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)
    code = 0
    try:
        call = json.loads((directory / "call.json").read_text(encoding="utf-8"))
        function = find_function(call)
        arguments = pickle.loads((directory / "arguments.pickle").read_bytes())  # noqa: S301
        data = pickle.dumps(("value", function(*arguments), ""))
    except BaseException as error:  # noqa: BLE001 - reported to the test, whatever it is.
        data = pickle.dumps(("error", _picklable(error), traceback.format_exc()))
        code = 1
    unfinished = directory / f"unfinished.{rank}"
    unfinished.write_bytes(data)
    unfinished.rename(directory / f"result.{rank}")
    return code


if __name__ == "__main__":
    sys.exit(main())
