"""Resuming with other settings than before, and starting from a checkpoint of another run.

Modules: training.state.
"""

import json

import pytest
from safetensors.numpy import load_file

from hvdgan.train import main

TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8".split()
LAST = "checkpoints/step-00000004"


def train(run_dir, *arguments):
    return main([*TINY, "--run-dir", str(run_dir), *arguments])


def kinds(run_dir, step):
    return {name.split("/")[0] for name in load_file(run_dir / f"checkpoints/step-{step:08d}/state.safetensors")}


@pytest.mark.parametrize(
    ("setting", "without", "with_them", "kind", "absent", "dropped"),
    [
        ("precision", "float32", "mixed_float16", "loss_scales", "and begin at their first value", "loss scales of"),
        ("ema_decay", "0", "0.9", "ema", "and begin at the weights", "averages of"),
    ],
)
def test_a_setting_that_brings_or_takes_tensors_can_be_allowed(
    tmp_path, capsys, setting, without, with_them, kind, absent, dropped
):
    flag, allowed = f"--{setting.replace('_', '-')}", ("--allow-changed", setting)
    assert train(tmp_path, "--steps", "2", flag, without) == 0
    assert train(tmp_path, "--steps", "4", flag, with_them) == 2
    assert f"was made with {setting} " in capsys.readouterr().err
    assert train(tmp_path, "--steps", "4", flag, with_them, "--allow-changed", "setings") == 2
    assert "there is no setting setings" in capsys.readouterr().err
    assert train(tmp_path, "--steps", "4", flag, with_them, *allowed) == 0, capsys.readouterr().err
    assert train(tmp_path, "--steps", "6", flag, without, *allowed) == 0, capsys.readouterr().err
    assert [kind in kinds(tmp_path, step) for step in (2, 4, 6)] == [False, True, False]
    first, second = [line for line in (tmp_path / "log.txt").read_text().splitlines() if f"the {dropped}" in line]
    assert "step-00000002" in first and absent in first
    assert "step-00000004" in second and second.endswith("are dropped")


def test_a_checkpoint_past_the_end_of_the_stages_is_refused_and_leaves_nothing(tmp_path, capsys):
    assert train(tmp_path / "a", "--steps", "4") == 0
    capsys.readouterr()
    assert train(tmp_path / "b", "--steps", "2", "--resume", str(tmp_path / "a" / LAST)) == 2
    error = capsys.readouterr().err
    assert f"--resume {tmp_path / 'a' / LAST}: it is of step 4, and this run ends at step 2; give its" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "b").exists()


def test_a_checkpoint_in_a_new_folder_has_its_settings_next_to_it_also_where_nothing_is_to_do(tmp_path, capsys):
    assert train(tmp_path / "a", "--steps", "4") == 0
    assert train(tmp_path / "b", "--steps", "8", "--max-steps", "3", "--resume", str(tmp_path / "a" / LAST)) == 0
    assert "nothing to do: step 4" in capsys.readouterr().err
    assert (tmp_path / "b" / LAST / "manifest.json").is_file()
    settings = json.loads((tmp_path / "b" / "config.json").read_text())
    assert settings["steps"] == 8 and settings["run_dir"] == str(tmp_path / "b")
    assert train(tmp_path / "b", "--steps", "6") == 0
    assert "resuming at step 4 of 6" in capsys.readouterr().err
