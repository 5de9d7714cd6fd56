"""Horovod's names in child processes of every kind, and across ranks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from programs import RUN, output, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.multiproc
LAUNCH = [sys.executable, "-m", "lightcc.runner", "--no-prefix", "--horovod", "-np", "2"]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_multiprocessing_children_have_the_names_and_send_errors_back(
    tmp_path: Path, method: str
) -> None:
    script = write(
        tmp_path / "pool.py",
        """
        import multiprocessing, sys
        from concurrent.futures import ProcessPoolExecutor
        from horovod.common.exceptions import HorovodInternalError

        def work(x):
            import horovod, horovod.common.exceptions, lightcc
            assert horovod.common.exceptions is lightcc.exceptions
            if x < 0:
                raise horovod.common.exceptions.HorovodInternalError("gone", 3)
            return 2 * x, __name__

        if __name__ == "__main__":
            context = multiprocessing.get_context(sys.argv[1])
            with ProcessPoolExecutor(1, context) as pool:
                print(*pool.submit(work, 4).result())
                try:
                    pool.submit(work, -1).result()
                except HorovodInternalError as error:
                    print(type(error).__module__, error, error.rank)
        """,
    )
    name = "__main__" if method == "fork" else "__mp_main__"
    expected = f"8 {name}\nlightcc.exceptions gone 3\n"
    assert output(*RUN, script, method) == expected


def test_a_subprocess_has_the_names(tmp_path: Path) -> None:
    script = write(
        tmp_path / "parent.py",
        """
        import subprocess, sys
        program = "import horovod, importlib.metadata as m; print(m.version('horovod'))"
        sys.exit(subprocess.call([sys.executable, "-c", program]))
        """,
    )
    assert output(*RUN, script) == "0.28.1\n"


def test_errors_and_sets_travel_between_ranks(tmp_path: Path) -> None:
    script = write(
        tmp_path / "errors.py",
        """
        import lightcc as hvd
        from horovod.common.exceptions import HorovodInternalError
        from horovod.common.process_sets import ProcessSet

        hvd.init(process_sets=[ProcessSet([1])])
        mine = hvd.PeerFailedError(f"from {hvd.rank()}", rank=hvd.rank())
        for rank, error in enumerate(hvd.allgather_object(mine)):
            assert isinstance(error, HorovodInternalError), type(error)
            assert (str(error), error.rank) == (f"from {rank}", rank)
        print(hvd.get_process_set_ids_and_ranks())
        """,
    )
    assert output(*LAUNCH, sys.executable, script) == "{0: [0, 1], 1: [1]}\n" * 2


def test_the_launchers_flag_reaches_ranks_whose_command_is_no_script() -> None:
    program = "import horovod.common.util as u; print(u.gloo_built())"
    assert output(*LAUNCH, sys.executable, "-c", program) == "True\n" * 2


TRAINING = """
import sys
import torch
import torch.nn.functional as F
import torch.multiprocessing
import horovod.torch as hvd


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        import horovod.torch

        assert horovod.torch is sys.modules["lightcc.torch"]
        x = torch.tensor([i / 32.0])
        return x, 3 * x + 1


def main():
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(1, 1)
    sampler = torch.utils.data.distributed.DistributedSampler(
        Squares(), num_replicas=hvd.size(), rank=hvd.rank()
    )
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=4, sampler=sampler, num_workers=1, multiprocessing_context=sys.argv[1]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16
    )
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(data), target)
            loss.backward()
            optimizer.step()
            losses.append(hvd.allreduce(loss.detach(), name="loss").item())
    states = hvd.allgather_object({k: v.tolist() for k, v in model.state_dict().items()})
    print("falls", losses[-1] < losses[0] / 4, "same", states[0] == states[-1], flush=True)


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_training_script_for_horovod_runs_unmodified_with_data_loader_workers(
    tmp_path: Path, method: str
) -> None:
    script = write(tmp_path / "train.py", TRAINING)
    assert output(*LAUNCH, sys.executable, script, method) == "falls True same True\n" * 2
