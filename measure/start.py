"""What starting and holding many ranks costs: `init()`, the first all-reduce, memory, descriptors.

    python measure/start.py --ranks 128 --hosts 1

All ranks are on this host. With `--hosts` they have as many values of LIGHT_HOST_ID, and so reach
each other as hosts do, by the loopback interface. They are forked from this process, which has
imported lightcc, so that importing does not count; a store serves them from here.

Seconds are those of the slowest rank. Processor seconds are the mean of the ranks, and do not
count what the store takes, which has a row of its own. Memory is resident MB: the whole process,
with Python and what is shared, in brackets what only this process has.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import lightcc as hvd
from lightcc.runner.environment import make_secret, slot_environment
from lightcc.runner.hosts import Slot, number_ranks
from lightcc.runner.store import start_store

_KINDS = {"anon_inode:[eventfd]": "eventfd", "anon_inode:[pidfd]": "pidfd"}
_MB = 1e6


def main() -> None:
    """Parses the arguments, measures, and prints a row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of the second all-reduce")
    parser.add_argument("--kinds", action="store_true", help="also prints descriptors by kind")
    arguments = parser.parse_args()
    answers, store_s = measure(arguments.ranks, arguments.hosts, arguments.bytes)
    print_row(arguments, answers, store_s)
    if arguments.kinds:
        most = max(answers, key=lambda it: it["descriptors"])
        print(f"rank {most['rank']} has the most descriptors: {most['kinds']}")


def measure(size: int, hosts: int, num_bytes: int) -> tuple[list[dict[str, Any]], float]:
    """Returns what each rank has measured, and the processor seconds of this process meanwhile."""
    names = [str(rank * hosts // size) for rank in range(size)]
    slots = sorted(number_ranks(names), key=lambda it: it.rank)
    secret = make_secret()
    ours, theirs = zip(*(socket.socketpair() for _ in slots), strict=True)
    for slot, own in zip(slots, theirs, strict=True):
        if os.fork() == 0:
            for other in (*ours, *theirs):
                if other is not own:
                    other.close()
            _be_rank(own, slot, secret, hosts, num_bytes)
    for own in theirs:
        own.close()
    store = start_store("127.0.0.1", secret)
    before = _processor_s()
    files = [own.makefile("rw") for own in ours]
    for file in files:
        print(store.address, file=file, flush=True)
    answers = [json.loads(file.readline() or "null") for file in files]
    store_s = _processor_s() - before
    for file in files:  # All have answered: they may leave.
        print(file=file, flush=True)
    for _ in slots:
        os.wait()
    store.stop()
    if None in answers:
        sys.exit("ranks ended; their words are above")
    return answers, store_s


def _be_rank(own: socket.socket, slot: Slot, secret: str, hosts: int, num_bytes: int) -> None:
    try:
        file = own.makefile("rw")
        address = file.readline().strip()
        os.environ.update(slot_environment(slot, rendezvous=address, secret=secret))
        if hosts > 1:
            os.environ["LIGHT_HOST_ID"] = slot.host
        answer = _start(num_bytes)
        print(json.dumps(answer), file=file, flush=True)
        file.readline()
        hvd.shutdown()
        os._exit(0)
    except BaseException:  # noqa: BLE001  a rank never returns
        traceback.print_exc()
        os._exit(1)


def _start(num_bytes: int) -> dict[str, Any]:
    start, processor = time.monotonic(), _processor_s()
    hvd.init()
    joined, processor_joined = time.monotonic(), _processor_s()
    memory_joined = _memory()
    _check(hvd.allreduce(np.ones(1, np.float32), name="first", op=hvd.Sum))
    first, processor_first = time.monotonic(), _processor_s()
    large = np.ones(num_bytes // 4, np.float32)
    _check(hvd.allreduce(large, name="second", op=hvd.Sum))
    second = time.monotonic()
    kinds = _descriptors()
    return {
        "rank": hvd.rank(),
        "init_s": joined - start,
        "init_processor_s": processor_joined - processor,
        "first_s": first - joined,
        "first_processor_s": processor_first - processor_joined,
        "second_s": second - first,
        "memory_joined": memory_joined,
        "memory": _memory(),
        "descriptors": sum(kinds.values()),
        "kinds": kinds,
    }


def _check(total: Any) -> None:
    if not np.array_equal(total, np.full_like(total, hvd.size())):
        msg = "an all-reduce has a wrong result"
        raise RuntimeError(msg)


def print_row(arguments: argparse.Namespace, answers: list[dict[str, Any]], store_s: float) -> None:
    """Prints a table of one row."""

    def most(key: str) -> float:
        return float(max(it[key] for it in answers))

    def mean(key: str) -> float:
        return statistics.fmean(it[key] for it in answers)

    def memory(when: str) -> str:
        resident = max(it[when]["Rss"] for it in answers)
        private = max(it[when]["Private"] for it in answers)
        return f"{resident:.0f} ({private:.0f})"

    row = {
        "ranks": f"{arguments.ranks}",
        "hosts": f"{arguments.hosts}",
        "init, s": f"{most('init_s'):.2f}",
        "processor s": f"{mean('init_processor_s'):.3f}",
        "store, processor s": f"{store_s:.2f}",
        "first all-reduce, s": f"{most('first_s'):.2f}",
        "its processor s": f"{mean('first_processor_s'):.3f}",
        f"{arguments.bytes} bytes, s": f"{most('second_s'):.2f}",
        "descriptors": f"{most('descriptors'):.0f}",
        "MB joined": memory("memory_joined"),
        "MB": memory("memory"),
    }
    print("| " + " | ".join(row) + " |")
    print("|" + "---|" * len(row))
    print("| " + " | ".join(row.values()) + " |")


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _descriptors() -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # The folder's own.
            continue
        kinds[_KINDS.get(target, target.partition(":")[0] + target.partition("]")[1])] += 1
    return dict(kinds.most_common())


def _memory() -> dict[str, float]:
    sums: Counter[str] = Counter()
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        key, _, value = line.partition(":")
        sums[key.partition("_")[0]] += int(value.split()[0]) * 1024
    return {key: sums[key] / _MB for key in ("Rss", "Pss", "Private")}


if __name__ == "__main__":
    main()
