"""Launching on other hosts, with a stand-in for ssh and sshd.

A program named `ssh`, first in PATH, notes its arguments and runs the remote command here with
`sh -c`, as sshd would there. Everything on the launcher's side of ssh is real, and so is the
remote side; authentication, encryption and the network are in parallel/test_sshd.py.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lightcc.runner.arguments import LaunchOptions, parse
from lightcc.runner.call import call_on_ranks, rank_command

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.multiproc

PATIENCE_S = 60.0
LAUNCHER = [sys.executable, "-m", "lightcc.runner", "--network-interfaces", "lo"]

FAKE_SSH = """#!/bin/sh
printf '%s\\n' "$@" > "$FAKE_SSH_DIR/argv.$$"
while [ "$1" != -- ]; do shift; done
host=$2; shift 2
case $host in
  unreachable) echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255;;
  silent) exec sleep 600;;
esac
echo "Welcome to $host"  # What a careless .bashrc prints.
unset LEFT_HERE
export ON_HOST=$host
exec sh -c "$*"
"""


@pytest.fixture(name="ssh_dir")
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(FAKE_SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SSH_DIR", str(tmp_path))
    monkeypatch.setenv("LEFT_HERE", "forwarded")
    return tmp_path


def launch(*argv: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*LAUNCHER, *argv], capture_output=True, timeout=PATIENCE_S, check=False)


def test_ranks_of_all_hosts_have_a_place_one_secret_and_the_options_of_ssh(ssh_dir: Path) -> None:
    key = ssh_dir / "key"
    key.write_text("")
    script = (
        f"echo $LIGHT_SECRET $LIGHT_RENDEZVOUS > {ssh_dir}/told.$LIGHT_RANK; "
        "echo $LIGHT_RANK $LIGHT_LOCAL_RANK $LIGHT_CROSS_RANK $ON_HOST $LIGHT_HOSTNAME $LEFT_HERE"
    )
    flags = ("-p", "2222", "-i", str(key), "-H", "localhost:1,node-a:2,node-b:1")
    result = launch(*flags, "sh", "-c", script)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        b"[0]<stdout>: 0 0 0 localhost forwarded",
        b"[1]<stdout>: 1 0 1 node-a node-a forwarded",
        b"[2]<stdout>: 2 1 0 node-a node-a forwarded",
        b"[3]<stdout>: 3 0 2 node-b node-b forwarded",
    ]
    reported = {path.read_text() for path in ssh_dir.glob("told.*")}
    assert len(reported) == 1
    secret, rendezvous = reported.pop().split()
    assert rendezvous.startswith("127.0.0.1:")
    calls = [path.read_text() for path in ssh_dir.glob("argv.*")]
    assert len(calls) == 2
    for call in calls:
        assert "lightcc.runner.agent.remote" in call
        assert not any(word in call for word in (secret, "LEFT_HERE", "forwarded"))
        argv = call.splitlines()
        assert "BatchMode=yes" in argv
        assert argv[argv.index("-p") + 1] == "2222"
        assert argv[argv.index("-i") + 1] == str(key)


@pytest.mark.usefixtures("ssh_dir")
def test_a_function_is_called_on_other_hosts_and_its_results_come_back() -> None:
    options = parse(["-H", "localhost:1,node-b:1", "--network-interfaces", "lo", "x"])
    assert isinstance(options, LaunchOptions)
    options = dataclasses.replace(options, command=rank_command(sys.executable))

    def where(greeting: str) -> tuple[str, str | None]:
        return greeting, os.environ.get("ON_HOST")

    assert call_on_ranks(where, ("hello",), {}, options) == [("hello", None), ("hello", "node-b")]


@pytest.mark.usefixtures("ssh_dir")
def test_a_remote_failure_names_rank_host_and_signal() -> None:
    script = 'if [ "$LIGHT_RANK" = 1 ]; then echo dying >&2; kill -KILL $$; fi; exec sleep 600'
    result = launch("-H", "node-a:1,node-b:1", "sh", "-c", script)
    assert result.returncode == 137
    assert result.stderr.splitlines()[-2:] == [
        b"lightccrun: failed first: rank 1 on node-b: killed by SIGKILL (exit code 137); "
        b"its last lines on standard error:",
        b"lightccrun:     dying",
    ]


@pytest.mark.usefixtures("ssh_dir")
def test_an_unreachable_host_is_named_with_the_words_of_ssh() -> None:
    result = launch("-H", "node-a:1,unreachable:1", "sleep", "600")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        b"lightccrun: host unreachable could not be reached: ssh ended with code 255"
    )
    assert b"No route to host" in last


@pytest.mark.usefixtures("ssh_dir")
def test_a_host_that_never_answers_ends_the_job_at_the_start_timeout() -> None:
    result = launch("--start-timeout", "2", "-H", "node-a:1,silent:1", "sleep", "600")
    assert result.returncode == 1
    assert b"no answer from silent within 2 s" in result.stderr.splitlines()[-1]
