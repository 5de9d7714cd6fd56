"""Bytes over a connection that strangers may change: each record proves that it is the next one.

A record is a length (4 bytes, big-endian), the bytes, and HMAC-SHA256 over the record's number (8
bytes), the length and the bytes. Each direction has a key of its own. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

MAX_RECORD_BYTES = 1 << 20
PROOF_BYTES = 32
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!Q")


class SealError(ValueError):
    """What arrived is not what the other end has sent."""


class Seal:
    """Seals what is sent, and opens what arrives."""

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        """Begins at record 0 in both directions."""
        self._send_key = send_key
        self._receive_key = receive_key
        self._sent = 0
        self._received = 0
        self._buffer = bytearray()

    def wrap(self, data: bytes) -> bytes:
        """Returns the records that carry `data`."""
        records = bytearray()
        for begin in range(0, len(data), MAX_RECORD_BYTES):
            part = data[begin : begin + MAX_RECORD_BYTES]
            body = _LENGTH.pack(len(part)) + part
            records += body + _proof(self._send_key, self._sent, body)
            self._sent += 1
        return bytes(records)

    def unwrap(self, data: bytes) -> bytes:
        """Takes what arrived and returns what the records carry that are now complete.

        Raises:
            SealError: A record is too long, or does not prove itself.
        """
        self._buffer += data
        found = bytearray()
        while len(self._buffer) >= _LENGTH.size:
            end = record_bytes(self._buffer)
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[: end - PROOF_BYTES])
            proof = bytes(self._buffer[end - PROOF_BYTES : end])
            if not hmac.compare_digest(proof, _proof(self._receive_key, self._received, body)):
                msg = f"record {self._received} of a sealed connection does not prove itself"
                raise SealError(msg)
            self._received += 1
            found += body[_LENGTH.size :]
            del self._buffer[:end]
        return bytes(found)


def record_bytes(begin: bytes | bytearray) -> int:
    """Returns how long the record is that begins with these bytes, at least four.

    Raises:
        SealError: It is too long.
    """
    (length,) = _LENGTH.unpack_from(begin)
    if length > MAX_RECORD_BYTES:
        msg = f"a record of {length} bytes; at most {MAX_RECORD_BYTES} are allowed"
        raise SealError(msg)
    return int(_LENGTH.size + length + PROOF_BYTES)


def _proof(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, _NUMBER.pack(number) + body, hashlib.sha256)
