"""The command hvdgan.inspect, on a run of two steps with a checkpoint of each. Modules: checkpoints.contents"""

import json
import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hvdgan import inspect
from hvdgan.train import main as train
from launching import run as run_process
from messages import refused
from saved import manifest, rewrite

FIRST, SECOND = (f"checkpoints/step-0000000{step}.safetensors" for step in (1, 2))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run's folder."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    words = "--recipe tiny:Tiny --image-size 8 --norm batch --ema-decay 0.5 --global-batch-size 4 --seed 3"
    assert train([*words.split(), "--max-steps", "2", "--checkpoint-every", "1", "--run-dir", str(folder)]) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of it, `run` in the working folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def told(capsys, *arguments, code=0):
    """What a call prints; JSON is parsed."""
    capsys.readouterr()
    assert inspect.main(list(arguments)) == code
    out = capsys.readouterr().out
    return json.loads(out) if "--json" in arguments else out.splitlines()


def test_a_run_lists_its_checkpoints_and_shows_the_newest(run, capsys):
    lines = told(capsys, "run")
    assert lines[:3] == [f"run/{FIRST}: step 1, verified", f"run/{SECOND}: step 2, verified", f"run/{SECOND}"]
    size = (run / SECOND).stat().st_size
    # Dense 8 x 16 and 16 x 64 with biases, and four numbers of BatchNorm for each of 16.
    generator, discriminator = 8 * 16 + 16 + 64 + 16 * 64 + 64, 64 * 16 + 16 + 64 + 16 + 1
    for fact in (
        "  samples seen  8",
        f"  size          {size:,} bytes",
        f"  networks      generator: {generator:,} parameters in 8 tensors",
        f"                discriminator: {discriminator:,} parameters in 8 tensors",
        "  optimizers    generator: 6 momentum, 6 velocity; iteration, learning_rate",
        "  verified      yes: every tensor is what was written",
    ):
        assert fact in lines
    shown = told(capsys, "run", "--json")
    assert [each["step"] for each in shown["checkpoints"]] == [1, 2] and shown["checkpoint"]["verified"] is True
    capsys.readouterr()
    assert inspect.main([f"run/{FIRST}", "--manifest"]) == 0
    assert json.loads(capsys.readouterr().out) == manifest(run, 1)


def test_damaged_lost_and_added_tensors_are_named(run, capsys):
    names = [
        "ema/generator/generator/dense/kernel",
        "networks/generator/generator/dense/bias",
        "networks/painter/kernel",
    ]

    def damage(values, _):
        values[names[0]] += 1
        del values[names[1]]
        values[names[2]] = np.zeros(3, np.float32)

    rewrite(run / SECOND, damage)
    assert inspect.main([f"run/{SECOND}"]) == 1
    shown = capsys.readouterr()
    assert shown.err == f"hvdgan: run/{SECOND} is damaged: {', '.join(names)} differs from what was written\n"
    assert shown.out.splitlines()[-4:] == [
        "  verified      NO: these tensors are not what was written",
        *(f"                {name}" for name in names),
    ]
    facts = told(capsys, "run", "--json", code=1)
    assert facts["checkpoint"]["damaged"] == names and facts["checkpoint"]["verified"] is False


def test_an_older_checkpoint_that_is_cut_or_lacks_its_manifest_is_found_in_the_run(run, capsys):
    (run / FIRST).write_bytes((run / FIRST).read_bytes()[:-50])
    lines = told(capsys, "run", code=1)
    assert lines[:2] == [f"run/{FIRST}: step 1, DAMAGED", f"run/{SECOND}: step 2, verified"]
    assert inspect.main([f"run/{FIRST}"]) == 1
    shown = capsys.readouterr()
    assert f"run/{FIRST} cannot be read" in shown.err and shown.err.count("\n") == 1
    assert "  samples seen  4" in shown.out.splitlines()
    save_file({}, run / FIRST)
    assert told(capsys, "run", code=1)[0] == f"run/{FIRST}: no step, DAMAGED"


@pytest.mark.parametrize("arguments", refused("inspect"))
def test_what_is_no_checkpoint_is_one_line(run, messages, arguments):
    (run.parent / "photos").mkdir()
    shutil.copy(run / SECOND, "odd.safetensors")
    rewrite(run.parent / "odd.safetensors", lambda _, manifest: manifest.update(tensors={"networks/a/b": 3}))
    save_file({}, run / FIRST)
    (run / SECOND).write_text("an error page of a web server")
    messages.refuses("inspect", inspect.main, arguments, folder=run)


def test_a_difference_counts_what_is_equal_and_measures_the_rest(run, capsys):
    shutil.copy(run / FIRST, "other.safetensors")

    def differ(values, _):
        kernel = values["networks/generator/generator/dense/kernel"]
        kernel[0, 0] += 8 * np.abs(kernel).max()
        values["networks/generator/generator/dense/bias"] = np.float32([1, np.nan])
        values["networks/generator/generator/dense_1/bias"][:] = np.nan
        values["networks/painter/kernel"] = values.pop("networks/discriminator/discriminator/dense_2/bias")

    rewrite(run.parent / "other.safetensors", differ)
    tensors = len(load_file(run / FIRST))
    facts = told(capsys, f"run/{FIRST}", "--diff", "other.safetensors", "--json")
    assert facts["identical"] == tensors - 4
    assert facts["only_in_first"] == ["networks/discriminator/discriminator/dense_2/bias"]
    assert facts["only_in_second"] == ["networks/painter/kernel"]
    assert [entry["name"] for entry in facts["unlike"]] == ["networks/generator/generator/dense/bias"]
    changed = {entry["name"]: entry for entry in facts["changed"]}
    assert changed["networks/generator/generator/dense_1/bias"]["max_abs"] is None
    assert changed["networks/generator/generator/dense/kernel"]["relative"] == pytest.approx(8)
    assert f"identical {tensors - 4} tensors" in told(capsys, f"run/{FIRST}", "--diff", "other.safetensors")


def test_it_needs_neither_tensorflow_nor_the_recipe(run):
    for name in ("tensorflow", "keras", "horovod", "tiny"):
        (run.parent / f"{name}.py").write_text(f"raise RuntimeError('{name} is imported')\n")
    done = run_process([sys.executable, "-m", "hvdgan.inspect", "run"], run.parent)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "verified      yes" in done.stdout
