"""Pods without a cluster: containers of our image under crun, set up as by the MPI operator.

A pod is a container with a network namespace of its own. All of them are on one bridge, and share
the names of those that are ready. The keys come as a secret's volume does, links in a folder that
everybody may write to; the hostfile and the script of hosts come into the launcher alone.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iproute import ip

from lightcc.bench.cluster import in_namespace

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
#: What tools/build_image.sh has made.
IMAGE = Path(os.environ.get("IMAGE_HOME", ROOT / "build" / "image"))
PATIENCE_S = 120.0
NETWORK = "10.88.7"
HOME = "/root"
CAPABILITIES = [
    f"CAP_{name}"
    for name in (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
]
#: Mounts that only the runtime should see, then the runtime. This crun wants cgroups of version 2
#: to look at, although it is told to leave them alone.
IN_PRIVATE = "mount -t cgroup2 none /sys/fs/cgroup; exec crun --cgroup-manager=disabled --root"


class Pod:
    """One container, from its start to its end."""

    def __init__(self, cluster: Cluster, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.namespace = f"{cluster.namespace}-{name}"[:60]
        self.folder = cluster.folder / name
        self._cluster = cluster
        self._process: subprocess.Popen[str]
        self._threads: list[threading.Thread] = []
        self.said = ""  # On both outputs, as `kubectl logs` shows them.

    def start(self, argv: list[str], variables: dict[str, str], mounts: dict[str, Path]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("bundle", "up", "spare", "merged"):
            (self.folder / name).mkdir(parents=True)
        self._write_configuration(argv, variables, mounts)
        layers = f"lowerdir={IMAGE}/files,upperdir={self.folder}/up,workdir={self.folder}/spare"
        overlay = f"mount -t overlay overlay -o {layers} {self.folder}/merged"
        script = f"{overlay}; {IN_PRIVATE} {self._cluster.state} run {self.name}"
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", script],
            cwd=self.folder / "bundle",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._threads = [threading.Thread(target=self._read, daemon=True)]
        self._threads[0].start()

    def _write_configuration(
        self, argv: list[str], variables: dict[str, str], mounts: dict[str, Path]
    ) -> None:
        bundle = self.folder / "bundle"
        subprocess.run(["crun", "spec"], cwd=bundle, check=True)
        path = bundle / "config.json"
        spec: dict[str, Any] = json.loads(path.read_text())
        image = json.loads((IMAGE / "config.json").read_text())
        process = spec["process"]
        process |= {"terminal": False, "args": argv or image["Cmd"], "cwd": HOME}
        given = dict(pair.split("=", 1) for pair in image["Env"]) | {"HOME": HOME} | variables
        process["env"] = [f"{name}={value}" for name, value in given.items()]
        kinds = ("bounding", "effective", "permitted")
        process["capabilities"] = dict.fromkeys(kinds, CAPABILITIES)
        spec["root"] = {"path": str(self.folder / "merged"), "readonly": False}
        spec["hostname"] = self.name
        linux = spec["linux"]
        kept = [it for it in linux["namespaces"] if it["type"] not in ("cgroup", "network")]
        network = {"type": "network", "path": f"/run/netns/{self.namespace}"}
        linux["namespaces"] = [*kept, network]
        spec["mounts"] = [it for it in spec["mounts"] if it["type"] != "cgroup"]
        for target, source in mounts.items():
            options = ["rbind", "rw" if source == self._cluster.shared else "ro"]
            spec["mounts"].append(
                {"destination": target, "type": "bind", "source": str(source), "options": options}
            )
        path.write_text(json.dumps(spec))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line

    def runtime(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command of crun to its end."""
        script = f"{IN_PRIVATE} {self._cluster.state} {shlex.join(words)}"
        return subprocess.run(
            ["unshare", "--mount", "sh", "-ec", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=check,
        )

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Runs a program in the pod, as `kubectl exec` does."""
        return self.runtime("exec", self.name, *argv, check=False)

    def kill(self, signal: str) -> None:
        """Sends a signal to the first process."""
        self.runtime("kill", self.name, signal)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self) -> int:
        """Waits for the end of the first process; returns the exit code."""
        code = self._process.wait(PATIENCE_S)
        self._threads[0].join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._cluster.forget(self)
        return code

    def remove(self) -> None:
        """Leaves nothing of the pod."""
        if self.is_running():
            self.runtime("delete", "--force", self.name, check=False)
        self.end()


class Cluster:
    """A bridge, the names of pods that are ready, and what an MPIJob has in common."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, job: str) -> None:
        """Makes the network and the secret; pods come by `start()`."""
        self.folder = folder
        self.job = job
        self.namespace = f"lightcc-{os.getpid()}"
        self.state = folder / "crun"
        self.shared = folder / "shared"  # As a volume that all pods have, at /shared.
        self.pods: dict[str, Pod] = {}
        self._stack = stack
        self._lines = {"localhost": "127.0.0.1 localhost"}
        self._next_address = 2
        for path in (self.state, self.shared):
            path.mkdir()
        self._names = folder / "hosts"
        self._write_names()
        self._secret = self._make_secret()
        self._add_namespace(self.namespace)
        ip("-n", self.namespace, "link", "add", "br0", "type", "bridge")
        ip("-n", self.namespace, "address", "add", f"{NETWORK}.1/24", "dev", "br0")
        ip("-n", self.namespace, "link", "set", "br0", "up")

    def _add_namespace(self, name: str) -> None:
        ip("netns", "add", name)
        self._stack.callback(ip, "netns", "del", name)
        ip("-n", name, "link", "set", "lo", "up")

    def _make_secret(self) -> Path:
        """Makes the folder that a secret's volume is: the files are links, to links."""
        folder = self.folder / "ssh"
        files = folder / "..2026_01_01"
        files.mkdir(parents=True)
        key = files / "id_rsa"
        make_key = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f", str(key)]
        subprocess.run(make_key, check=True)
        shutil.copy(files / "id_rsa.pub", files / "authorized_keys")
        for path in files.iterdir():
            path.chmod(0o600)
        (folder / "..data").symlink_to(files.name)
        for path in list(files.iterdir()):
            (folder / path.name).symlink_to(f"..data/{path.name}")
        folder.chmod(0o1777)
        return folder

    def configuration(self, workers: int, slots: int) -> Path:
        """Makes /etc/mpi of the launcher: the hostfile, and a script that prints running pods."""
        folder = self.folder / "mpi"
        folder.mkdir(exist_ok=True)
        names = [self.full_name(self.worker(i)) for i in range(workers)]
        (folder / "hostfile").write_text("".join(f"{name} slots={slots}\n" for name in names))
        self.write_running(list(range(workers)))
        return folder

    def write_running(self, workers: list[int]) -> None:
        """Has the script print these workers."""
        path = self.folder / "mpi" / "discover_hosts.sh"
        lines = [f"echo {self.full_name(self.worker(i))}\n" for i in workers]
        path.write_text("#!/bin/sh\n" + "".join(lines))
        path.chmod(0o555)

    def worker(self, index: int) -> str:
        return f"{self.job}-worker-{index}"

    def full_name(self, pod: str) -> str:
        return f"{pod}.{self.job}.default.svc"

    def start(
        self,
        name: str,
        argv: list[str] | None = None,
        variables: dict[str, str] | None = None,
        mounts: dict[str, Path] | None = None,
    ) -> Pod:
        """Starts a pod, with the image's own command unless `argv` names one."""
        if name not in self.pods:
            pod = self.pods[name] = Pod(self, name, f"{NETWORK}.{self._next_address}")
            self._next_address += 1
            self._plug_in(pod)
            self._stack.callback(pod.remove)
        pod = self.pods[name]
        common = {"/etc/hosts": self._names, f"{HOME}/.ssh": self._secret, "/shared": self.shared}
        pod.start(argv or [], variables or {}, common | (mounts or {}))
        return pod

    def _plug_in(self, pod: Pod) -> None:
        self._add_namespace(pod.namespace)
        here, there = f"v{pod.address.rpartition('.')[2]}", ("name", "eth0", "netns", pod.namespace)
        ip("-n", self.namespace, "link", "add", here, "type", "veth", "peer", *there)
        ip("-n", self.namespace, "link", "set", here, "master", "br0", "up")
        ip("-n", pod.namespace, "address", "add", f"{pod.address}/24", "dev", "eth0")
        ip("-n", pod.namespace, "link", "set", "eth0", "up")

    def await_ready(self, *pods: Pod, port: int = 22) -> None:
        """Waits until pods accept connections; from then on their names resolve."""
        for pod in pods:
            wait_for(lambda pod=pod: in_namespace(self.namespace, lambda: probe(pod, port)), pod)  # type: ignore[misc]
            self.name(pod)

    def name(self, pod: Pod) -> None:
        """Has the pod's name resolve, as that of one that is ready."""
        self._lines[pod.name] = f"{pod.address} {self.full_name(pod.name)} {pod.name}"
        self._write_names()

    def forget(self, pod: Pod) -> None:
        """Has the pod's name resolve no more."""
        self._lines.pop(pod.name, None)
        self._write_names()

    def _write_names(self) -> None:
        self._names.write_text("".join(f"{line}\n" for line in self._lines.values()))


def probe(pod: Pod, port: int) -> bool:
    """Asks what a readiness probe does."""
    try:
        socket.create_connection((pod.address, port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_for(is_so: Callable[[], bool], pod: Pod, *, may_end: bool = False) -> None:
    """Waits for something that a pod brings about."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert may_end or pod.is_running(), pod.said
        assert time.monotonic() < until, pod.said
        time.sleep(0.1)
