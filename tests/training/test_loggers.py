"""Loggers of a run: what they get, on which rank, after a resumption, and when they fail. Nothing is sent anywhere.

W&B and MLflow are stand-ins here, with the names and arguments that the adapters use.
Modules: training.loggers, training.trackers"""

import json
import sys
import time
import types
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

import hvdgan
import saved
from hvdgan.training import loggers

EVERY = ["--log-every", "2", "--sample-every", "2", "--checkpoint-every", "4"]
MINE = """
import json, os
from hvdgan import Logger, StopRun

class Lines(Logger):
    def __init__(self, run_dir):
        self.file = open(run_dir / "mine.jsonl", "a")
        self.settings({})
    def _write(self, *what):
        print(json.dumps(what), file=self.file, flush=True)
    def settings(self, values):
        self._write("settings", values.get("steps"))
    def scalars(self, step, values):
        self._write("scalars", step, values["judge/loss"])
    def pictures(self, step, values):
        self._write("pictures", step, {name: [str(each.dtype), *each.shape] for name, each in values.items()})
    def close(self):
        self._write("close")

class Failing(Logger):
    def __init__(self, run_dir):
        pass
    def scalars(self, step, values):
        if step > 2:
            raise ValueError("no\\nroom")

class Stopper(Failing):
    def scalars(self, step, values):
        raise StopRun("enough")
"""


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    """A module of the user's in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    yield
    sys.modules.pop("mine", None)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def events_of(run_dir, kind):
    return [each for each in lines(run_dir / "events.jsonl") if each["event"] == kind]


def test_ones_own_gets_settings_numbers_and_pictures_and_nothing_twice_after_a_resumption(tmp_path):
    run = tmp_path / "run"
    assert saved.train(run, *EVERY, "--logger", "mine:Lines,tensorboard", "--max-steps", "6") == 0
    # As after a kill, a minute ago: it has logged more than its newest checkpoint has, and the last line is cut.
    saved.checkpoint(run, 6).unlink()
    # TensorBoard reads files in the order of their names, in which stands the second in which each was begun.
    for path in (run / "tensorboard").glob("events.out.tfevents.*"):
        *first, second, host = path.name.split(".", 4)
        path.rename(path.with_name(".".join([*first, str(int(second) - 60), host])))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "sta')
    assert saved.train(run, *EVERY, "--logger", "mine:Lines,tensorboard") == 0
    got, grid = lines(run / "mine.jsonl"), ["uint8", 78, 78, 3]
    settings, scalars, pictures, closed = (
        [each[1:] for each in got if each[0] == what] for what in ("settings", "scalars", "pictures", "close")
    )
    losses = [[record["step"], record["judge/loss"]] for record in saved.records(run)]
    assert (settings, scalars, closed) == ([[None], [8], [None], [8]], losses, [[], []])
    assert [step for step, _ in losses] == [2, 4, 6, 8]
    drawn = [[step, {"samples": grid}] for step in (0, 2, 4, 6, 8)]
    assert sorted(pictures, key=str) == sorted([[0, {"real": grid}], *drawn], key=str)
    shown = EventAccumulator(str(run / "tensorboard")).Reload()
    in_tensorboard = [[event.step, tf.make_ndarray(event.tensor_proto)] for event in shown.Tensors("judge/loss")]
    np.testing.assert_allclose(in_tensorboard, losses, rtol=1e-6)
    assert Counter(event.step for event in shown.Tensors("samples")) == Counter([0, 2, 4, 6, 8])
    assert "_hparams_/session_start_info" in shown.PluginTagToContent("hparams")


@pytest.mark.long
@pytest.mark.reports
def test_a_group_that_shares_a_run_folder_may_write_all_of_it(tmp_path):
    """Files and folders follow the umask, whichever library makes them; a resume adds some."""
    np.save(tmp_path / "some.npy", np.random.default_rng(0).integers(0, 256, (64, 8, 8), np.uint8))
    flags = ["--data", str(tmp_path / "some.npy"), "--eval-samples", "16", "--eval-every", "4", *EVERY]
    with saved.shared_by_a_group(tmp_path / "run"):
        assert [saved.train(tmp_path / "run", *flags, "--max-steps", last) for last in "48"] == [0, 0]
    found = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"cache", "checkpoints", "report.html", "samples", "tensorboard"} <= found


def test_one_that_fails_is_named_once_and_the_run_goes_to_its_end(tmp_path, capfd):
    assert saved.train(tmp_path / "run", "--logger", "mine:Failing,mine:Lines") == 0
    (event,) = events_of(tmp_path / "run", "lost_logger")
    assert event["text"] == "logger mine:Failing has failed (ValueError: no room); the run continues without it"
    assert capfd.readouterr().err.count("warning: logger mine:Failing has failed") == 1
    assert [each[1] for each in lines(tmp_path / "run" / "mine.jsonl") if each[0] == "scalars"] == [2, 4, 6, 8]


def test_one_that_hangs_keeps_nobody_waiting_for_long_nor_in_silence(tmp_path, monkeypatch, capfd):
    class Hanging(loggers.Logger):
        def scalars(self, step, values):
            time.sleep(1000)

    monkeypatch.setattr(loggers, "SOON", 0.1)
    monkeypatch.setattr(loggers, "PATIENCE", 0.3)
    run = hvdgan.fit("tiny:Tiny", **TINY, run_dir=tmp_path / "run", logger=Hanging())
    said = capfd.readouterr().err
    assert run.is_finished and "hvdgan: waiting for the logger" in said
    assert "has failed (it has not finished within 0 s)" in events_of(tmp_path / "run", "lost_logger")[0]["text"]


def test_one_may_stop_the_run_which_is_saved(tmp_path):
    run = tmp_path / "run"
    assert saved.train(run, "--logger", "mine:Stopper", "--steps", "1000000") == 75
    (end,) = events_of(run, "end")
    assert (end["state"], end["is_saved"]) == ("stopped", True) and "logger mine:Stopper: enough" in end["text"]
    assert saved.steps(run)[-1] < 1_000_000


def test_a_mistake_is_one_line_before_data_are_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("hvdgan.data.domains.open_source", None)
    for name, said in (
        ("wandb", "wandb is not installed for this Python; pip install wandb"),
        ("tensorbord", "expected none, tensorboard, wandb, mlflow, or a class"),
    ):
        assert saved.train(tmp_path / "run", "--logger", name) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"hvdgan: --logger {name}: {said}") and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


class Recorder:
    """An object whose methods record how they are called, and return what was agreed."""

    def __init__(self, calls, **returns):
        self.calls, self.returns, self.config = calls, returns, {}

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append((name, arguments, named))
            return self.returns.get(name)

        return call


TINY = {"image_size": 8, "global_batch_size": 8, "steps": 4, "log_every": 2, "report": "never"}


def twice(tmp_path, name, **settings):
    """Train to step 2, and on to the end."""
    for last in (2, 4):
        hvdgan.fit("tiny:Tiny", **TINY, **settings, max_steps=last, run_dir=tmp_path / "run", logger=name)
    assert not events_of(tmp_path / "run", "lost_logger")


def stand_in(monkeypatch, name, **attributes):
    module = types.ModuleType(name)
    module.__dict__.update(attributes, __spec__=types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, name, module)


def test_wandb_is_local_in_the_run_folder_and_resumes_one_run(tmp_path, monkeypatch):
    calls = []
    stand_in(monkeypatch, "wandb", init=Recorder(calls, init=Recorder(calls)).init, Settings=dict, Image=np.shape)
    for variable in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.setenv(variable, "")  # so that it is undone
        monkeypatch.delenv(variable)
    twice(tmp_path, "wandb")
    first, second = (named for called, _, named in calls if called == "init")
    assert first["name"] == second["name"] and first["resume"] == second["resume"] == "allow"
    assert (first["mode"], first["dir"], first["id"]) == ("offline", str(tmp_path / "run"), second["id"])
    assert json.loads((tmp_path / "run" / "trackers.json").read_text()) == {"wandb": first["id"]}
    logged = [{**named, **arguments[0]} for called, arguments, named in calls if called == "log"]
    assert [each["step"] for each in logged if "judge/loss" in each] == [2, 4]
    assert sorted(each["step"] for each in logged if each.get("samples") == (78, 78, 3)) == [0, 2, 4]
    assert [called for called, _, _ in calls].count("finish") == 2


def test_mlflow_has_a_database_in_the_run_folder_and_resumes_one_run(tmp_path, monkeypatch):
    calls, clients = [], []
    known = types.SimpleNamespace(data=types.SimpleNamespace(params={"steps": "4"}))
    begun = types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))

    def client(tracking_uri):
        clients.append(tracking_uri)
        return Recorder(calls, get_experiment_by_name=None, create_experiment="7", create_run=begun, get_run=known)

    stand_in(monkeypatch, "mlflow", MlflowClient=client)
    stand_in(monkeypatch, "mlflow.entities", Param=lambda *each: each, Metric=lambda *each: each)
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(variable, raising=False)
    twice(tmp_path, "mlflow")
    run = tmp_path / "run"
    assert clients == [f"sqlite:///{run}/mlflow.db"] * 2
    assert [each[1:] for each in calls if each[0] == "create_run"] == [(("7",), {"run_name": "run"})]
    batches = [(arguments, named) for name, arguments, named in calls if name == "log_batch"]
    parameters = [pair for _, named in batches for pair in named.get("params", ())]
    assert ("recipe", "tiny:Tiny") in parameters and "steps" not in dict(parameters)
    metrics = [metric for arguments, _ in batches for metric in (arguments[1:] or [[]])[0]]
    assert [metric[3] for metric in metrics if metric[0] == "judge/loss"] == [2, 4]
    drawn = [named for name, _, named in calls if name == "log_image"]
    assert sorted(each["step"] for each in drawn if each["key"] == "samples") == [0, 2, 4]
