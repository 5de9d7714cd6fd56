"""A switch in user space whose links have a rate and a delay, for hosts on one machine.

A process of its own reads Ethernet frames from the TAP interface of each host, and writes them to
those of others when they would arrive. The kernel hands over up to 64 KiB of TCP at once, as it
would to a network card that cuts segments itself. So Python is fast enough for 1 Gb/s, and a whole
such frame arrives, or is lost, at once. Only the standard library is needed, and the file is run by
its path: nothing of lightcc is imported.

What is not emulated: jitter, losses other than those of full queues, and several links in a row.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_CHECKSUM, _TSO4, _TSO6 = 0x01, 0x02, 0x04
# The kernel's header of a frame: kind of segments, their bytes, where the TCP header begins.
_VIRTIO = struct.Struct("=xBxxHHxx")
_MAX_FRAME_BYTES = 70_000
_FRAMES_AT_ONCE = 32  # From one host, before others have their turn.
_QUEUE_S, _MIN_QUEUE_BYTES = 20e-3, 2500_000  # As of `cluster`; or a round trip's, if that is more.


class Switch:
    """Says which frame arrives where and when. It has no clock and does no I/O."""

    def __init__(self, rate: float, delay_s: float, ports: int) -> None:
        """`rate` is of each link, each way, in bits per second. `delay_s` is one way."""
        self.rate = rate
        self._delay_s = delay_s
        self._free_up = [0.0] * ports  # When a host may begin to send its next frame.
        self._free_down = [0.0] * ports  # When a host has received all that is on its way.
        self._ports: dict[bytes, int] = {}  # By the hosts' addresses.
        self._under_way: list[tuple[float, int, int, bytes]] = []  # A heap.
        self._taken = 0

    @property
    def next_at(self) -> float | None:
        """When the next frame arrives; None while there is none."""
        return self._under_way[0][0] if self._under_way else None

    def take(self, port: int, frame: bytes, now: float) -> None:
        """Takes a frame from a host; drops it where it finds a queue full."""
        size = _VIRTIO.size
        destination, source = frame[size : size + 6], frame[size + 6 : size + 12]
        self._ports[source] = port
        known = self._ports.get(destination)
        others = [it for it in range(len(self._free_up)) if it != port]
        lasts_s = wire_bytes(frame) * 8 / self.rate
        queue_s = max(_MIN_QUEUE_BYTES * 8 / self.rate, _QUEUE_S, 2 * self._delay_s)
        if self._free_up[port] - now > queue_s:
            return
        sent = max(now, self._free_up[port]) + lasts_s
        self._free_up[port] = sent
        for to in others if known is None else [known]:
            received = max(sent, self._free_down[to] + lasts_s)
            if to != port and received - sent <= queue_s:
                self._free_down[to] = received
                self._taken += 1  # Frames of one time stay in order.
                heapq.heappush(self._under_way, (received + self._delay_s, self._taken, to, frame))

    def arrived(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Yields the hosts and frames that have arrived, in their order."""
        while self._under_way and self._under_way[0][0] <= now:
            _, _, port, frame = heapq.heappop(self._under_way)
            yield port, frame


def wire_bytes(frame: bytes) -> int:
    """Returns the bytes of a frame on a link, where each of its segments has all headers."""
    kind, segment_bytes, tcp_begin = _VIRTIO.unpack_from(frame)
    total = len(frame) - _VIRTIO.size
    if kind == 0 or segment_bytes == 0:
        return total
    header_bytes = tcp_begin + (frame[_VIRTIO.size + tcp_begin + 12] >> 4) * 4
    segments = -(-(total - header_bytes) // segment_bytes)
    return int(total + (segments - 1) * header_bytes)


def open_tap(name: str) -> int:
    """Makes a TAP interface in this thread's network namespace; it is there until it is closed."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(tap, _TUNSETOFFLOAD, _CHECKSUM | _TSO4 | _TSO6)
    except OSError:
        os.close(tap)
        raise
    return tap


def start(rate: float, delay_s: float, taps: Sequence[int]) -> subprocess.Popen[str]:
    """Starts the process. It ends with its input; a line there is another rate."""
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", __file__, str(rate), str(delay_s), *map(str, taps)],
        stdin=subprocess.PIPE,
        pass_fds=taps,
        text=True,
        start_new_session=True,  # Ctrl-C is for the process that has to clean up.
    )


def run(switch: Switch, taps: Sequence[int]) -> None:
    """Passes frames on until standard input ends."""
    control = sys.stdin.fileno()
    while True:
        now = time.monotonic()
        for port, frame in switch.arrived(now):
            with contextlib.suppress(OSError):  # An interface that is down takes nothing.
                os.write(taps[port], frame)
        left = None if switch.next_at is None else max(0.0, switch.next_at - time.monotonic())
        # Not epoll: Python rounds its timeouts to milliseconds.
        ready, _, _ = select.select([control, *taps], [], [], left)
        if control in ready:
            words = os.read(control, 4096).split()
            if not words:
                return
            switch.rate = float(words[-1])
        for port, tap in enumerate(taps):
            if tap in ready:
                for frame in _frames_of(tap):
                    switch.take(port, frame, time.monotonic())


def _frames_of(tap: int) -> Iterator[bytes]:
    with contextlib.suppress(BlockingIOError):
        for _ in range(_FRAMES_AT_ONCE):
            yield os.read(tap, _MAX_FRAME_BYTES)


if __name__ == "__main__":
    _taps = [int(word) for word in sys.argv[3:]]
    run(Switch(float(sys.argv[1]), float(sys.argv[2]), len(_taps)), _taps)
