"""Elastic jobs of TensorFlow and Keras: states alone, and ranks that are killed in training."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_frontends import environment
from processes import run_to_end

LIGHTCCRUN = str(Path(sys.executable).parent / "lightccrun")
PATIENCE_S = 240
# Importing TensorFlow takes many seconds on a busy machine, and both ranks must take part.
FLAGS = ("-np", "2", "--min-np", "1", "--start-timeout", "120")

# Worker 1 is killed at step 3. The weights after 8 steps do not depend on who was there.
LOOP = """
import json, os, signal, sys
from pathlib import Path
import tensorflow as tf
import lightcc.tensorflow as hvd

hvd.init()
weights = tf.Variable([0.0, 0.0])
state = hvd.elastic.TensorFlowState([weights], step=0, sizes=[])

@tf.function
def step(value):
    weights.assign_add(hvd.allreduce(value, op=hvd.Average, name="gradient"))

@hvd.elastic.run
def train(state):
    state.sizes = [*state.sizes, hvd.size()]
    while state.step < 8:
        if state.step == 3 and os.environ["LIGHT_WORKER"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        step(tf.fill([2], float(state.step)))
        state.step += 1
        state.commit()

train(state)
about = {"weights": weights.numpy().tolist(), "sizes": state.sizes[:2]}
Path(sys.argv[1], "result." + os.environ["LIGHT_WORKER"]).write_text(json.dumps(about))
"""

FIT = """
import json, os, signal, sys
from pathlib import Path
import numpy as np
BACKEND = os.environ.get("KERAS_BACKEND", "")
if BACKEND == "torch":
    import keras
    import lightcc.keras as hvd
else:
    import tensorflow as tf
    from tensorflow import keras
    import lightcc.tensorflow.keras as hvd

hvd.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
eagerly = {} if BACKEND == "torch" else {"run_eagerly": True}
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse", **eagerly)
x, y = np.ones([8, 2], np.float32), np.ones([8, 1], np.float32)

class Fault(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        if os.environ["LIGHT_WORKER"] == "1" and state.epoch == 1 and batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)

state = hvd.elastic.KerasState(model, epoch=0, batch=0, sizes=[])

@hvd.elastic.run
def train(state):
    state.sizes = [*state.sizes, hvd.size()]
    calls = [
        Fault(), hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.CommitStateCallback(state, 2),
    ]
    model.fit(x, y, batch_size=2, epochs=3 - state.epoch, callbacks=calls, verbose=0, shuffle=False)

train(state)
digest = [np.asarray(v).tolist() for v in model.get_weights()]
about = {"weights": digest, "sizes": state.sizes[:2], "epoch": state.epoch, "batch": state.batch}
Path(sys.argv[1], "result." + os.environ["LIGHT_WORKER"]).write_text(json.dumps(about))
"""


def run_job(folder: Path, program: str, frontend: str) -> dict[str, Any]:
    """Runs a job of two ranks, of which worker 1 is killed; returns what worker 0 has found."""
    script = folder / "train.py"
    script.write_text(program)
    job = run_to_end(
        [LIGHTCCRUN, *FLAGS, sys.executable, str(script), str(folder)],
        env=os.environ | environment(frontend),
        timeout=PATIENCE_S,
    )
    assert job.returncode == 0, job.stderr
    assert "killed by SIGKILL" in job.stderr or not (folder / "result.1").exists()
    found: dict[str, Any] = json.loads((folder / "result.0").read_text())
    return found


@pytest.mark.timeout(PATIENCE_S)
def test_a_loop_of_ones_own_goes_on_without_a_rank_that_was_killed(tmp_path: Path) -> None:
    found = run_job(tmp_path, LOOP, "tensorflow")
    assert found == {"weights": [28.0, 28.0], "sizes": [2, 1]}


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("frontend", ["tensorflow", pytest.param("torch", marks=pytest.mark.slow)])
def test_fit_goes_on_without_a_rank_that_was_killed(tmp_path: Path, frontend: str) -> None:
    found = run_job(tmp_path, FIT, frontend)
    assert found["sizes"] == [2, 1]
    assert (found["epoch"], found["batch"]) == (3, 0)
    assert np.isfinite(np.concatenate([np.ravel(value) for value in found["weights"]])).all()


def moves(optimizer: Any) -> bool:
    """Returns whether an optimizer remembers momentum."""
    values = [variable.numpy() for variable in optimizer.variables]
    return any(value.any() for value in values if value.ndim)


def test_a_state_restores_what_was_saved_and_synchronises_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    import lightcc.tensorflow.keras as hvd

    hvd.init()
    keras = tf.keras
    model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    state: Any = hvd.elastic.KerasState(model, epoch=0)
    before = [weights.copy() for weights in model.get_weights()]
    model.fit(np.ones([2, 2]), np.ones([2, 1]), verbose=0)
    state.epoch = 5
    assert moves(model.optimizer)
    state.restore()
    assert state.epoch == 0
    for value, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, old)
    assert not moves(model.optimizer)
    state.sync()
    state.save()
    hvd.shutdown()


def test_a_state_needs_a_model_that_is_built_and_an_optimizer() -> None:
    import tensorflow as tf

    import lightcc.tensorflow.keras as hvd

    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r"Model must be built first. Run `model.build"):
        hvd.elastic.KerasState(model)
    model.build([None, 2])
    with pytest.raises(ValueError, match="there is no optimizer"):
        hvd.elastic.KerasState(model)


def test_the_variables_of_a_graph_are_kept_by_its_session() -> None:
    import tensorflow as tf

    import lightcc.tensorflow as hvd

    hvd.init()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=[1.0, 2.0])
        session.run(tf.compat.v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, step=1)
        session.run(tf.compat.v1.assign(variable, [5.0, 6.0]))
        state.sync()
        session.run(tf.compat.v1.assign(variable, [7.0, 8.0]))
        state.restore()
        assert session.run(variable).tolist() == [5.0, 6.0]
        with pytest.raises(NotImplementedError, match="needs eager execution"):
            hvd.elastic.TensorFlowKerasState(None)
    hvd.shutdown()


def test_states_of_tensorflow_do_not_roll_forward() -> None:
    import tensorflow as tf

    import lightcc.tensorflow as hvd
    from lightcc.elastic import run

    hvd.init()
    state = hvd.elastic.TensorFlowState([tf.Variable(1.0)])
    with pytest.raises(ValueError, match="does not go with TensorFlowState: use 'rollback'"):
        run(lambda it: it, recovery="forward")(state)
    hvd.shutdown()
