"""A client of PMIx, the key-value store that `srun --mpi=pmix` gives its tasks.

Only `libpmix.so.2` speaks it. Its structures have been the same since version 2; what is declared
here is what seven of its functions need, with unions as large as the largest member.

Each talk has keys of its own, and a fence that collects: the servers of all nodes then have what
was put, and no value that is older can stand for one that is newer.
"""

from __future__ import annotations

import ctypes

from lightcc._discovery.libraries import open_library

_LIBRARIES = ("libpmix.so.2", "libpmix.so")
_MAX_NSPACE_BYTES, _MAX_KEY_BYTES = 256, 512
_BOOL, _STRING = 1, 3  # Types of values.
_GLOBAL = 3  # Who may read a value: all.


class _Proc(ctypes.Structure):
    _fields_ = (("nspace", ctypes.c_char * _MAX_NSPACE_BYTES), ("rank", ctypes.c_uint32))


class _Data(ctypes.Union):
    _fields_ = (
        ("flag", ctypes.c_bool),
        ("string", ctypes.c_char_p),
        ("largest", ctypes.c_void_p * 3),
    )


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


class _Info(ctypes.Structure):
    _fields_ = (
        ("key", ctypes.c_char * _MAX_KEY_BYTES),
        ("flags", ctypes.c_uint32),
        ("value", _Value),
    )


class Pmix:
    """Talks through PMIx, as a `meeting.Channel`."""

    def __init__(self, size: int) -> None:
        """Connects to the server on this host. Values are hexadecimal.

        Args:
            size: Number of the tasks that have been started together.

        Raises:
            ValueError: There is no library, or no server.
        """
        self._library = open_library(_LIBRARIES, "pmix", "start with srun --mpi=pmi2")
        self._library.PMIx_Error_string.restype = ctypes.c_char_p
        self._size = size
        self._own = _Proc()
        self._talks = 0
        self._call("PMIx_Init", ctypes.byref(self._own), None, ctypes.c_size_t(0))

    def broadcast(self, text: str) -> str:
        """Returns rank 0's text on every rank."""
        self._talks += 1
        if self._own.rank == 0:
            self._put(text)
        self._fence()
        return self._get(0)

    def gather(self, text: str) -> list[str]:
        """Returns every rank's text on rank 0, and nothing on the others."""
        self._talks += 1
        self._put(text)
        self._fence()
        return [self._get(rank) for rank in range(self._size)] if self._own.rank == 0 else []

    def finalize(self) -> None:
        """Tells the server that this task ends as it should."""
        self._call("PMIx_Finalize", None, ctypes.c_size_t(0))

    def _key(self) -> bytes:
        return f"lightcc/{self._talks}".encode()

    def _put(self, text: str) -> None:
        value = _Value(_STRING, _Data(string=text.encode().hex().encode()))
        self._call("PMIx_Put", ctypes.c_uint8(_GLOBAL), self._key(), ctypes.byref(value))
        self._call("PMIx_Commit")

    def _fence(self) -> None:
        collect = _Info(b"pmix.collect", 0, _Value(_BOOL, _Data(flag=True)))
        self._call(
            "PMIx_Fence", None, ctypes.c_size_t(0), ctypes.byref(collect), ctypes.c_size_t(1)
        )

    def _get(self, rank: int) -> str:
        proc = _Proc(self._own.nspace, rank)
        found = ctypes.POINTER(_Value)()
        nothing = (None, ctypes.c_size_t(0))
        # The value is the library's gift, a few hundred bytes. It is kept: only macros free it.
        self._call("PMIx_Get", ctypes.byref(proc), self._key(), *nothing, ctypes.byref(found))
        return bytes.fromhex(found.contents.data.string.decode()).decode()

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            said = self._library.PMIx_Error_string(code).decode()
            msg = f"{name} failed: {said} ({code})"
            raise ValueError(msg)
