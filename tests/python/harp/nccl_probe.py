"""Takes an NCCL to where it opens its net plugin: python nccl_probe.py LIBNCCL_SO.

That needs no GPU. Versions before 2.23 do it in ncclGetUniqueId(), later ones in a function that
the library does not export, which is found by the symbols that the file keeps.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

# More than any version's communicator has; zeros mean that nothing was configured.
_COMMUNICATOR_BYTES = 16 << 20
_UNIQUE_ID_BYTES = 128
_LOAD = "_Z17ncclNetPluginLoadP8ncclComm"
_INIT = "_Z11ncclNetInitP8ncclComm"


def addresses(path: str) -> dict[str, int]:
    """Returns what the file's symbol table has, by name."""
    listing = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    lines = (line.split() for line in listing.splitlines())
    return {words[2]: int(words[0], 16) for words in lines if len(words) == 3}


def main() -> None:
    """Prints what the calls return; NCCL_DEBUG says the rest."""
    path = sys.argv[1]
    library = ctypes.CDLL(path)
    library.ncclGetUniqueId(ctypes.create_string_buffer(_UNIQUE_ID_BYTES))
    known = addresses(path)
    loaded_at = ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value
    assert loaded_at is not None
    communicator = ctypes.create_string_buffer(_COMMUNICATOR_BYTES)
    for name in (_LOAD, _INIT):
        if name in known:
            function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(
                loaded_at - known["ncclGetVersion"] + known[name]
            )
            sys.stdout.write(f"{name} {function(ctypes.addressof(communicator))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
