"""The step of every recipe, traced as on a GPU, against the list of kernels that TensorFlow's wheel with CUDA has.

Each operation has a kernel for GPUs with these types, none waits for the GPU in the middle of a step, and no number of
the host's is copied to it there. TensorFlow has kernels for GPUs for int64, while it computes int32 on the host.
"""

import re

import pytest
import tensorflow as tf

import small
import traced
from gpu_graphs import LIST, faults_of
from hvdgan.networks.fast.kernels import NEWEST_TESTED
from hvdgan.recipe import DataSpec, LearningRate, Stage, Update
from launching import ROOT
from tiny import Tiny

SMALL = DataSpec((8, 8, 1), 100)

CASES = {
    "micro-batches, flips, colours": ("dcgan", {"accumulate": 2, "flip": True, "diff_augment": ("color",)}),
    "all augmentations twice differentiable": ("stylegan2", {"diff_augment": ("color", "translation", "cutout")}),
    "crops in micro-batches": ("downscale", {"spec": traced.fields(16), "accumulate": 2, "flip": True}),
    "compiled by XLA, in micro-batches": ("vae_gan", {"jit": True, "accumulate": 2, "flip": True}),
}


def faults(recipe, halves=("float16",), **settings):
    """What a GPU would not compute by itself."""
    steps = traced.steps_of(recipe, **settings)
    return [fault for step in steps for fault in faults_of(step, traced.on_host(step), halves)]


@pytest.mark.parametrize("recipe", small.long_but("calo3d", "completion", "dcgan", "stylegan2"))
def test_each_recipe_in_each_precision(recipe):
    """Traced in float16, which has a loss scale; for the others its operations are looked up with their type."""
    assert faults(recipe, ("float16", "bfloat16", "float32"), precision="mixed_float16") == []


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_options(name):
    recipe, settings = CASES[name]
    assert faults(recipe, **{"precision": "mixed_float16", **settings}) == []


class Waiting(Tiny):
    """Clips, has decays and rates of its own, waits for its metrics, and reads the step and its samples' numbers."""

    def stages(self):
        rate = LearningRate(1e-3, "cosine", warmup_steps=2)
        own = {"learning_rate": rate, "clip_norm": 1.0, "betas": (0.1, 0.2)}
        judge = Update("judge", owns=["discriminator"], loss=self.judge, only_if=lambda means: means["real"] < 1, **own)
        return [Stage("adversarial", 4, [judge, Update("fool", owns=["generator"], loss=self.fool, **own)])]

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        numbers = tf.reduce_mean(tf.cast(batch.index, tf.float32))
        return loss * tf.cast(batch.random.step, tf.float32) + 0.0 * numbers, metrics


def test_rates_decays_clipping_and_updates_that_wait():
    assert faults(Waiting, spec=SMALL, precision="mixed_float16") == []


def test_the_list_is_that_of_the_newest_tensorflow_of_the_tests():
    """A newer pin comes with a list of its own."""
    head = LIST.read_text().partition("\n")[0]
    newest = ".".join(map(str, NEWEST_TESTED["TensorFlow"]))
    pinned = re.search(r"^horovod==([\d.]+)", (ROOT / "launch" / "constraints.txt").read_text(), re.MULTILINE)
    assert f"TensorFlow {newest}." in head and f"horovod-{pinned[1]}.tar.gz" in head
