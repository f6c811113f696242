"""Evaluations read ahead with all threads, and use as many held-out images as --eval-images says."""

import json
import math
import threading

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from building import tiny_run
from hvdgan.cli.config import PipelineConfig
from hvdgan.data.picture_arrays import ResizedStore
from hvdgan.data.pictures import PictureFiles
from hvdgan.evaluation.held_out import Evaluator
from hvdgan.train import main
from packed import prepare
from tiny import Tiny


class Bright(Tiny):
    def evaluate(self, nets, batch):
        brightness = tf.reduce_mean(batch.images, axis=(1, 2, 3))
        return {"brightness": brightness, "draw": batch.latents[:, 0] * brightness}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """60 images of noise."""
    folder = tmp_path_factory.mktemp("data") / "images"
    folder.mkdir()
    for number in range(60):
        pixels = np.random.default_rng(number).integers(0, 255, (12, 12, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return folder


@pytest.fixture(scope="module")
def shards(folder):
    return prepare(folder, folder.parent / "shards")


def run_on(data, threads=1, **settings):
    pipeline = PipelineConfig(threads=threads)
    settings = {"holdout": 0.5, "global_batch_size": 4, **settings}
    return tiny_run(Bright, data=str(data), channels=3, pipeline=pipeline, **settings)


def evaluator_of(run):
    return Evaluator(run.recipe, run.state.sampling_nets, run.held_out, run.ranks, run.config)


def one_by_one(run):
    """What evaluations gave when the main thread read an image at a time."""
    evaluator, sums, source = evaluator_of(run), {}, run.held_out
    for number in range(math.ceil(len(source) / 4)):
        places = np.arange(4 * number, 4 * number + 4)
        images, there = source.blank(4), places < len(source)
        for place in np.flatnonzero(there):
            images[place] = source.fetch(4 * number + int(place))
        values = evaluator.measure(tf.constant(-2 - number, tf.int64), {"images": tf.constant(images)})
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + float(np.sum(value.numpy(), where=there, dtype=np.float64))
    return {name: total / len(source) for name, total in sums.items()}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_threads_change_no_bit(folder, shards, kind, threads):
    run = run_on({"folder": folder, "shards": shards}[kind], threads)
    expected = one_by_one(run)
    assert evaluator_of(run)() == expected


def test_two_threads_decode_at_the_same_time(folder, monkeypatch):
    """Each waits at the first image for another that decodes too."""
    meeting, fetch = threading.Barrier(2), PictureFiles.read
    waited = threading.local()

    def together(self, indices):
        if not hasattr(waited, "once"):
            waited.once = True
            meeting.wait(60)
        return fetch(self, indices)

    run = run_on(folder, threads=2)
    evaluator = evaluator_of(run)
    monkeypatch.setattr(PictureFiles, "read", together)
    assert evaluator()


def test_images_are_decoded_while_others_are_measured(folder, monkeypatch):
    run = run_on(folder)
    evaluator, fetched, enough = evaluator_of(run), [], threading.Event()
    fetch, function = PictureFiles.read, evaluator.measure

    def counting(self, indices):
        fetched.extend(indices.tolist())
        if len(fetched) >= 5:  # the first of the next batch
            enough.set()
        return fetch(self, indices)

    def measure(step, data):
        assert enough.wait(60)
        return function(step, data)

    monkeypatch.setattr(PictureFiles, "read", counting)
    evaluator.measure = measure
    assert evaluator() and len(fetched) == len(set(fetched)) == len(run.held_out)


def test_packed_pictures_are_read_together(shards, monkeypatch):
    run = run_on(shards)
    calls, fetch_batch = [], ResizedStore.read

    def counting(self, indices):
        calls.append(len(indices))
        return fetch_batch(self, indices)

    monkeypatch.setattr(ResizedStore, "read", counting)
    assert evaluator_of(run)()
    assert sum(calls) == len(run.held_out) and len(calls) == math.ceil(len(run.held_out) / 4)


def test_a_cap_takes_the_same_images_whatever_the_seed(folder):
    runs = [run_on(folder, eval_images=7, seed=seed, global_batch_size=size) for seed, size in ((0, 4), (5, 10))]
    names = [{run.evaluated.key(index) for index in range(len(run.evaluated))} for run in runs]
    assert names[0] == names[1] and len(names[0]) == 7
    all_names = {runs[0].held_out.key(index) for index in range(len(runs[0].held_out))}
    assert names[0] < all_names and len(all_names) > 20
    more = run_on(folder, eval_images=12).evaluated
    assert names[0] < {more.key(index) for index in range(12)}
    assert len(runs[0].source) + len(all_names) == 60
    whole = run_on(folder, eval_images=0)
    assert len(whole.evaluated) == len(whole.held_out) == len(run_on(folder).evaluated)


FLAGS = "--recipe test_eval_images:Bright --image-size 8 --global-batch-size 4 --holdout 0.5 --eval-every 2"


def test_a_run_says_how_many_it_looks_at_and_decodes_no_more(folder, tmp_path, monkeypatch):
    fetched, fetch = [], PictureFiles.read

    def counting(self, indices):
        fetched.extend(indices.tolist())
        return fetch(self, indices)

    run = run_on(folder)
    held_out = {int(index) for index in run.held_out.indices}
    monkeypatch.setattr(PictureFiles, "read", counting)
    flags = [*FLAGS.split(), "--data", str(folder), "--run-dir", str(tmp_path / "run"), "--eval-images", "6"]
    assert main([*flags, "--steps", "4"]) == 0
    looked_at = [index for index in fetched if index in held_out]
    assert len(looked_at) == 12 and len(set(looked_at)) == 6
    log = (tmp_path / "run" / "log.txt").read_text()
    assert f" {len(held_out):,} held out" in log
    assert f": 6 of {len(held_out):,} held-out images (--eval-images)" in log


def test_another_cap_at_resume_is_reported(folder, tmp_path):
    flags = [*FLAGS.split(), "--data", str(folder), "--run-dir", str(tmp_path), "--best-metric", "eval/brightness"]
    assert main([*flags, "--steps", "2"]) == 0
    best = json.loads((tmp_path / "checkpoints" / "step-00000002" / "manifest.json").read_text())["progress"]["best"]
    assert main([*flags, "--steps", "4", "--eval-images", "5"]) == 0
    log = (tmp_path / "log.txt").read_text()
    assert log.count("warning: evaluations look at 5 held-out images, and looked at ") == 1
    later = json.loads((tmp_path / "checkpoints" / "step-00000004" / "manifest.json").read_text())["progress"]["best"]
    assert later["value"] <= best["value"]
    assert main([*flags, "--steps", "6", "--eval-images", "5"]) == 0
    assert (tmp_path / "log.txt").read_text().count("warning: evaluations") == 1
