"""A training for tests of elastic jobs, whose result does not depend on who took part."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LIGHTCCRUN = str(Path(sys.executable).parent / "lightccrun")
PATIENCE_S = 120

#: Counts to 40 in steps that all ranks take together; each step adds the same on any number of
#: ranks, so that the result does not depend on who was there. What a worker does at which step is
#: told by the first argument: {worker: [step, what]}; "all" stands for any other worker.
TRAINING = """
import json, os, signal, sys, time
from pathlib import Path
from typing import Any
import numpy as np
import lightcc as hvd

worker, folder = os.environ["LIGHT_WORKER"], Path(sys.argv[2])
story = json.loads(sys.argv[1])
at, what = story.get(worker, story.get("all", [-1, ""]))
if what == "dies before init":
    os.kill(os.getpid(), signal.SIGKILL)
hvd.init()
place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(),
         hvd.cross_size()]
if what == "gets ready slowly":  # Until the others have trained for three steps more.
    for _ in range(3):
        (folder / "alive").unlink(missing_ok=True)
        while not (folder / "alive").exists():
            time.sleep(0.01)
    assert hvd.broadcast_object("own", 0) == "own"  # Nobody else takes part.
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == 1
if what == "dies taking over":
    hvd.elastic.ObjectState._arrive = lambda _: os.kill(os.getpid(), signal.SIGKILL)
if what == "dies passing on":
    from lightcc.elastic._passing_on import PassingOn
    send = PassingOn._send
    def send_and_die(self, array, newcomer, part):
        if part == "about":
            os.kill(os.getpid(), signal.SIGKILL)
        send(self, array, newcomer, part)
    PassingOn._send = send_and_die
state = hvd.elastic.ObjectState(
    hvd.broadcast_object, hvd.rank, step=0, weights=np.zeros(3), sizes=[]
)
resets = []
state.register_reset_callbacks([lambda: resets.append(hvd.size())])

@hvd.elastic.run(
    check_replicas=int(os.environ.get("CHECK_REPLICAS", "0")),
    keep_commits=int(os.environ.get("KEEP_COMMITS", "0")),
)
def train(state):
    (folder / f"began.{worker}").write_text(str(state.step))
    state.sizes = [*state.sizes, hvd.size()]
    processes = hvd.allgather_object(os.getpid(), name="processes")
    (folder / f"joined.{worker}").touch()
    more = 1.0
    while more > 0:
        if what in ("is awaited", "gets ready slowly"):
            (folder / "wait").unlink(missing_ok=True)
        if what == "is slow" and state.step >= at:
            time.sleep(0.2)
        gradient = np.full(3, float(state.step))
        gradient = hvd.allreduce(gradient, op=hvd.Average, name="gradient")
        if state.step == at and what == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if state.step == at and what in ("kills all", "kills all and its agent"):
            for process in set(processes) - {os.getpid()}:
                os.kill(process, signal.SIGKILL)
            os.kill(os.getpid() if what == "kills all" else os.getppid(), signal.SIGKILL)
        while state.step == at and what == "is stuck":
            time.sleep(0.01)
        if state.step == at and what == "goes wrong":
            gradient = gradient * 2
        if state.step < 40:
            state.weights = state.weights + gradient
            state.step += 1
        (folder / f"step.{state.step}").touch()
        (folder / "alive").touch()
        if state.step % 2 == 0:
            state.commit()
        waits = np.array([state.step < 40 or (folder / "wait").exists()], np.float32)
        more = hvd.allreduce(waits, op=hvd.Max, name="more")[0]
        time.sleep(0.01)
    return state

train(state)
about = {"weights": state.weights.tolist(), "sizes": state.sizes, "resets": resets}
about |= {"place": place, "last": [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(),
                                   hvd.cross_rank(), hvd.cross_size()]}
(folder / f"result.{worker}").write_text(json.dumps(about))
"""
UNDISTURBED = [float(sum(range(40)))] * 3


def results(folder: Path) -> dict[str, dict[str, list[float]]]:
    found = sorted(folder.glob("result.*"))
    return {path.suffix[1:]: json.loads(path.read_text()) for path in found}


def run_job(
    folder: Path, story: dict[str, list[object]], *flags: str
) -> subprocess.CompletedProcess[str]:
    """Runs the training by lightccrun to its end."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    argv = [LIGHTCCRUN, *flags, sys.executable, str(script), json.dumps(story)]
    return subprocess.run(
        [*argv, str(folder)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def events_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
