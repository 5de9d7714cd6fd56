"""`python -m lightcc.doctor`: what lightcc finds on this machine, what it does not, and why.

Every check is a small function that returns findings and never raises; nothing is installed, and
nothing is sent beyond loopback. Versions come from package metadata; TensorFlow alone is imported,
by a child process, which tells how lightcc can work with it. A *problem* is something without which
lightcc does not work here; what is merely *missing* limits what it can do. The exit code is 1 if
there is a problem.

`--json` prints the findings for programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import resource
import secrets
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightcc
from lightcc import _addresses, _pci, harp
from lightcc._flags import Parser
from lightcc._nccl_file import nccl_file
from lightcc._warnings import programs_not_there

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

OK, MISSING, PROBLEM = "ok", "missing", "problem"
_MIB = 1 << 20
_DEV_SHM = "/dev/shm"  # noqa: S108 - looked at, never written to.
_HIDDEN = {"LIGHT_SECRET", "HOROVOD_SECRET_KEY"}

# Libraries that are opened at run time, by the names under which they are found.
_SHARED_LIBRARIES = (
    ("CUDA driver", ("libcuda.so.1",)),
    ("CUDA runtime", ("libcudart.so.13", "libcudart.so.12")),
    ("Open MPI", ("libmpi.so.40",)),
    ("MPICH or Intel MPI", ("libmpi.so.12", "libmpich.so.12")),
)
_PACKAGES = ("torch", "cupy", "tensorflow", "keras", "tf_keras", "mpi4py")
_IMPORT_LIMIT_S = 120.0


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    section: str
    name: str
    status: str  # OK, MISSING or PROBLEM.
    detail: str


def load_core() -> tuple[ModuleType | None, str]:
    """Returns the engine's extension module, or None and why it cannot be loaded."""
    try:
        return importlib.import_module("lightcc._core"), ""
    except ImportError as error:
        return None, str(error)


# -- Checks ---------------------------------------------------------------------------------------


def check_lightcc() -> list[Finding]:
    """Looks at Python, numpy, lightcc and its engine."""
    core, reason = load_core()
    found = [
        Finding("lightcc", "lightcc", OK, lightcc.__version__),
        Finding("lightcc", "python", OK, f"{platform.python_version()} at {sys.executable}"),
        _package("lightcc", "numpy", missing=PROBLEM),
    ]
    if core is None:
        return [*found, Finding("lightcc", "engine", PROBLEM, f"cannot be loaded: {reason}")]
    return [
        *found,
        Finding("lightcc", "engine", OK, str(core.__file__)),
        Finding("lightcc", "SIMD level", OK, core.simd_level()),
    ]


def check_machine() -> list[Finding]:
    """Looks at cores, limits and shared memory."""
    allowed = len(os.sched_getaffinity(0))
    found = [
        Finding("machine", "kernel", OK, f"{platform.release()} {platform.machine()}"),
        Finding("machine", "cores", OK, f"{os.cpu_count()}, of which {allowed} for this process"),
    ]
    limit = _read("/sys/fs/cgroup/memory.max") or _read(
        "/sys/fs/cgroup/memory/memory.limit_in_bytes"
    )
    if limit.isdecimal() and int(limit) < 1 << 60:
        found.append(Finding("machine", "memory limit", OK, f"{int(limit) // _MIB} MiB (cgroup)"))
    for name, kind in (("open files", resource.RLIMIT_NOFILE), ("locked", resource.RLIMIT_MEMLOCK)):
        soft = resource.getrlimit(kind)[0]
        words = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
        unit = "" if kind == resource.RLIMIT_NOFILE or words == "unlimited" else " bytes"
        few = kind == resource.RLIMIT_NOFILE and 0 <= soft < 256
        found.append(Finding("machine", f"limit: {name}", PROBLEM if few else OK, words + unit))
    return [*found, _check_dev_shm(), _check_memfd()]


def _check_dev_shm() -> Finding:
    try:
        status = os.statvfs(_DEV_SHM)
    except OSError as error:
        return Finding("machine", _DEV_SHM, MISSING, f"{error.strerror}; lightcc does not need it")
    size = status.f_frsize * status.f_blocks // _MIB
    return Finding("machine", _DEV_SHM, OK, f"{size} MiB; lightcc does not use it")


def _check_memfd() -> Finding:
    try:
        fd = os.memfd_create("lightcc-doctor")
    except OSError as error:
        text = f"{error.strerror}; ranks of one host cannot share memory"
        return Finding("machine", "memfd", PROBLEM, text)
    try:
        os.posix_fallocate(fd, 0, _MIB)
    except OSError as error:
        return Finding("machine", "memfd", PROBLEM, f"cannot allocate 1 MiB: {error.strerror}")
    finally:
        os.close(fd)
    return Finding("machine", "memfd", OK, "can be allocated")


def check_network() -> list[Finding]:
    """Looks at interfaces and at what ranks of one host need."""
    found = []
    addresses = {interface.name: interface.address for interface in _addresses.interfaces()}
    for _, name in socket.if_nameindex():
        state = _read(f"/sys/class/net/{name}/operstate")
        speed = _read(f"/sys/class/net/{name}/speed")
        words = [addresses.get(name, "no address"), state or "unknown state"]
        words += [f"{speed} Mb/s"] if speed.isdecimal() else []
        found.append(Finding("network", f"NIC {name}", OK, ", ".join(words)))
    return [
        *found,
        _check_socket("abstract Unix sockets", socket.AF_UNIX, f"\0lightcc-{secrets.token_hex(8)}"),
        _check_socket("TCP over loopback", socket.AF_INET, ("127.0.0.1", 0)),
        _check_socket("TCP over IPv6 loopback", socket.AF_INET6, ("::1", 0), failure=MISSING),
    ]


def _check_socket(
    name: str, family: int, address: str | tuple[str, int], *, failure: str = PROBLEM
) -> Finding:
    """Listens, connects and passes one byte."""
    try:
        with socket.socket(family) as listener, socket.socket(family) as client:
            listener.bind(address)
            listener.listen(1)
            client.settimeout(2.0)
            client.connect(listener.getsockname())
            with listener.accept()[0] as server:
                client.sendall(b"x")
                server.settimeout(2.0)
                works = server.recv(1) == b"x"
    except OSError as error:
        return Finding("network", name, failure, f"{error.strerror or error}")
    return Finding("network", name, OK if works else failure, "works" if works else "no data")


def check_libraries() -> list[Finding]:
    """Looks for what lightcc can work with but does not need."""
    found = [_package("libraries", name, missing=MISSING) for name in _PACKAGES]
    for name, files in _SHARED_LIBRARIES:
        opened = next((file for file in files if _opens(file)), None)
        detail = f"{opened}" if opened else f"{' or '.join(files)} cannot be opened"
        found.append(Finding("libraries", name, OK if opened else MISSING, detail))
    return [*found, *_check_tensorflow(), _check_harp(), *_check_gpus()]


def _check_tensorflow() -> list[Finding]:
    """Asks a child process whether `lightcc.tensorflow` can be imported, with TensorFlow."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:  # A mere folder of that name.
        return []
    name = "lightcc.tensorflow"
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", f"import {name}"],
            capture_output=True,
            text=True,
            timeout=_IMPORT_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Finding("libraries", name, PROBLEM, f"cannot be tried: {error}")]
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return [Finding("libraries", name, PROBLEM, f"cannot be imported: {lines[-1]}")]
    return [Finding("libraries", name, OK, "runs as kernels of TensorFlow")]


def _check_harp() -> Finding:
    try:
        path = harp.plugin_path()
    except FileNotFoundError as error:
        return Finding("libraries", "HARP plugin", MISSING, str(error))
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return Finding("libraries", "HARP plugin", PROBLEM, f"cannot be loaded: {error}")
    how = "python -m lightcc.harp --env"
    return Finding("libraries", "HARP plugin", OK, f"{path} (LIGHT_NET=harp; for NCCL: {how})")


def _opens(file: str) -> bool:
    """Whether the dynamic linker finds `file`, also in the virtual environment (MPI's wheels)."""
    for candidate in (file, str(Path(sys.prefix) / "lib" / file)):
        try:
            ctypes.CDLL(candidate)
        except OSError:
            continue
        return True
    return False


def _check_gpus() -> list[Finding]:
    core, reason = load_core()
    if core is None:
        return [Finding("libraries", "GPU", MISSING, f"the engine cannot be loaded: {reason}")]
    try:
        found = core.find_gpus()
    except NotImplementedError as error:
        return [Finding("libraries", "GPU", MISSING, str(error)), _check_nccl(core)]
    version = found["driver_version"]
    driver = f"driver{_driver_release()} for CUDA {version // 1000}.{version % 1000 // 10}"
    checks = [_check_gpu(core, index, gpu, driver) for index, gpu in enumerate(found["gpus"])]
    return [*itertools.chain(*checks), _describe_peers(found["gpus"]), _check_nccl(core)]


def _driver_release() -> str:
    """Returns " 550.54" where NVIDIA's kernel module says that, else nothing."""
    try:
        return " " + Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _check_nccl(core: ModuleType) -> Finding:
    try:
        version = core.find_nccl(nccl_file())
    except NotImplementedError as error:
        return Finding("libraries", "NCCL", MISSING, str(error))
    text = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    how = "carries tensors of GPUs where each rank has its own"
    return Finding("libraries", "NCCL", OK, f"{text}; {how}")


def _check_gpu(
    core: ModuleType, index: int, gpu: dict[str, Any], driver: str
) -> tuple[Finding, Finding]:
    """Tries the kernels on a GPU, which takes memory of it for a moment; and finds its NIC."""
    major, minor = gpu["capability"]
    what = "a slice (MIG) of the GPU at " if gpu["is_slice"] else "at "
    known = (
        f"{gpu['name']}, {what}{gpu['pci_bus_id']}, {gpu['uuid'] or 'UUID not known'}, "
        f"compute capability {major}.{minor} (sm_{major}{minor}), {gpu['bytes'] // _MIB} MiB"
    )
    status = OK
    result = "lightcc's kernels run"
    if gpu["is_precompiled"]:
        result += ", precompiled"
    try:
        core.try_gpu(index)
    except (NotImplementedError, RuntimeError) as error:
        status = MISSING
        result = f"lightcc's kernels do not run: {error}"
    name = f"GPU {index}"
    nic = Finding("libraries", f"{name} NIC", *_describe_nearest(gpu["pci_bus_id"]))
    return Finding("libraries", name, status, f"{known}, {driver}; {result}"), nic


def _describe_nearest(address: str) -> tuple[str, str]:
    nearest = _pci.nearest_interfaces(address)
    if nearest is None:
        return MISSING, f"not known: /sys/bus/pci/devices has no {address}"
    where = "" if nearest.numa_node is None else f"; the GPU is on NUMA node {nearest.numa_node}"
    if not nearest.names:
        return MISSING, f"no network interface is a PCI device{where}"
    return OK, f"{', '.join(nearest.names)}, {nearest.distance}{where}"


def _describe_peers(gpus: list[dict[str, Any]]) -> Finding:
    """Says which GPUs can use one another's memory without the host's."""
    if len(gpus) == 1:
        return Finding("libraries", "GPU peers", OK, "there is one GPU")
    each = [
        f"{index} of {', '.join(map(str, gpu['peers'])) or 'none'}"
        for index, gpu in enumerate(gpus)
    ]
    return Finding("libraries", "GPU peers", OK, "a GPU can use memory: " + "; ".join(each))


def check_environment() -> list[Finding]:
    """Looks at the variables that are set, as `init()` would read them."""
    names = sorted(name for name in os.environ if name.startswith(("LIGHT_", "HOROVOD_")))
    found = [
        Finding("environment", name, OK, "(hidden)" if name in _HIDDEN else os.environ[name])
        for name in names
    ]
    core, _ = load_core()
    if core is None:
        return found
    warnings = core.knob_warnings(names) + programs_not_there(os.environ)
    found += [Finding("environment", "variable", MISSING, text) for text in warnings]
    try:
        core.check_knobs()
    except ValueError as error:
        found.append(Finding("environment", "value", PROBLEM, str(error)))
    return found


CHECKS: tuple[Callable[[], list[Finding]], ...] = (
    check_lightcc,
    check_machine,
    check_network,
    check_libraries,
    check_environment,
)


def _package(section: str, name: str, *, missing: str) -> Finding:
    """Looks for a Python package without importing it."""
    if importlib.util.find_spec(name) is None:
        return Finding(section, name, missing, "not installed")
    return Finding(section, name, OK, _version_of(name) or "of an unknown version")


def _version_of(name: str) -> str | None:
    """Returns the version of a module's package, which may be called otherwise."""
    others = importlib.metadata.packages_distributions().get(name, ())
    for package in (name, *others):  # tensorflow-cpu has the module tensorflow.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL, errno.EACCES, errno.ENOTDIR):
            return f"({error.strerror})"
        return ""


# -- Texts ----------------------------------------------------------------------------------------


def diagnose() -> list[Finding]:
    """Runs every check."""
    return [finding for check in CHECKS for finding in check()]


def report_text(findings: Sequence[Finding]) -> str:
    """Returns the report for people."""
    marks = {OK: " ", MISSING: "-", PROBLEM: "!"}
    lines: list[str] = []
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            lines += ["", section] if lines else [section]
        lines.append(f"  {marks[finding.status]} {finding.name:<24} {finding.detail}")
    problems = sum(finding.status == PROBLEM for finding in findings)
    if any(finding.status == MISSING for finding in findings):
        lines += ["", "-: not there; only some programs need it"]
    lines += [
        "",
        f"{problems} problem{'' if problems == 1 else 's'}" + (" (!)" if problems else ""),
    ]
    return "\n".join(lines) + "\n"


def build_text() -> str:
    """Returns what `lightccrun --check-build` prints, in horovodrun's form."""
    core, reason = load_core()

    def line(name: str, *, there: bool) -> str:
        return f"    [{'X' if there else ' '}] {name}"

    def adapter(name: str) -> bool:
        module = f"lightcc.{name}"
        return importlib.util.find_spec(module) is not None and (
            importlib.util.find_spec(name) is not None
        )

    lines = [
        f"lightcc v{lightcc.__version__}:",
        "",
        "Available Frameworks:",
        line("numpy", there=core is not None),
        line("PyTorch", there=adapter("torch")),
        line("TensorFlow", there=adapter("tensorflow")),
        "",
        "Available Controllers:",
        line("lightcc (in place of Gloo)", there=core is not None),
        "",
        "Available Tensor Operations:",
        line("shared memory", there=core is not None),
        line("TCP", there=core is not None),
    ]
    lines += ["", f"The engine cannot be loaded: {reason}"] if core is None else []
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what the flags ask for; returns 1 if there is a problem."""
    parser = Parser(
        prog="python -m lightcc.doctor", description="Says what lightcc finds on this machine."
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    args = parser.parse_args(argv)
    findings = diagnose()
    if args.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=1) + "\n")
    else:
        sys.stdout.write(report_text(findings))
    return 1 if any(finding.status == PROBLEM for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
