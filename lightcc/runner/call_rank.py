"""One rank of `call`: `python -m lightcc.runner.call_rank`, started by an agent.

The function comes on standard input, which afterwards is at its end. The outcome goes to the
descriptor that the agent names, written at once, before the interpreter ends.
"""

from __future__ import annotations

import multiprocessing.spawn
import os
import pickle
import sys
import traceback

from lightcc.runner.agent import frames
from lightcc.runner.call import Outcome, dumps


def main() -> int:
    """Makes the call; returns 0 when it returned and 1 when it raised."""
    result_fd = int(os.environ.pop(frames.RESULT_FD))
    os.set_inheritable(result_fd, False)
    request = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from the caller.
    # What the caller could import can be imported here, after what is installed here.
    sys.path += [entry for entry in request["path"] if entry not in sys.path]
    code = 0
    try:
        if request["main"]:
            multiprocessing.spawn.prepare(request["main"])
        function, args, kwargs = pickle.loads(request["call"])  # noqa: S301
        value = function(*args, **kwargs)
        try:
            data = dumps(Outcome(value))
        except TypeError as error:
            msg = f"the result: {error}"
            raise TypeError(msg) from error
    except Exception as error:  # noqa: BLE001 - it goes to the caller, whatever it is.
        traceback.print_exc()
        data = _error_data(error)
        code = 1
    with os.fdopen(result_fd, "wb") as file:
        file.write(data)
    return code


def _error_data(error: Exception) -> bytes:
    """Returns `error` as an outcome, or its text if it does not survive pickling."""
    try:
        data = dumps(Outcome(error=error))
        pickle.loads(data)  # noqa: S301 - our own bytes.
    except Exception:  # noqa: BLE001 - whatever its methods raise, the text must get through.
        text = "".join(traceback.format_exception_only(error)).strip()
        return pickle.dumps(Outcome(error=RuntimeError(text)))
    return data


if __name__ == "__main__":
    sys.exit(main())
