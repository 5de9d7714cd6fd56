"""Links with a delay: what arrives when, in virtual time, and between hosts of this machine."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from iproute import ip

from lightcc.bench.cluster import Cluster, in_namespace
from lightcc.bench.delay_link import Switch, wire_bytes

RATE = 8e6  # A byte takes a microsecond.
DELAY_S = 25e-3
HOSTS = [bytes([2, 0, 0, 0, 0, host]) for host in range(3)]


def frame(source: int, to: int | None, content: bytes = b"", total_bytes: int = 1000) -> bytes:
    destination = b"\xff" * 6 if to is None else HOSTS[to]
    return (bytes(10) + destination + HOSTS[source] + content).ljust(10 + total_bytes, b"\0")


def met(*ports: int) -> Switch:
    """A switch that has seen frames from these ports, long ago."""
    switch = Switch(RATE, DELAY_S, len(HOSTS))
    for port in ports:
        switch.take(port, frame(port, port), -100.0)
    return switch


def events(switch: Switch) -> list[tuple[int, int, bytes]]:
    """Returns microseconds, hosts and frames of all arrivals."""
    found = []
    while (at := switch.next_at) is not None:
        assert list(switch.arrived(at - 1e-9)) == []
        found += [(round(at * 1e6), port, data) for port, data in switch.arrived(at)]
    return found


def test_frames_keep_their_order_and_arrive_at_the_rate_after_the_delay() -> None:
    switch = met(0, 1)
    first, second, back = frame(0, 1, b"1"), frame(0, 1, b"2", 500), frame(1, 0)
    for data in (first, second):
        switch.take(0, data, 0.0)
    switch.take(1, back, 0.0002)  # The other way is free.
    assert events(switch) == [(26000, 1, first), (26200, 0, back), (26500, 1, second)]


def test_a_frame_goes_to_its_host_or_where_that_is_unknown_to_all_others() -> None:
    switch = met(0, 1)
    known, unknown, everyone = frame(0, 1), frame(0, 2), frame(1, None)
    switch.take(0, known, 0.0)
    switch.take(0, unknown, 1.0)
    switch.take(1, everyone, 2.0)
    assert [(port, data) for _, port, data in events(switch)] == [
        (1, known),
        (1, unknown),
        (2, unknown),
        (0, everyone),
        (2, everyone),
    ]


def test_two_senders_share_the_link_of_who_receives() -> None:
    switch = met(0, 1, 2)
    for source in (0, 1):
        switch.take(source, frame(source, 2), 0.0)
    assert [at for at, _, _ in events(switch)] == [26000, 27000]


def test_a_full_queue_drops_frames_until_there_is_room() -> None:
    switch = met(0, 1)
    for _ in range(4000):
        switch.take(0, frame(0, 1), 0.0)
    kept = len(events(switch))
    assert 2500 <= kept <= 2502  # 2.5 MB
    switch.take(0, frame(0, 1), kept * 1e-3)
    assert len(events(switch)) == 1


def test_each_segment_of_a_frame_has_its_headers_on_the_link() -> None:
    headers = bytearray(66)
    headers[34 + 12] = 8 << 4  # TCP with 32 bytes, after 14 of Ethernet and 20 of IP.
    segments = b"\x01\x01" + (66).to_bytes(2, "little") + (1448).to_bytes(2, "little")
    virtio = segments + (34).to_bytes(2, "little") + (16).to_bytes(2, "little")
    assert wire_bytes(virtio + headers + bytes(3 * 1448)) == 3 * (66 + 1448)
    assert wire_bytes(virtio + headers + bytes(1449)) == 2 * 66 + 1449
    assert wire_bytes(bytes(10) + headers) == 66


@pytest.mark.netns
def test_hosts_wait_for_the_delay_and_pass_no_more_than_the_rate() -> None:
    rate = 2e7
    with Cluster(3, 1e9, delay=DELAY_S) as hosts:
        assert hosts.describe().endswith("1 Gb/s each way, 25 ms one way")
        hosts.set_rate(rate)
        address = (hosts.addresses[2], 5000)
        with (
            in_namespace(hosts.names[2], lambda: socket.create_server(address)) as listener,
            ThreadPoolExecutor(1) as thread,
        ):
            begin = time.monotonic()
            sender = in_namespace(hosts.names[0], lambda: socket.create_connection(address, 10))
            assert time.monotonic() - begin >= 2 * DELAY_S
            content = os.urandom(int(rate / 8))
            sending = thread.submit(send_all, sender, content)
            received = b""
            with listener.accept()[0] as receiver:
                while data := receiver.recv(1 << 20):
                    received += data
                    # What arrives was sent a delay ago, after a round trip of greeting.
                    on_link_s = time.monotonic() - begin - 3 * DELAY_S
                    assert len(received) * 8 <= rate * on_link_s
            sending.result()
        assert received == content
        assert hosts.switch_processor_s() > 0


def send_all(sender: socket.socket, content: bytes) -> None:
    with sender:
        sender.sendall(content)


PARENT = """
import sys
from lightcc.bench.cluster import Cluster
with Cluster(2, 1e8, delay=0.025) as hosts:
    print(*hosts.names, hosts._link.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.netns
def test_the_switch_ends_when_its_parent_is_killed() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        *names, pid = parent.stdout.readline().split()
        switch = os.pidfd_open(int(pid))
        try:
            parent.send_signal(signal.SIGKILL)
            ended, _, _ = select.select([switch], [], [], 30)
            assert ended
            for name in names:
                assert "eth0" not in ip("-n", name, "link")
        finally:
            os.close(switch)
            for name in names:
                ip("netns", "del", name)
