"""Evaluations of held-out images.

Modules: evaluation.held_out.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from building import tiny_run
from hvdgan.cli.errors import RunError, UserError
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluate import main as evaluate
from hvdgan.evaluation.held_out import Evaluator
from hvdgan.train import main
from measured import Bright, Measured

TINY = "--recipe measured:Measured --image-size 8 --global-batch-size 16 --steps 4".split()


def test_every_held_out_image_counts_once():
    """90 images in batches of 16: the last is filled up, and the filling must not count."""
    run = tiny_run(Measured)
    assert len(run.held_out) == 100 and len(run.source) == 1697
    values = Evaluator(run.recipe, run.state.sampling_nets, run.held_out, run.ranks, run.config)()
    images = run.held_out.fetch_batch(np.arange(100)) / 127.5 - 1
    assert values["eval/brightness"] == pytest.approx(images.mean(), rel=1e-5)
    assert values["eval/label"] == pytest.approx(run.held_out.labels.mean())
    again = Evaluator(run.recipe, run.state.sampling_nets, run.held_out, run.ranks, run.config)()
    assert values == again


def test_a_broken_image_is_left_out():
    run = tiny_run(Measured)
    whole = run.held_out.fetch_batch

    def fetch(index):
        if index == 7:
            from hvdgan.data import BadImage

            raise BadImage("7", "broken")
        return whole(np.array([index]))[0]

    run.held_out.fetch = fetch
    run.held_out.fetch_batch = lambda indices: np.stack([fetch(index) for index in indices])
    values = Evaluator(run.recipe, run.state.sampling_nets, run.held_out, run.ranks, run.config)()
    assert values["eval/label"] == pytest.approx(np.delete(run.held_out.labels, 7).mean())


def test_the_averages_are_what_is_evaluated():
    run = tiny_run(Measured)
    evaluator = Evaluator(run.recipe, run.state.sampling_nets, run.held_out, run.ranks, run.config)
    before = evaluator()["eval/made"]
    for variable in run.state.networks["generator"].trainable_variables:
        variable.assign(tf.ones_like(variable.value))
    assert evaluator()["eval/made"] == before
    for average in run.state.ema["generator"]:
        average.assign(tf.ones_like(average.value))
    assert evaluator()["eval/made"] != before


def test_a_run_writes_them_when_they_are_due(tmp_path):
    assert main([*TINY, "--eval-every", "2", "--log-every", "4", "--run-dir", str(tmp_path)]) == 0
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    evaluated = [record for record in records if "eval/brightness" in record]
    assert [record["step"] for record in evaluated] == [2, 4]
    assert evaluated[0]["eval/latent"] == evaluated[1]["eval/latent"]
    assert "held out: eval/brightness" in (tmp_path / "log.txt").read_text()


def test_a_metric_that_has_the_name_of_a_distance_is_refused(tmp_path, capsys):
    """At the start of a run, or where the command that comes afterwards would measure both."""
    flags = ["--recipe", "measured:Spectral", *TINY[2:], "--run-dir", str(tmp_path)]
    said = "evaluate() returns spectrum, and a distance has that name; name it otherwise"
    assert main([*flags, "--eval-samples", "20"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)
    assert main(flags) == 0
    assert evaluate([str(tmp_path), "--num", "20"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("hvdgan: recipe Spectral (") and line.endswith(said)
    assert not (tmp_path / "evaluation.jsonl").exists()


def test_samples_and_evaluations_are_traced_once(tmp_path, monkeypatch):
    traced = []

    def counting(method):
        plain = getattr(Measured, method)
        return lambda *arguments: traced.append(method) or plain(*arguments)

    for method in ("sample", "evaluate"):
        monkeypatch.setattr(Measured, method, counting(method))
    assert main([*TINY, "--eval-every", "1", "--sample-every", "1", "--run-dir", str(tmp_path)]) == 0
    assert sorted(traced) == ["evaluate", "sample"]


def break_held_out(folder, how_many=None):
    """A folder of 40 images, of which some that are held out cannot be decoded; returns their names and the flags."""
    data = folder / "data"
    data.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (12, 12, 3), np.uint8)
    for number in range(40):
        Image.fromarray(pixels).save(data / f"{number}.png")
    held_out = tiny_run(Bright, data=str(data), holdout=0.2).held_out
    names = [held_out.key(index).decode() for index in range(len(held_out))][:how_many]
    for name in names:
        (data / name).write_bytes((data / name).read_bytes()[:100])
    flags = f"--recipe measured:Bright --image-size 8 --global-batch-size 4 --data {data} --holdout 0.2"
    return names, [*flags.split(), "--eval-every", "2", "--log-every", "1", "--run-dir", str(folder / "run")]


def test_broken_held_out_images_are_reported_as_others_are(tmp_path):
    (name,), flags = break_held_out(tmp_path, how_many=1)
    assert main([*flags, "--steps", "5", "--max-bad-fraction", "0.1"]) == 0
    assert (tmp_path / "run" / "log.txt").read_text().count(f"skipped {name}: ") == 1
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["bad_files"] for record in records if "bad_files" in record] == [0, 0, 1, 1, 1]


def test_too_many_of_them_end_the_run_and_what_is_due_is_saved_first(tmp_path, capsys):
    _, flags = break_held_out(tmp_path, how_many=1)
    assert main([*flags, "--steps", "8", "--checkpoint-every", "2"]) == 1
    assert "1 of 40 images cannot be read" in capsys.readouterr().err
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text() == "step-00000002\n"


def test_without_one_that_can_be_read_there_are_no_metrics(tmp_path, capsys):
    names, flags = break_held_out(tmp_path)
    best = ["--best-metric", "eval/brightness", "--checkpoint-every", "2"]
    assert main([*flags, *best, "--steps", "8", "--max-bad-fraction", "1"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"none of the {len(names)} images held out can be read; the first: {names[0]}: " in error
    (newest,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    assert newest.name == "step-00000002" and json.loads((newest / "manifest.json").read_text())["best"]["step"] is None


def test_data_that_is_not_what_it_was_is_an_error_of_all_ranks():
    run, told = tiny_run(Measured), []

    def changed(indices):
        raise RunError("the file of this rank")

    class OneOfTwo(Ranks):
        def gather(self, value, name):
            told.append(value)
            return [[None, ["the file of another", RunError.exit_code]], value]

    run.held_out.fetch_batch = changed
    with pytest.raises(RunError, match="the file of another"):
        Evaluator(run.recipe, run.state.sampling_nets, run.held_out, OneOfTwo(size=2), run.config)()
    assert told == [[None, ["the file of this rank", RunError.exit_code]]]


def few_images(folder):
    """Too few for one of them to be held out by default."""
    np.save(folder / "few.npy", np.stack([np.full((8, 8), number, np.uint8) for number in range(3)]))
    return folder / "few.npy"


def test_how_much_is_held_out_can_be_said_and_must_make_sense(tmp_path):
    assert tiny_run(Measured, holdout=0.0).held_out is None
    assert len(tiny_run(Measured, holdout=0.5).held_out) > 800
    assert tiny_run().held_out is None
    few = tiny_run(Measured, data=str(few_images(tmp_path)))
    assert few.held_out is None and len(few.source) == 3
    with pytest.raises(UserError, match="--holdout 0.1: the recipe has no evaluate"):
        tiny_run(holdout=0.1)
