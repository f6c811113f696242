"""hvdgan.fit(): the run of the command, its errors as exceptions, and what it returns. Modules: training.execution"""

import json
import sys

import keras
import pytest

import hvdgan
import saved
from hvdgan import RunError, TrainedRun, UserError
from launching import environment, launcher, run
from tiny import Tiny

TINY = {"image_size": 8, "global_batch_size": 8, "steps": 8, "log_every": 2, "report": "never"}
SCRIPT = """
import sys
import hvdgan
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
assert not hasattr(hvdgan, "train")
import numpy as np
from tiny import Tiny

class Mine(Tiny):
    pass

class Photos:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return np.full((8, 8, 1), index, np.uint8)

photos = Photos()

class Ranks(hvdgan.Logger):
    def __init__(self, run_dir):
        print("rank 0's logger of", run_dir, flush=True)

settings = {"image_size": 8, "global_batch_size": 8, "steps": 4, "log_every": 2, "report": "never", "logger": Ranks}
one = hvdgan.fit(recipe=Mine, run_dir="one", **settings)
two = hvdgan.fit(recipe=Mine, data="__main__:photos", run_dir="two", seed=1, **settings)
try:
    hvdgan.fit(recipe=Mine, run_dir="three", **{**settings, "global_batch_size": 7})
except hvdgan.UserError as error:
    print("refused:", error, flush=True)
differ = one.metrics["fool/loss"] != two.metrics["fool/loss"]
print("trained", one.step, two.step, differ, one.sample(3).shape, flush=True)
"""


def test_the_run_is_that_of_the_command(tmp_path):
    found = hvdgan.fit(recipe=Tiny, run_dir=tmp_path / "called", flip=True, **TINY)
    assert saved.train(tmp_path / "typed", "--flip") == 0
    assert saved.state(tmp_path / "called", 8) == saved.state(tmp_path / "typed", 8)
    called, typed = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("called", "typed"))
    assert {name for name in typed if typed[name] != called[name]} == {"run_dir", "report"}
    assert isinstance(found, TrainedRun) and (found.run_dir, found.is_finished) == (tmp_path / "called", True)
    last = saved.records(tmp_path / "called")[-1]
    assert found.step == last["step"] == 8 and found.metrics["judge/loss"] == last["judge/loss"]


def test_a_second_call_resumes_and_other_peoples_keras_is_as_before(tmp_path):
    settings = {**TINY, "precision": "bf16"}
    runs = [("run", {"max_steps": 4}, 4), ("run", {}, 8), ("whole", {}, 8)]
    for name, more, step in runs:
        assert hvdgan.fit("tiny:Tiny", run_dir=tmp_path / name, **settings, **more).step == step
        assert keras.config.dtype_policy().name == "float32"
    assert saved.state(tmp_path / "run", 8) == saved.state(tmp_path / "whole", 8)


def test_a_run_that_is_stopped_between_two_logs_has_done_the_steps_of_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("hvdgan.training.stopping.CHECK_SECONDS", 0.0)
    settings = {**TINY, "run_dir": tmp_path / "run"}
    for step, metrics in ((1, False), (2, True), (3, True)):
        found = hvdgan.fit("paced:OneStep", **settings)
        assert (found.step, found.is_finished, "judge/loss" in found.metrics) == (step, False, metrics)
        assert saved.steps(tmp_path / "run")[-1] == step


def test_mistakes_are_exceptions(tmp_path):
    class Local(Tiny):
        pass

    with pytest.raises(UserError, match="recipe .*Local: define the class at the top of its module"):
        hvdgan.fit(recipe=Local, run_dir=tmp_path / "run", **TINY)
    with pytest.raises(RunError, match="not finite"):
        hvdgan.fit("tiny:Exploding", run_dir=tmp_path / "run", max_bad_steps=1, **TINY)


@pytest.mark.long
def test_a_script_on_two_ranks_trains_twice(tmp_path):
    """Its class has no file, as in a notebook."""
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "-c", "exec(open('script.py').read())"]
    done = run([*launcher(2), *words], tmp_path, **{"PYTHONPATH": environment()["PYTHONPATH"]})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank 0's logger of one") == done.stdout.count("rank 0's logger of two") == 1
    assert done.stdout.count("trained 4 4 True (3, 8, 8, 1)") == 2
    assert done.stdout.count("refused: --global-batch-size 7") == 2
    assert '"ranks": 2' in (tmp_path / "two" / "events.jsonl").read_text()
