"""Jobs on pods of our image, under the MPI operator or with workers that dial in: make test-pods.

What the operator would do is done here by hand (`pods`); what runs in the pods is real.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from typing import TYPE_CHECKING

import manifests as m
import pytest
from elastic_training import TRAINING, UNDISTURBED, results
from pods import IMAGE, ROOT, Cluster, Pod, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(300)]

WORKERS, SLOTS = 4, 2

#: What the seeds ran, as far as it is not about their program: -np, -H and LIGHT_INTRA_SIZE are
#: those of four pods of two ranks.
MPIRUN = """
mpirun -np 8
-H taco-bench-worker-0:2,taco-bench-worker-1:2,taco-bench-worker-2:2,taco-bench-worker-3:2
--allow-run-as-root -bind-to none -map-by slot -x NCCL_ALGO=RING -x NCCL_DEBUG=INFO
-x HOROVOD_MPI_THREADS_DISABLE=1 -x HOROVOD_FUSION_THRESHOLD=0 -x HOROVOD_CYCLE_TIME=0
-x LIGHT_2D_ALLREDUCE=1 -x LIGHT_TOPK_ALLREDUCE=1 -x LIGHT_TOPK_THRESHOLD=2097152
-x LIGHT_INTRA_SIZE=2 -x LD_LIBRARY_PATH -x PATH -mca btl_tcp_if_include eth0 python3
"""

#: One tensor is above the threshold of the command line, so that it is compressed.
BENCHMARK = """
import hashlib, sys
import torch
import lightcc.torch as hvd

hvd.init()
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 16384), torch.nn.ReLU(), torch.nn.Linear(16384, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
torch.manual_seed(hvd.rank())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
digests = hvd.allgather_object(hashlib.sha256(bits).hexdigest())
assert len(set(digests)) == 1, digests
place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank()
sys.stdout.write(f"place {place} compressed {hvd.stats()['compressed_tensors'] > 0}\\n")
"""

#: Ranks step together until one of them fails; then each says what it was told.
STEPS = """
import sys, time
from pathlib import Path
import numpy as np
import lightcc as hvd

hvd.init()
try:
    while True:
        hvd.allreduce(np.ones(4, np.float32), name="step")
        Path(sys.argv[1], f"step.{hvd.rank()}").touch()
        time.sleep(0.01)
except hvd.HorovodInternalError as error:
    Path(sys.argv[1], f"told.{hvd.rank()}").write_text(f"{type(error).__name__}: {error}")
    raise
"""


#: The same, but a rank that gets SIGTERM saves something and leaves.
SAVES = """
import os, signal, sys
from pathlib import Path
import numpy as np
import lightcc as hvd

hvd.init()

def save(*_):
    Path(sys.argv[1], f"saved.{hvd.rank()}").touch()
    os._exit(0)

signal.signal(signal.SIGTERM, save)
while True:
    hvd.allreduce(np.ones(4, np.float32), name="step")
    Path(sys.argv[1], f"step.{hvd.rank()}").touch()
"""


@pytest.fixture(name="stack")
def stack_of_a_test() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def cluster(stack: contextlib.ExitStack, tmp_path: Path, job: str = "train") -> Cluster:
    return Cluster(stack, tmp_path, job)


def commands(folder: str, role: str) -> list[str]:
    """Returns the command of a role in a manifest of deploy/kubernetes."""
    for manifest in m.render(m.ROOT / folder):
        for template in m.pod_templates(manifest):
            for container in template["spec"]["containers"]:
                if container["name"] == role:
                    return [*container.get("command", []), *container.get("args", [])]
    raise AssertionError(f"{folder} has no {role}")


def start_workers(site: Cluster, count: int, folder: str = "mpijob") -> list[Pod]:
    command = commands(folder, "worker")
    variables = {"K_MPI_JOB_ROLE": "worker"}
    return [site.start(site.worker(i), command, variables) for i in range(count)]


def launcher_variables(slots: int) -> dict[str, str]:
    return {
        "K_MPI_JOB_ROLE": "launcher",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": str(slots),
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
    }


def start_launcher(site: Cluster, argv: list[str], workers: int = WORKERS) -> Pod:
    mounts = {"/etc/mpi": site.configuration(workers, SLOTS)}
    return site.start(f"{site.job}-launcher", argv, launcher_variables(SLOTS), mounts)


def test_the_image_has_only_what_is_pinned() -> None:
    pinned = (ROOT / "deploy" / "image" / "torch.txt").read_text()
    pinned += (ROOT / "deploy" / "image" / "base.txt").read_text()
    names = set(re.findall(r"^([\w-]+)==", pinned, re.MULTILINE))
    found = (IMAGE / "files" / "usr/share/lightcc/python-packages").read_text()
    installed = re.findall(r"^(\S+?)(?:==| @)", found, re.MULTILINE)
    assert {it.lower().replace("_", "-") for it in installed} - names == {"lightcc"}
    debian = (IMAGE / "files" / "usr/share/lightcc/debian-packages").read_text()
    assert re.search(r"^openmpi-bin\t4\.1\.4-", debian, re.MULTILINE)
    assert not list((IMAGE / "files" / "etc" / "ssh").glob("ssh_host_*_key"))


def test_the_image_runs_the_job_of_make_demo(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    site = cluster(stack, tmp_path)
    variables = {
        "LIGHT_2D_ALLREDUCE": "1",
        "LIGHT_INTRA_SIZE": "2",
        "LIGHT_TOPK_THRESHOLD": "16K",
        "LIGHT_TCP_RATE": "12M",
    }
    command = ["lightccrun", "-np", "4", "--no-prefix", "python", "/train/pytorch_compression.py"]
    mounts = {"/train": ROOT / "examples"}
    pod = site.start("demo", command, variables, mounts)
    assert pod.end() == 0, pod.said
    assert "all ranks hold the same weights, bit for bit" in pod.said


def test_the_command_line_of_the_seeds_runs_on_four_pods(
    stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    site = cluster(stack, tmp_path, "taco-bench")
    workers = start_workers(site, WORKERS, "taco")
    launcher = start_launcher(site, commands("taco", "launcher"))
    site.await_ready(*workers)
    (site.shared / "benchmark.py").write_text(BENCHMARK)
    done = launcher.run(*shlex.split(MPIRUN), "/shared/benchmark.py")
    assert done.returncode == 0, done.stdout
    places = re.findall(r"place \((.*?)\) compressed (\w+)", done.stdout)
    expected = [(f"{rank}, 8, {rank % 2}, 2, {rank // 2}", "True") for rank in range(8)]
    assert sorted(places) == expected, done.stdout


def test_ranks_of_mpirun_may_save_when_their_pod_is_deleted(
    stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    site = cluster(stack, tmp_path)
    (site.shared / "train.py").write_text(SAVES)
    workers = start_workers(site, 2)
    site.await_ready(*workers)
    names = ",".join(f"{worker.name}:{SLOTS}" for worker in workers)
    line = f"mpirun -np 4 -H {names} --allow-run-as-root python /shared/train.py /shared"
    launcher = start_launcher(site, line.split(), workers=2)
    wait_for((site.shared / "step.3").exists, launcher)
    workers[1].kill("TERM")
    assert workers[1].end() == 0, workers[1].said
    saved = {path.name for path in site.shared.glob("saved.*")}
    assert saved & {"saved.2", "saved.3"}, launcher.said
    launcher.end()


def test_lightccrun_waits_for_names_and_a_killed_pod_is_an_error_that_names_the_rank(
    stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    site = cluster(stack, tmp_path)
    (site.shared / "train.py").write_text(STEPS)
    line = commands("mpijob", "launcher")
    command = [*line[: line.index("python")], "python", "/shared/train.py", "/shared"]
    launcher = start_launcher(site, command)
    wait_for(lambda: "waiting for the name(s)" in launcher.said, launcher)
    workers = start_workers(site, WORKERS)
    site.await_ready(*workers)
    wait_for((site.shared / "step.7").exists, launcher)
    workers[3].kill("KILL")
    assert launcher.end() != 0
    assert "train-worker-3" in launcher.said
    for rank in range(6):
        told = (site.shared / f"told.{rank}").read_text()
        assert re.match(r"PeerFailedError: .*rank [67]\b", told), told


def test_a_pod_that_is_deleted_is_drained_and_the_job_goes_on_without_it(
    stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    site = cluster(stack, tmp_path)
    (site.shared / "train.py").write_text(TRAINING)
    (site.shared / "wait").touch()
    workers = start_workers(site, 2, "mpijob-elastic")
    site.await_ready(*workers)
    line = commands("mpijob-elastic", "launcher")
    line = [*line[: line.index("python")], "python", "/shared/train.py", "{}", "/shared"]
    line.insert(1, "--verbose")
    launcher = start_launcher(site, line, workers=2)
    wait_for((site.shared / "step.10").exists, launcher)
    workers[1].kill("TERM")
    assert workers[1].end() == 0, workers[1].said
    site.write_running([0])
    (site.shared / "wait").unlink()
    assert launcher.end() == 0, launcher.said
    assert "train-worker-1.train.default.svc leaves: its worker got SIGTERM" in launcher.said
    found = results(site.shared)
    assert set(found) == {"0", "1"}
    for about in found.values():
        assert about["weights"] == UNDISTURBED
        assert about["sizes"] == [4, 2]


def test_workers_dial_in_and_the_job_goes_on_when_a_pod_is_killed_and_made_anew(
    stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    site = cluster(stack, tmp_path)
    (site.shared / "train.py").write_text(TRAINING)
    (site.shared / "wait").touch()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "secret").write_text("of this job alone\n")
    mounts = {"/run/lightcc": tmp_path / "secret"}
    join = commands("dial-in-elastic", "worker")
    first = site.start(site.worker(0), join, mounts=mounts)
    wait_for(lambda: "not yet" in first.said, first)
    story = json.dumps({"4": [-1, "is awaited"]})
    line = commands("dial-in-elastic", "launcher")
    line = [*line[: line.index("python")], "python", "/shared/train.py", story, "/shared"]
    launcher = site.start("train-launcher", line, mounts=mounts)
    site.name(launcher)
    wait_for(lambda: "joined" in first.said, first)
    second = site.start(site.worker(1), join, mounts=mounts)
    wait_for((site.shared / "step.10").exists, launcher)
    second.kill("KILL")
    assert second.end() == 128 + 9
    second = site.start(site.worker(1), join, mounts=mounts)
    assert launcher.end() == 0, launcher.said
    assert (first.end(), second.end()) == (0, 0)
    found = results(site.shared)
    assert set(found) == {"0", "1", "4", "5"}
    for worker in "01":
        assert found[worker]["weights"] == UNDISTURBED
        assert found[worker]["sizes"] == [4, 2, 4]
