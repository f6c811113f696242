"""Losses that are no means over samples are found by their gradients. Modules: training.means"""

import json
import runpy
import sys

import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.recipes.dcgan import DCGAN
from hvdgan.runs.events import Caution
from hvdgan.train import main
from hvdgan.training import loop
from hvdgan.training.means import MeanCheck
from launching import ROOT
from small import RECIPES, data_flags, flags, write_showers
from stateful import Pooled
from tiny import Counting, Tiny, TinyOptions
from whole_losses import Whole, WholeOptions


class Sum(Tiny):
    """The discriminator's loss is a sum over the samples."""

    def judge(self, nets, batch):
        return tf.reduce_sum(tf.nn.softplus(-nets.discriminator(batch.images))), {}


class Late(Tiny):
    """It is a mean until step 50."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        deviation = tf.reduce_mean(tf.math.reduce_std(nets.discriminator(batch.images), 0))
        return loss - tf.where(batch.random.step < 50, 0.0, 0.1) * deviation, metrics


class Deviation(Tiny):
    """It never is."""

    def judge(self, nets, batch):
        return -tf.reduce_mean(tf.math.reduce_std(nets.discriminator(batch.images), 0)), {}


def found(recipe, options=None, number=0, **settings):
    run = tiny_run(recipe, options, **settings)
    return {*MeanCheck(run, stage_step(run), data_of(run)).found(number)}


FURTHER = [pytest.param(kind, marks=pytest.mark.long) for kind in ("moments", "mmd", "entropy", "deviation")]
KINDS = ["relativistic", "root", "contrast", *FURTHER]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_that_are_no_means_are_found_and_those_by_batch_mean_are_not(kind):
    assert "judge" in found(Whole, WholeOptions(kind=kind, whole=False))
    assert found(Whole, WholeOptions(kind=kind)) == set()


@pytest.mark.long
@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_rounding_is_no_difference(precision):
    """In a network whose gradients half precision rounds by a tenth of their size."""
    assert found(DCGAN, DCGAN.Options(nf=32), precision=precision, image_size=32) == set()
    assert found(Sum, precision=precision) == {"judge"}
    assert "judge" in found(Whole, WholeOptions(kind="root", whole=False), precision=precision)


@pytest.mark.long
def test_the_step_is_the_one_that_is_asked_for():
    assert (found(Late, number=49), found(Late, number=50)) == (set(), {"judge"})


@pytest.mark.parametrize("recipe", [Tiny, *(pytest.param(each, marks=pytest.mark.long) for each in (Pooled, Counting))])
def test_nothing_of_the_run_changes(recipe):
    """BatchNorm's statistics, and what layers keep in training, have the same bits; BatchNorm is no alarm."""
    runs = [tiny_run(recipe, TinyOptions(norm="batch")) for _ in range(2)]
    check = MeanCheck(runs[0], stage_step(runs[0]), data_of(runs[0]))
    for number in range(3):
        assert check.found(number) == {}
        for run in runs:
            stage_step(run)(number, number, data_of(run, number))
    one, other = map(values_of, runs)
    assert {name: value.tobytes() for name, value in one.items()} == {k: v.tobytes() for k, v in other.items()}


FLAGS = "--data digits --image-size 8 --global-batch-size 8 --steps 1000 --sample-every 0 --checkpoint-every 60".split()


def test_a_run_says_so_once_at_its_first_checkpoint_if_it_is_long_and_that_is_not_allowed(tmp_path, monkeypatch):
    """A run that ends after 70 steps is long here if 70 are."""
    found = []
    for name, more, short in (("run", [], 70), ("allowed", ["--allow", "batch-dependent-loss"], 70), ("brief", [], 71)):
        monkeypatch.setattr(loop, "_SHORT", short)
        words = ["--recipe", "test_means:Late", *FLAGS, "--max-steps", "70", "--run-dir", str(tmp_path / name), *more]
        assert main(words) == 0
        events = map(json.loads, (tmp_path / name / "events.jsonl").read_text().splitlines())
        found.append([each["text"] for each in events if each["event"] == Caution.kind])
    assert [len(some) for some in found] == [1, 0, 0] and "update judge: the loss is no mean" in found[0][0]


def test_a_dry_run_says_so(capsys):
    assert main(["--recipe", "test_means:Deviation", *FLAGS, "--dry-run", "--as-if-ranks", "2"]) == 0
    assert capsys.readouterr().out.count("the loss is no mean over samples") == 1


EXAMPLES = {
    "my_gan:MyGAN": "--image-size 8",
    "my_conv_gan:MyConvGAN": "--image-size 8 --width 2",
    "my_translator:MyTranslator": "--image-size 8 --width 2",
    "my_table_gan:MyTableGAN": "--data data.npy --width 2 --pack 2 --values "
    + ";".join(f"{number}=none" for number in range(7)),
    "my_audio_gan:MyAudioGAN": "--data data.npy --axes WC --width 2",
    **{f"my_losses:{name}": "--image-size 8" for name in ("MeanTeacher", "BYOL", "Codebook", "LearntWeights")},
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*RECIPES, *EXAMPLES])
def test_no_recipe_of_hvdgan_and_no_example_is_an_alarm(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if name in EXAMPLES:
        monkeypatch.syspath_prepend(str(ROOT / "examples"))
        words = EXAMPLES[name].split()
        if "data.npy" in words:
            monkeypatch.setattr(sys, "argv", [name, "data.npy"])
            runpy.run_module(name.partition(":")[0], run_name="__main__")
    else:
        write_showers(tmp_path / "showers.npz")
        words = [*data_flags(name, tmp_path), *flags(name)]
    assert main(["--recipe", name, *words, "--global-batch-size", "16", "--dry-run", "--as-if-ranks", "2"]) == 0
    assert "no mean over samples" not in capsys.readouterr().out
