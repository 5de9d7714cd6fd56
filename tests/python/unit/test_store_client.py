"""The job's store as the launcher and the ranks of an elastic job use it."""

from __future__ import annotations

import threading

import pytest

from lightcc import _core
from lightcc.exceptions import PeerFailedError, ShutDownError

SOON_S = 20.0
#: In vain: long enough for a first connection on a busy machine.
IN_VAIN_S = 2.0


@pytest.fixture
def server() -> _core.StoreServer:
    return _core.StoreServer("127.0.0.1:0", "s3cret")


@pytest.fixture
def store(server: _core.StoreServer) -> _core.StoreClient:
    return _core.StoreClient(server.address, "s3cret")


def test_compare_and_set_returns_what_the_key_has_then(store: _core.StoreClient) -> None:
    assert store.compare_and_set("k", b"x", b"a", SOON_S) is None
    assert store.compare_and_set("k", None, b"a", SOON_S) == b"a"
    assert store.compare_and_set("k", None, b"b", SOON_S) == b"a"
    assert store.compare_and_set("k", b"a", b"b", SOON_S) == b"b"
    with pytest.raises(ValueError, match="65537 bytes, more than the 65536 allowed"):
        store.compare_and_set("k", None, bytes(65537), SOON_S)


def test_a_watch_sees_the_keys_of_a_prefix_and_waits_for_a_change(store: _core.StoreClient) -> None:
    store.set("p/1", b"one", SOON_S)
    seen = store.watch("p/", 0, SOON_S)
    assert seen is not None
    state, entries = seen
    assert entries == {"p/1": b"one"}
    assert store.watch("p/", state, IN_VAIN_S) is None
    later = threading.Timer(0.05, store.set, ("p/2", b"two", SOON_S))
    later.start()
    changed = store.watch("p/", state, SOON_S)
    later.join()
    assert changed is not None
    assert changed[1] == {"p/1": b"one", "p/2": b"two"}


def test_closing_a_client_ends_its_calls(store: _core.StoreClient) -> None:
    later = threading.Timer(0.05, store.close)
    later.start()
    with pytest.raises(ShutDownError, match="was closed"):
        store.get("never", SOON_S)
    later.join()


def test_a_round_can_be_called_off_before_all_ranks_are_there(
    server: _core.StoreServer, store: _core.StoreClient
) -> None:
    later = threading.Timer(0.2, store.fail, ("world/1/", "worker 1 has ended", SOON_S))
    later.start()
    with pytest.raises(PeerFailedError, match="worker 1 has ended"):
        _core.World(
            rank=0, size=2, rendezvous=server.address, key_prefix="world/1/", secret="s3cret"
        )
    later.join()
