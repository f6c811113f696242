"""Evaluations in training: held-out images, each once, with the same draws; errors of them.
Modules: evaluation.held_out, training.loop"""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from building import tiny_run
from hvdgan.data.pictures import PictureFiles
from hvdgan.evaluation.held_out import Evaluator
from hvdgan.train import main
from measured import Bright, Measured
from saved import latest, records


def evaluator_of(made):
    return Evaluator(made.recipe, made.state.sampling_nets, made.evaluated, made.ranks, made.config)


def test_every_held_out_image_counts_once_and_the_averages_are_evaluated():
    """100 images in batches of 16: the last is filled up, and the filling must not count."""
    made = tiny_run(Measured)
    evaluator = made.evaluator
    assert len(made.held_out) == 100 and len(made.source) == 1697
    values, images = evaluator(), made.held_out.fetch_batch(np.arange(100))["images"] / 127.5 - 1
    assert values["eval/brightness"] == pytest.approx(images.mean(), rel=1e-5)
    assert values["eval/label"] == pytest.approx(made.held_out.labels.mean())
    assert evaluator_of(made)() == values
    for variable in made.state.networks["generator"].trainable_variables:
        variable.assign(tf.ones_like(variable.value))
    assert evaluator() == values
    for average in made.state.ema["generator"]:
        average.assign(tf.ones_like(average.value))
    assert evaluator()["eval/made"] != values["eval/made"]


def write_noise(folder, count):
    folder.mkdir()
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 255, (12, 12, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return folder


def of_noise(data, **settings):
    return tiny_run(Bright, data=str(data), channels=3, **{"holdout": 0.5, "global_batch_size": 4, **settings})


def test_a_cap_takes_the_same_images_whatever_the_seed_and_no_others_are_decoded(tmp_path, monkeypatch):
    folder = write_noise(tmp_path / "images", 60)
    runs = [of_noise(folder, eval_held_out=7, seed=seed, global_batch_size=size) for seed, size in ((0, 4), (5, 10))]
    names = [{made.evaluated.key(index) for index in range(len(made.evaluated))} for made in runs]
    assert names[0] == names[1] and len(names[0]) == 7 < len(runs[0].held_out)
    more = of_noise(folder, eval_held_out=12).evaluated
    assert names[0] < {more.key(index) for index in range(12)}
    fetched, fetch = [], PictureFiles.read
    monkeypatch.setattr(PictureFiles, "read", lambda self, some: fetched.extend(some.tolist()) or fetch(self, some))
    evaluator_of(runs[0])()
    assert len(fetched) == len(set(fetched)) == 7


def break_held_out(folder):
    """A folder of 40 images, of which one that is held out cannot be decoded; returns its name and the flags."""
    data = write_noise(folder / "data", 40)
    held_out = tiny_run(Bright, data=str(data), holdout=0.2).held_out
    name = held_out.key(0).decode()
    (data / name).write_bytes((data / name).read_bytes()[:100])
    flags = f"--recipe measured:Bright --image-size 8 --global-batch-size 4 --data {data} --holdout 0.2 --report never"
    return name, [*flags.split(), "--eval-every", "2", "--log-every", "1", "--run-dir", str(folder / "run")]


def test_broken_held_out_images_are_reported_as_others_are_and_too_many_end_the_run(tmp_path, capsys):
    name, flags = break_held_out(tmp_path)
    assert main([*flags, "--steps", "8", "--checkpoint-every", "2"]) == 1
    assert "1 of 40 samples cannot be read" in capsys.readouterr().err
    assert latest(tmp_path / "run") == 2  # what was due is saved
    flags[-1] = str(tmp_path / "other")
    assert main([*flags, "--steps", "5", "--max-bad-fraction", "0.1"]) == 0
    assert (tmp_path / "other" / "log.txt").read_text().count(f"skipped {name}: ") == 1
    logged = records(tmp_path / "other")
    assert [record["bad_files"] for record in logged if "bad_files" in record] == [0, 0, 1, 1, 1]
