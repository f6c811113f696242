"""The step of every recipe, traced as on a GPU, against the list of kernels that TensorFlow's wheel with CUDA has.

Each operation has a kernel for GPUs with these types, none waits for the GPU in the middle of a step, and no number of
the host's is copied to it there. TensorFlow has kernels for GPUs for int64, while it computes int32 on the host.
"""

import re
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import small
from gpu_graphs import LIST, faults_of
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks import cpu_or_gpu
from hvdgan.networks.kernels import NEWEST_TESTED
from hvdgan.recipe import DataSpec, Schedule, Stage, Update
from hvdgan.settings.config import Config
from hvdgan.training.build import make_trainable
from hvdgan.values.sample_values import Layout, SampleValues
from hvdgan.values.transforms import Range, Standard
from hvdgan.values.value_map import ValueMap
from launching import ROOT
from tiny import Tiny

BATCH = 4
SMALL = DataSpec((8, 8, 1), 100)
CROPPED = DataSpec(
    (16, 16, 1),
    100,
    input_shape=(4, 4, 3),
    constants_shape=(16, 16, 2),
    values=SampleValues(
        ValueMap(((Standard((4.0,), (3.0,)),),), ("0",)), ValueMap(((Range(-9.0, 9.0),),), ("0", "1", "2"))
    ),
    layout=Layout((32, 32, 1), (8, 8, 3), (16, 16)),
    constants=np.zeros((32, 32, 2), np.float32),
)
"""fields of 32 x 32 pixels with inputs of 8 x 8 and two constant fields, for the recipe downscale"""
CASES = {
    "micro-batches, flips, colours": ("dcgan", {"accumulate": 2, "flip": True, "diff_augment": ("color",)}),
    "all augmentations twice differentiable": ("stylegan2", {"diff_augment": ("color", "translation", "cutout")}),
    "crops in micro-batches": ("downscale", {"spec": CROPPED, "accumulate": 2, "flip": True}),
    "three networks in micro-batches": ("vae_gan", {"accumulate": 2, "flip": True}),
}


def steps_of(recipe, spec=None, **settings):
    """The step of each stage, with all its updates, traced as on a GPU.

    The name of one of hvdgan's recipes gets its small options and data that suit it.
    """
    name = recipe if isinstance(recipe, str) else "own"
    spec = spec or small.spec(name)
    kind, options = small.small(recipe) if isinstance(recipe, str) else (recipe, recipe.Options())
    config = Config(recipe=name, global_batch_size=BATCH, **settings)
    number = tf.TensorSpec((), tf.int64)
    with cpu_or_gpu.computing_as(cpu_or_gpu.GPU):
        for step in make_trainable(config, kind, options, spec, Ranks()).steps:
            yield step.function(step.stage.due(0)).get_concrete_function(number, number, batch_of(spec))


def batch_of(spec):
    """The shapes of a batch of the data as the pipeline hands it over: pictures are uint8, arrays float32."""
    kind = "uint8" if spec.is_pictures else "float32"
    layout = spec.record_layout
    shapes = {"images": layout.shape, "inputs": layout.input_shape}
    batch = {name: tf.TensorSpec((BATCH, *each), kind) for name, each in shapes.items() if each is not None}
    batch["numbers"] = tf.TensorSpec((BATCH,), tf.int64)
    for name in [*spec.domains][1:]:
        batch |= {f"{name}/images": batch["images"], f"{name}/numbers": batch["numbers"]}
    if spec.conditions:
        batch["conditions"] = tf.TensorSpec((BATCH, len(spec.conditions)), tf.float32)
    return batch


def faults(recipe, halves=("float16",), **settings):
    """What a GPU would not compute by itself; hvdgan keeps a step's first arguments, two numbers, on the host."""
    found = []
    for step in steps_of(recipe, **settings):
        assert [each.dtype for each in step.graph.inputs[:2]] == [tf.int64] * 2
        found += faults_of(step, 2, halves)
    return found


@pytest.mark.parametrize("recipe", small.long_but("dcgan"))
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
        rate = Schedule(1e-3, 0, "cosine", warmup_steps=2, epochs=1)
        own = {"learning_rate": rate, "clip_norm": 1.0, "betas": (0.1, 0.2)}
        judge = Update("judge", owns=["discriminator"], loss=self.judge, only_if=lambda means: means["real"] < 1, **own)
        return [Stage("adversarial", 4, [judge, Update("fool", owns=["generator"], loss=self.fool, **own)])]

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        numbers = tf.reduce_mean(tf.cast(batch.index, tf.float32))
        return loss * tf.cast(batch.random.step, tf.float32) + 0.0 * numbers, metrics


def test_rates_decays_clipping_and_updates_that_wait():
    assert faults(Waiting, spec=SMALL, precision="mixed_float16") == []


def test_numbers_that_all_variables_share_are_computed_once_and_a_skipped_update_copies_no_weights():
    """On a GPU the host has to start a kernel for each of these operations."""
    (step,) = steps_of("dcgan")
    kinds = Counter(each.type for each in step.graph.get_operations())
    assert kinds["ResourceApplyAdam"] > 10 and kinds["Pow"] == 4  # two optimizers with two decays
    statistics = kinds["FusedBatchNormV3"] * 2  # BatchNorm's means and variances are kept and selected
    assert kinds["SelectV2"] < kinds["ResourceApplyAdam"] + statistics + 20


def test_the_list_is_that_of_the_newest_tensorflow_of_the_tests():
    """A newer pin comes with a list of its own."""
    head = LIST.read_text().partition("\n")[0]
    newest = ".".join(map(str, NEWEST_TESTED["TensorFlow"]))
    pinned = re.search(r"^horovod==([\d.]+)", (ROOT / "launch" / "constraints.txt").read_text(), re.MULTILINE)
    assert f"TensorFlow {newest}." in head and f"horovod-{pinned[1]}.tar.gz" in head
