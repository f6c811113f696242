"""The same command resumes its run, also with other settings or another checkpoint; another run's folder is refused.
Modules: training.run_folder"""

import json
import os
import shutil
import signal

import pytest

import launching
from hvdgan.train import main
from hvdgan.training.step import StageStep
from saved import state, steps, tensors, train

LAST = "checkpoints/step-00000004.safetensors"


@pytest.fixture
def begun(tmp_path):
    """A run of four steps in tmp_path / a."""
    assert train(tmp_path / "a", "--steps", "4") == 0
    return tmp_path / "a"


@pytest.fixture
def one_step(monkeypatch):
    """Trains to step 7, and is asked to stop in each step."""
    step = StageStep.__call__

    def signalled(self, *arguments):
        os.kill(os.getpid(), signal.SIGUSR2)
        return step(self, *arguments)

    def run(run_dir, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(StageStep, "__call__", signalled)
            patch.setattr("hvdgan.training.stopping.CHECK_SECONDS", 0.0)
            return train(run_dir, "--steps", "7", *arguments)

    return run


def test_the_same_command_with_a_checkpoint_resumes_in_the_folder_that_it_began(begun, tmp_path, one_step):
    again = ("--resume", str(begun / LAST), "--keep", "1")
    assert train(tmp_path / "whole", "--steps", "7", *again) == 0
    assert one_step(tmp_path / "b", *again) == 75
    (begun / LAST).unlink()  # the run that it is from continues, and no longer keeps it
    assert one_step(tmp_path / "b", *again) == 75
    assert one_step(tmp_path / "b", *again) == 0
    assert state(tmp_path / "b", 7) == state(tmp_path / "whole", 7)


def test_a_run_that_began_elsewhere_is_refused(begun, tmp_path, capsys):
    assert train(tmp_path / "b", "--steps", "6", "--resume", str(begun / LAST)) == 0
    assert train(tmp_path / "other", "--steps", "4") == 0
    capsys.readouterr()
    other = tmp_path / "other" / LAST
    assert train(tmp_path / "b", "--steps", "8", "--resume", str(other)) == 2
    assert f"--resume {other}: {tmp_path / 'b'} holds a run that did not begin there" in capsys.readouterr().err
    assert train(begun, "--steps", "8") == 0
    assert train(begun, "--steps", "8", "--resume", str(begun / LAST)) == 2  # nobody began there: steps would be lost


@pytest.mark.parametrize(
    ("job", "restarts", "code"),
    [("5", "1", 0), ("5", "0", 2), ("6", "1", 2)],
    ids=["requeued", "not yet requeued", "another job"],
)
def test_never_refuses_a_folder_but_for_the_requeued_job_that_began_it(
    tmp_path, monkeypatch, capsys, job, restarts, code
):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    assert train(tmp_path, "--steps", "4", "--max-steps", "2", "--resume", "never") == 0
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    capsys.readouterr()
    assert train(tmp_path, "--steps", "4", "--resume", "never") == code
    said = "resuming at step 2 of 4" if code == 0 else f"--resume never: {tmp_path} holds a run already"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "without", "with_them", "kind", "dropped"),
    [
        pytest.param("precision", "float32", "mixed_float16", "loss_scales", "loss scales of", marks=pytest.mark.long),
        ("ema_decay", "0", "0.9", "ema", "averages of"),
    ],
)
def test_a_setting_that_brings_or_takes_tensors_can_be_allowed(
    tmp_path, capsys, setting, without, with_them, kind, dropped
):
    flag, allowed = f"--{setting.replace('_', '-')}", ("--allow-changed", setting)
    assert train(tmp_path, "--steps", "2", flag, without) == 0
    assert train(tmp_path, "--steps", "4", flag, with_them) == 2
    assert f"was made with {setting} " in capsys.readouterr().err
    assert train(tmp_path, "--steps", "4", flag, with_them, "--allow-changed", "setings") == 2
    assert "there is no setting setings" in capsys.readouterr().err
    assert train(tmp_path, "--steps", "4", flag, with_them, *allowed) == 0, capsys.readouterr().err
    assert train(tmp_path, "--steps", "6", flag, without, *allowed) == 0, capsys.readouterr().err
    kinds = [{name.split("/")[0] for name in tensors(tmp_path, step)} for step in (2, 4, 6)]
    assert [kind in each for each in kinds] == [False, True, False]
    first, second = [line for line in (tmp_path / "log.txt").read_text().splitlines() if f"the {dropped}" in line]
    assert "step-00000002" in first and first.endswith("are not there, and begin as in a new run")
    assert "step-00000004" in second and second.endswith("are dropped")


@pytest.mark.long
def test_a_stage_that_has_ended_early_stays_so_on_every_rank(tmp_path):
    flags = "--recipe stateful:Ending --image-size 8 --global-batch-size 4 --run-dir run".split()
    assert main([*flags[:-1], str(tmp_path / "run"), "--max-steps", "7"]) == 0
    launching.train(tmp_path, *flags, ranks=2)
    assert "resuming at step 7 of 9" in (tmp_path / "run" / "log.txt").read_text() and steps(tmp_path / "run")[-1] == 9


def test_a_job_that_was_requeued_three_times_without_a_checkpoint_ends(begun, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    path = begun / "events.jsonl"
    (start,) = (json.loads(line) for line in path.read_text().splitlines() if '"start"' in line)
    with open(path, "a") as events:
        for step in (0, 4, 4):
            print(json.dumps({**start, "step": step}), file=events)
    copy = shutil.copytree(begun, begun.with_name("b"))
    assert train(copy, "--steps", "5") == 0  # began at step 4 only twice
    with open(path, "a") as events:
        print(json.dumps({**start, "step": 4}), file=events)
    assert train(begun, "--steps", "5") == 1
    assert "began at step 4 the last 3 times, so no checkpoint was written since" in capsys.readouterr().err
