"""Breaks HARP's protocol on purpose, one place at a time, and requires that a test notices.

Each mutant replaces one piece of one source; the test that is named beside it must then fail. With
`--check` nothing is built: every piece must occur exactly once, so that the table cannot rot. The
list in docs/harp/testing.md is this table.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tracked_files import ROOT

SOURCES = ROOT / "harp_plugin"
TESTS = SOURCES / "tests"
# What tools/get_googletest.sh has unpacked, where it had to.
GOOGLETEST = ROOT / "build" / "googletest" / "usr"
FLAGS = ["-std=c++20", "-O1", "-march=x86-64-v2", "-w", "-idirafter", str(GOOGLETEST / "include")]
GOOGLETEST_LIBRARIES = [
    *(f"-L{library.parent}" for library in GOOGLETEST.glob("lib/**/libgtest.a")),
    "-lgtest",
    "-lgtest_main",
]
INCLUDE = re.compile(r'^#include "((?:base|protocol|sim)/[^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One broken place: `old` becomes `new` in `file`, and `test` fails."""

    what: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = [
    Mutant(
        "numbers compare without the wrap",
        "src/base/serial.hpp",
        "return serial_distance(a, b) > 0;",
        "return a < b;",
        "serial",
    ),
    Mutant(
        "the MAC is not looked at",
        "src/protocol/session_receive.cpp",
        "return is_authentic(rx_key(), packet);",
        "return true;",
        "session_faults",
    ),
    Mutant(
        "a path moves for packets of its old flow",
        "src/protocol/path_set.cpp",
        "serial_less(newest, path.flow_begin) ||",
        "",
        "path_set",
    ),
    Mutant(
        "an old packet says where its path leads now",
        "src/protocol/ack_tracker.cpp",
        "    astray_paths_ = how.is_astray ?",
        "  }\n  {\n    astray_paths_ = how.is_astray ?",
        "ack_tracker",
    ),
    Mutant(
        "a repetition is taken for news",
        "src/protocol/session_receive.cpp",
        "  heard_update_ = false;\n",
        "",
        "session",
    ),
    Mutant(
        "a SYN's seal is not looked at",
        "src/protocol/listener.cpp",
        "!is_authentic(key_, *view)",
        "false",
        "session_faults",
    ),
    Mutant(
        "the CRC is not part of the MAC",
        "src/protocol/auth.cpp",
        "return siphash(key, covered, std::as_bytes(std::span(&crc, 1)));",
        "return siphash(key, covered);",
        "auth",
    ),
    Mutant(
        "both directions share a key",
        "src/protocol/auth.cpp",
        "derive_key(secret, 4, client, server)",
        "derive_key(secret, 2, client, server)",
        "auth",
    ),
    Mutant(
        "duplicates are taken for new",
        "src/protocol/receive_window.cpp",
        "return arrived_.test(psn) ? Verdict::kDuplicate : Verdict::kNew;",
        "return Verdict::kNew;",
        "receive_window",
    ),
    Mutant(
        "no SACK words are sent",
        "src/protocol/receive_window.cpp",
        "(spread + 63) / 64",
        "0 * spread",
        "receive_window",
    ),
    Mutant(
        "SACK words are ignored",
        "src/protocol/session_receive.cpp",
        "word < ack.sack_words",
        "word < 0U * ack.sack_words",
        "goodput",
    ),
    Mutant(
        "overtaken packets are not lost",
        "src/protocol/session_receive.cpp",
        "  loss_.find_overtaken(sent_",
        "  if (false) loss_.find_overtaken(sent_",
        "session_faults",
    ),
    Mutant(
        "the retransmission timer never fires",
        "src/protocol/session_receive.cpp",
        "if (loss_.next_timeout(sent_, paths_) > now) {",
        "if (true) {",
        "session_faults",
    ),
    Mutant(
        "timeouts do not back off",
        "src/protocol/loss_detection.cpp",
        "base * (std::int64_t{1} << backoff_)",
        "base",
        "loss_detection",
    ),
    Mutant(
        "no tail probe",
        "src/protocol/session_transmit.cpp",
        "if (tail_probed_ || sent_.in_flight() == 0) {",
        "if (true) {",
        "session_faults",
    ),
    Mutant(
        "reorder tolerance does not grow",
        "src/protocol/loss_detection.cpp",
        "std::min(2 * tolerance_eighths_, kMaxTolerance)",
        "tolerance_eighths_",
        "loss_detection",
    ),
    Mutant(
        "retransmissions stay on their path",
        "src/protocol/path_set.cpp",
        "if (usable_[drawn] != avoid) {",
        "if (true) {",
        "path_set",
    ),
    Mutant(
        "no path goes to quarantine",
        "src/protocol/path_set.cpp",
        "path.in_quarantine = true;",
        "",
        "path_set",
    ),
    Mutant(
        "a quarantine never ends",
        "src/protocol/path_set.cpp",
        "path.in_quarantine = false;",
        "",
        "path_set",
    ),
    Mutant(
        "credit is not asked for",
        "src/protocol/session_transmit.cpp",
        "const bool blocked = !credit_->permits(msg, psn, queue_.is_at_start());",
        "const bool blocked = false;",
        "session",
    ),
    Mutant(
        "a posted receive announces no credit",
        "src/protocol/message_receiver.cpp",
        "  ++next_to_post_;\n  ++posted_;",
        "  ++posted_;",
        "session",
    ),
    Mutant(
        "a lost announcement of credit is not asked after",
        "src/protocol/liveness.hpp",
        "return blocked ? std::min(alive_at, blocked_at) : alive_at;",
        "return kNever;",
        "session_faults",
    ),
    Mutant(
        "a message may overrun its receive",
        "src/protocol/message_receiver.cpp",
        "if (std::size_t{header.msg_off} + header.len > message.request.room()) {",
        "if (false) {",
        "message_receiver",
    ),
    Mutant(
        "a second end of a message is believed",
        "src/protocol/message_receiver.cpp",
        "(message.total_bytes != kUnknown && (last || end > message.total_bytes))",
        "false",
        "message_receiver",
    ),
    Mutant(
        "eager frames are not given back",
        "src/protocol/message_receiver.cpp",
        "    free_frame_ = index;\n",
        "",
        "message_receiver",
    ),
    Mutant(
        "silence is not noticed",
        "src/protocol/liveness.hpp",
        "if (outstanding_ && now >= last_heard_ + timeout_) {",
        "if (false) {",
        "session_faults",
    ),
    Mutant(
        "a nap is the peer's silence",
        "src/protocol/liveness.hpp",
        "      last_heard_ += gap;\n",
        "",
        "session_faults",
    ),
    Mutant(
        "a repeated SYNACK brings no second CONF",
        "src/protocol/session_receive.cpp",
        "  conf_due_ = true;  // Also",
        "  conf_due_ = state_ == State::kConnecting;  // Also",
        "session_faults",
    ),
    Mutant(
        "the PSS never comes down",
        "src/protocol/session_transmit.cpp",
        "pss_ = pss_ladder_next(pss_);",
        "",
        "session_faults",
    ),
    Mutant(
        "a close waits for its FIN for ever",
        "src/protocol/session_transmit.cpp",
        "} else if (now >= close_deadline_) {",
        "} else if (false) {",
        "session_faults",
    ),
    Mutant(
        "a closed session forgets its peer at once",
        "src/protocol/session.cpp",
        "  linger_until_ = now + (",
        "  linger_until_ = now + 0 * (",
        "scenarios",
    ),
    Mutant(
        "a rate that was capped stays capped",
        "src/protocol/congestion.cpp",
        "    --capped_rounds_;\n",
        "",
        "congestion",
    ),
    Mutant(
        "a queue does not shrink the window",
        "src/protocol/congestion.cpp",
        "  if (delay > allowed) {",
        "  if (false) {",
        "congestion",
    ),
    Mutant(
        "sessions compete that were not asked to",
        "src/protocol/congestion.cpp",
        "competition_(limits.competes,",
        "competition_(true,",
        "competition",
    ),
    Mutant(
        "nobody competes with TCP",
        "src/protocol/competition.cpp",
        "    start_competing();\n",
        "",
        "competition",
    ),
    Mutant(
        "a share is measured without the part of the window that was taken away",
        "src/protocol/share_probe.hpp",
        " / (1 - factor_), 0.0",
        ", 0.0",
        "competition",
    ),
    Mutant(
        "a rate is held in name, and the pacer knows nothing of it",
        "src/protocol/congestion.cpp",
        "held > 0",
        "held < 0",
        "competition",
    ),
    Mutant(
        "a session that holds a rate holds it for ever",
        "src/protocol/competition.cpp",
        "lossless_time_ >= kPeace",
        "false",
        "competition",
    ),
    Mutant(
        "in a crowd each wants as much as alone",
        "src/protocol/rate_hold.cpp",
        "std::max(goal_ / 2, kMinGoal)",
        "kWanted",
        "rate_hold",
    ),
    Mutant(
        "what others leave of a link stays unused",
        "src/protocol/rate_hold.cpp",
        "  if (!has_queue) {",
        "  if (false) {",
        "rate_hold",
    ),
    Mutant(
        "what waits for a busy process is the network's delay",
        "src/protocol/ack_tracker.cpp",
        "for a round trip.\n    echo(header, now - how.waited);",
        "for a round trip.\n    echo(header, now);",
        "goodput",
    ),
    Mutant(
        "an answer that was late is taken for a loss",
        "src/protocol/session_receive.cpp",
        "  congestion_.end_timeout(was_spurious);",
        "  congestion_.end_timeout(false);",
        "session_faults",
    ),
    Mutant(
        "a timeout does not bear how long the peer takes",
        "src/protocol/session_receive.cpp",
        "  estimator.add_sample(rtt, response, arrival);",
        "  estimator.add_sample(rtt, rtt, arrival);",
        "session",
    ),
    Mutant(
        "the peer's buffer is boundless",
        "src/protocol/session.cpp",
        "  congestion_.set_peer_buffer(peer.buffer_bytes);\n",
        "",
        "goodput",
    ),
    Mutant(
        "what follows a pause is divided among paths",
        "src/protocol/session_transmit.cpp",
        "queue_.uncut_packets(pss_) >= static_cast<std::size_t>(burst_.left)",
        "false",
        "session",
    ),
    Mutant(
        "a burst has a packet more where one is short",
        "src/protocol/pacer.hpp",
        "burst_packets_ - 1, 1)",
        "burst_packets_, 1)",
        "pacer",
    ),
]


def mutated(mutant: Mutant) -> str:
    """Returns the broken source; raises ValueError where its piece does not occur exactly once."""
    text = (SOURCES / mutant.file).read_text()
    count = text.count(mutant.old)
    if count != 1:
        message = f"{mutant.file}: {mutant.what!r}: its piece occurs {count} times, not once"
        raise ValueError(message)
    return text.replace(mutant.old, mutant.new)


def users_of(header: str, sources: list[Path]) -> list[Path]:
    """Returns the sources that include `header` (base/x.hpp), directly or not."""
    tainted = {header}
    files = [path for path in SOURCES.rglob("*") if path.suffix in {".hpp", ".cpp"}]
    includes = {path: set(INCLUDE.findall(path.read_text())) for path in files}
    while True:
        more = {
            "/".join(path.parts[-2:])
            for path in files
            if path.suffix == ".hpp" and includes[path] & tainted
        }
        if more <= tainted:
            return [path for path in sources if includes[path] & tainted]
        tainted |= more


class Builder:
    """Compiles the tree once, and each mutant's few files again.

    Args:
        folder: Where objects and broken copies of the tree go; emptied.
        compiler: Command of the C++ compiler, in words.
        jobs: How many compilers may run at once.
    """

    def __init__(self, folder: Path, compiler: list[str], jobs: int) -> None:
        self.folder = folder
        self.compiler = compiler
        self.jobs = jobs
        shutil.rmtree(folder, ignore_errors=True)
        self.library = [
            path
            for room in ("src/base", "src/protocol", "sim")
            for path in sorted((SOURCES / room).glob("*.cpp"))
        ]
        self.library.append(SOURCES / "src/datapath/impairment.cpp")  # The simulator's wires.

    def compile(self, tree: Path, sources: list[Path], to: Path) -> dict[Path, Path]:
        """Compiles `sources` (paths in the true tree) as they are in `tree`."""
        to.mkdir(parents=True, exist_ok=True)
        objects = {source: to / f"{source.parent.name}-{source.stem}.o" for source in sources}

        def one(source: Path) -> None:
            include = [f"-I{tree}", f"-I{tree / 'src'}", f"-I{tree / 'tests'}"]
            location = tree / source.relative_to(SOURCES)
            command = [*self.compiler, *FLAGS, *include, "-c", str(location), "-o"]
            subprocess.run([*command, str(objects[source])], check=True)

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(one, sources))
        return objects

    def run(self, objects: dict[Path, Path], test: str, to: Path) -> bool:
        """Links and runs `test`; returns whether it passed (a hang or a crash is no pass)."""
        program = to / test
        used = {
            source: file
            for source, file in objects.items()
            if source in self.library or source == test_source(test)
        }
        libraries = [] if test == "scenarios" else [*GOOGLETEST_LIBRARIES, "-lpthread"]
        files = [str(file) for file in used.values()]
        subprocess.run([*self.compiler, *files, "-o", str(program), *libraries], check=True)
        arguments = ["--count", "1000"] if test == "scenarios" else []
        try:
            done = subprocess.run(
                [str(program), *arguments], check=False, capture_output=True, timeout=300
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def test_source(test: str) -> Path:
    """Returns the source of a test that the table names."""
    if test == "scenarios":
        return TESTS / "sim" / "scenarios_main.cpp"
    found = [
        path
        for room in ("protocol", "sim")
        if (path := TESTS / room / f"{test}_test.cpp").is_file()
    ]
    return found[0]


def try_mutants(builder: Builder, chosen: list[Mutant]) -> list[str]:
    """Builds and runs each mutant; returns those that no test noticed."""
    sources = builder.library + sorted({test_source(mutant.test) for mutant in chosen})
    whole = builder.compile(SOURCES, sources, builder.folder / "whole")
    survivors = [
        f"the unbroken tree fails {test}"
        for test in sorted({mutant.test for mutant in chosen})
        if not builder.run(whole, test, builder.folder / "whole")
    ]
    for number, mutant in enumerate(chosen):
        folder = builder.folder / f"mutant-{number}"
        tree = folder / "tree"
        shutil.copytree(SOURCES, tree, ignore=shutil.ignore_patterns("corpus"))
        (tree / mutant.file).write_text(mutated(mutant))
        wanted = [*builder.library, test_source(mutant.test)]
        header = "/".join(Path(mutant.file).parts[-2:])
        broken = (
            users_of(header, wanted) if mutant.file.endswith(".hpp") else [SOURCES / mutant.file]
        )
        objects = whole | builder.compile(tree, broken, folder)
        noticed = not builder.run(objects, mutant.test, folder)
        sys.stdout.write(
            f"{'noticed ' if noticed else 'SURVIVED'}  {mutant.test:18} {mutant.what}\n"
        )
        sys.stdout.flush()
        if not noticed:
            survivors.append(f"{mutant.what} ({mutant.file}): {mutant.test} passes")
        shutil.rmtree(folder)
    return survivors


def main() -> int:
    """Runs all mutants, or those whose description contains the words given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check that the table fits")
    parser.add_argument("--table", action="store_true", help="print the table for the docs")
    parser.add_argument("words", nargs="*", help="run only mutants whose description has these")
    arguments = parser.parse_args()
    if arguments.table:
        for mutant in MUTANTS:
            sys.stdout.write(f"| {mutant.what} | `{mutant.file}` | `{mutant.test}` |\n")
        return 0
    for mutant in MUTANTS:
        mutated(mutant)
        if not test_source(mutant.test).is_file():
            message = f"no test {mutant.test}"
            raise ValueError(message)
    if arguments.check:
        sys.stdout.write(f"mutants: {len(MUTANTS)}, all fit\n")
        return 0
    chosen = [m for m in MUTANTS if all(word in m.what for word in arguments.words)]
    compiler = os.environ.get("CXX", "c++").split()
    jobs = int(os.environ.get("JOBS", str(os.cpu_count() or 1)))
    survivors = try_mutants(Builder(ROOT / "build" / "mutants", compiler, jobs), chosen)
    for survivor in survivors:
        sys.stderr.write(f"SURVIVED: {survivor}\n")
    sys.stdout.write(f"mutants: {len(chosen)}, {len(survivors)} survived\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
