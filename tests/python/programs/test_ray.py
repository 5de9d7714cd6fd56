"""Ranks that are actors of a Ray cluster: three nodes, each with its own address, on this machine.

Skipped where Ray is not installed; `make test-all` installs it.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("ray", reason="Ray is not installed")

import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster

from lightcc.ray import BaseHorovodWorker, ElasticRayExecutor, RayExecutor, elastic, elastic_v2
from lightcc.ray.strategy import create_placement_group

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "running" / "ray.md"
# Ray starts many processes that import much: 21 s of CPU for one job of Ray Train with two ranks.
PATIENCE_S = 300.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiproc,
    pytest.mark.timeout(2 * PATIENCE_S),
    # Ray itself leaves files and sockets open, and uses what Python has deprecated.
    pytest.mark.filterwarnings("default"),
]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Actors cannot import this file.


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without room, and two nodes with two CPUs each."""
    names = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_worker_niceness": "0",  # It is 15, and the tests beside this one would starve it.
    }
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for number in (2, 3):
        made.add_node(num_cpus=2, node_ip_address=f"127.0.0.{number}")
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


@pytest.fixture
def four(cluster: Any) -> Iterator[RayExecutor]:  # noqa: ARG001  it must be there
    """Four ranks on two nodes."""
    executor = RayExecutor(RayExecutor.create_settings(), num_hosts=2, num_workers_per_host=2)
    executor.start(extra_env_vars={"EXTRA": 5})
    yield executor
    executor.shutdown()


def standing() -> dict[str, Any]:
    """What a rank knows of itself, and a sum over all."""
    import numpy as np

    import lightcc as hvd

    hvd.init()
    names = ("RANK", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    numbers = tuple(int(os.environ[f"LIGHT_{name}"]) for name in names)
    assert numbers == tuple(int(os.environ[f"HOROVOD_{name}"]) for name in names)
    total = hvd.allreduce(np.full(3, 10.0 ** hvd.rank()), op=hvd.Sum).tolist()
    return {"numbers": numbers, "total": total, "extra": os.environ["EXTRA"]}


def test_ranks_of_two_nodes_make_one_world(four: RayExecutor) -> None:
    found = four.run(standing)
    assert [it["numbers"] for it in found] == [
        (0, 0, 2, 0, 2),
        (1, 1, 2, 0, 2),
        (2, 0, 2, 1, 2),
        (3, 1, 2, 1, 2),
    ]
    assert all(it["total"] == [1111.0] * 3 and it["extra"] == "5" for it in found)
    # The actors stay, and so does their world.
    ranks = four.execute(lambda _: __import__("lightcc").rank())
    assert ranks == [0, 1, 2, 3]
    assert four.execute_single(lambda _: __import__("lightcc").size()) == 4
    assert ray.get(four.run_remote(divmod, args=[7, 2])) == [(3, 1)] * 4


def test_an_error_of_a_rank_reaches_the_caller_and_shutdown_ends_those_that_hang(
    four: RayExecutor,
) -> None:
    def fail() -> None:
        import numpy as np

        import lightcc as hvd

        hvd.init()
        if hvd.rank() == 3:
            raise LookupError("of rank 3")
        hvd.allreduce(np.ones(3), name="never")

    with pytest.raises(LookupError, match="of rank 3"):
        four.run(fail)
    four.shutdown()
    again = RayExecutor(RayExecutor.create_settings(), num_workers=4)
    again.start()  # So what the four had is free.
    assert again.run(os.getpid) == again.run(os.getpid)
    again.shutdown()


class Counter:
    """What each actor may have."""

    def __init__(self, start: int, step: int) -> None:
        self.value, self.step = start, step

    def count(self) -> int:
        from lightcc.ray import ray_logger

        self.value += self.step
        ray_logger.log({"value": self.value})
        return self.value


@pytest.mark.usefixtures("cluster")
def test_actors_have_objects_and_log_to_callbacks() -> None:
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=20), num_workers=2)
    executor.start(Counter, [10], {"step": 2}, {"EXTRA": 1})
    seen: list[Any] = []
    assert executor.execute(lambda it: it.count(), callbacks=[seen.append]) == [12, 12]
    assert seen == [{"value": 12}] * 2
    with pytest.raises(ZeroDivisionError):
        executor.execute(lambda it: it.count(), callbacks=[lambda _: 1 // 0])
    timeouts = executor.execute(lambda _: os.environ["HOROVOD_START_TIMEOUT"])
    assert timeouts == ["20"] * 2
    executor.shutdown()
    executor.shutdown()  # Nothing is left to do.
    with pytest.raises(RuntimeError, match=r"run\(\): call start\(\) first"):
        executor.run(os.getpid)


@pytest.mark.usefixtures("cluster")
def test_what_there_is_no_room_for_is_a_timeout_that_says_what_there_is() -> None:
    settings = RayExecutor.create_settings(placement_group_timeout_s=1)
    executor = RayExecutor(settings, num_hosts=3, num_workers_per_host=2)
    with pytest.raises(TimeoutError, match=r"3 x {'CPU': 2, 'GPU': 0} \(STRICT_SPREAD\) within 1"):
        executor.start()
    executor.shutdown()


@pytest.mark.usefixtures("cluster")
def test_a_placement_group_around_the_caller_is_used() -> None:
    group, bundles = create_placement_group({"CPU": 1}, 4, 30, "PACK")
    assert bundles == [{"CPU": 1}] * 4

    def inside() -> list[int]:
        executor = RayExecutor(RayExecutor.create_settings(), num_workers=3)
        executor.start()
        pids: list[int] = executor.run(os.getpid)
        executor.shutdown()
        return pids

    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        group, placement_group_capture_child_tasks=True
    )
    task = ray.remote(inside).options(num_cpus=1, scheduling_strategy=strategy)
    try:
        assert len(set(ray.get(task.remote(), timeout=PATIENCE_S))) == 3
    finally:
        ray.util.remove_placement_group(group)


def until_all_have_met(size: int, steps: int) -> tuple[int, int, int]:
    """Trains until there are `size` ranks, and so many steps."""
    import numpy as np

    import lightcc as hvd
    from lightcc.ray import ray_logger

    hvd.init()

    @hvd.elastic.run
    def train(state: Any) -> tuple[int, int, int]:
        while state.step < steps or hvd.size() != size:
            found = hvd.allreduce(np.ones(3), op=hvd.Sum, name="step")
            assert found.tolist() == [hvd.size()] * 3
            state.step += 1
            pids = hvd.allgather(np.array([os.getpid()]), name="pids").tolist()
            if hvd.rank() == 0:
                ray_logger.log({"size": hvd.size(), "pids": pids})
            state.commit()
            time.sleep(0.05)
        return hvd.rank(), hvd.size(), state.step

    return train(hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0))


def test_an_elastic_job_outlives_a_rank_and_takes_in_a_node(cluster: Any) -> None:
    executor = RayExecutor(
        RayExecutor.create_settings(), min_workers=2, max_workers=6, cooldown_range=[1, 1]
    )
    executor.start()
    seen: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def wait_for(what: Callable[[dict[str, Any]], bool]) -> list[int]:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            found = seen.get(timeout=PATIENCE_S)
            if what(found):
                pids: list[int] = found["pids"]
                return pids
        raise TimeoutError

    # Ray adds nodes in the main thread only.
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(executor.run, until_all_have_met, args=[6, 20], callbacks=[seen.put])
        victim = wait_for(lambda it: it["size"] == 4)[-1]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda it: it["size"] >= 2 and victim not in it["pids"])
        node = cluster.add_node(num_cpus=2, node_ip_address="127.0.0.4")
        try:
            found = call.result(PATIENCE_S)
        finally:
            cluster.remove_node(node)
    ranks, sizes, steps = zip(*found, strict=True)
    assert ranks == tuple(range(6))
    assert set(sizes) == {6}
    assert len(set(steps)) == 1


@pytest.mark.usefixtures("cluster")
def test_an_elastic_job_that_fails_says_why() -> None:
    def fail() -> None:
        raise LookupError("of all ranks")

    settings = ElasticRayExecutor.create_settings(min_num_proc=4, cooldown_range=(60, 60))
    executor = ElasticRayExecutor(settings, env_vars={"EXTRA": 1})
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        executor.run(fail)
    executor.start()
    with pytest.raises(RuntimeError, match=r"has ended: worker \d on 127.0.0.[23]: LookupError"):
        executor.run(fail)
    assert executor.driver is not None
    assert executor.driver.is_used


@pytest.mark.usefixtures("cluster")
def test_what_an_elastic_job_cannot_do_is_refused() -> None:
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=1)
    executor.start()
    with pytest.raises(NotImplementedError, match="no actors between two calls"):
        executor.run_remote(os.getpid)
    with pytest.raises(NotImplementedError, match="no actors between two calls"):
        executor.execute_single(id)
    executor.shutdown()


@pytest.mark.usefixtures("cluster")
def test_hosts_are_the_addresses_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"127.0.0.2": 2, "127.0.0.3": 2}
    assert elastic.RayHostDiscovery().find_available_hosts_and_slots() == expected
    by_two = elastic.RayHostDiscovery(cpus_per_slot=2).find_available_hosts_and_slots()
    assert by_two == dict.fromkeys(expected, 1)
    assert elastic_v2.RayHostDiscovery(use_gpu=True).find_available_hosts_and_slots() == {}
    node = {"NodeManagerAddress": "here", "alive": True, "Resources": {"CPU": 8, "GPU": 4}}
    monkeypatch.setattr(ray, "nodes", lambda: [node, node, node | {"alive": False}])
    discovery = elastic_v2.RayHostDiscovery(use_gpu=True, gpus_per_worker=2)
    assert discovery.find_available_hosts_and_slots() == {"here": 4}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "num_workers=None, num_hosts=None: give one of them"),
        ({"num_workers": 1, "num_hosts": 1}, "num_workers=1, num_hosts=1: give one of them"),
        ({"num_workers": 0}, "num_workers=0: expected at least 1"),
        ({"num_hosts": 1, "num_workers_per_host": None}, "num_workers_per_host=None"),
        ({"num_workers": 1, "min_workers": 1}, "Both `min_workers` and `num_workers` provided"),
        ({"num_workers": 1, "max_workers": 2}, "without any positive `min_workers`"),
        ({"min_workers": 3, "max_workers": 2}, "max_workers=2: expected at least min_workers=3"),
        ({"min_workers": 0}, "min_workers=0: expected at least 1"),
        ({"min_workers": 1, "cooldown_range": [1]}, "expected two numbers of seconds"),
        ({"num_workers": 1, "gpus_per_worker": 2}, "gpus_per_worker=2 needs use_gpu=True"),
        (
            {"num_workers": 1, "use_gpu": True, "gpus_per_worker": 0},
            "gpus_per_worker=0: expected at least 1",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RayExecutor(RayExecutor.create_settings(), **arguments)


def test_settings_without_effect_and_unknown_ones_are_named() -> None:
    with pytest.warns(RuntimeWarning, match="no effect: Ray starts the ranks, without ssh"):
        RayExecutor.create_settings(ssh_identity_file="key", ssh_str="secret")
    with pytest.warns(DeprecationWarning, match="min_np is deprecated, use min_num_proc"):
        assert ElasticRayExecutor.create_settings(min_np=3).min_num_proc == 3
    with pytest.raises(TypeError, match="no such settings: tcp_flag"):
        ElasticRayExecutor.create_settings(tcp_flag=True)
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=1, override_discovery=False)
    with pytest.raises(ValueError, match=r"override_discovery=False needs settings\.discovery"):
        executor.start()


def test_workers_of_one_node_see_all_its_gpus(cluster: Any) -> None:
    node = cluster.add_node(num_cpus=2, num_gpus=2, node_ip_address="127.0.0.5")
    try:
        executor = RayExecutor(RayExecutor.create_settings(), num_workers=2, use_gpu=True)
        executor.start()
        seen = executor.execute(lambda _: os.environ["CUDA_VISIBLE_DEVICES"])
        assert seen[0] == seen[1]
        assert sorted(seen[0].split(",")) == ["0", "1"]
        executor.shutdown()
    finally:
        cluster.remove_node(node)


@pytest.mark.usefixtures("cluster")
def test_a_worker_has_horovods_methods() -> None:
    actor = ray.remote(BaseHorovodWorker).options(num_cpus=0).remote(3, 5)
    ray.get(actor.update_env_vars.remote({"NUMBER": 1123}))
    found = ray.get(actor.env_vars.remote())
    assert found["NUMBER"] == "1123"
    assert (found["HOROVOD_RANK"], found["HOROVOD_SIZE"]) == ("3", "5")
    assert found["HOROVOD_HOSTNAME"] == ray.get(actor.node_id.remote())
    assert ray.get(actor.hostname.remote()) == os.uname().nodename


BLOCK = re.compile(r'^```python title="(\w+\.py)"\n(.*?)^```$', flags=re.MULTILINE | re.DOTALL)
PROGRAMS = dict(BLOCK.findall(GUIDE.read_text()))


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("ray_job.py", "[0.5, 0.5]"),
        ("ray_elastic_job.py", "[20, 20"),
        ("ray_train_job.py", "'mean': 0.5, 'size': 2"),
    ],
)
def test_programs_of_the_guide_run(
    cluster: Any, program: str, printed: str, tmp_path: Path
) -> None:
    path = tmp_path / program
    path.write_text(PROGRAMS[program])
    output = tmp_path / "output"
    with output.open("w") as out:
        status = subprocess.run(
            ["timeout", str(PATIENCE_S), sys.executable, path],
            cwd=tmp_path,
            env=os.environ | {"RAY_ADDRESS": cluster.address, "HOME": str(tmp_path)},
            stdout=out,
            stderr=subprocess.STDOUT,  # Ray Train shows reports there.
            check=False,
        ).returncode
    said = output.read_text()
    assert status == 0, f"exit status {status} (124: {PATIENCE_S:g} s were over): {said[-8000:]}"
    assert printed in said, said[-8000:]
