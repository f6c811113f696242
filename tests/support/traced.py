"""Traces the steps of a recipe without data, as on a GPU."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

import small
from hvdgan.cli.config import Config
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks import device
from hvdgan.recipe import DataSpec
from hvdgan.recipe.recipe import Recipe
from hvdgan.training.run import make_parts
from hvdgan.values.sample_values import Layout, SampleValues
from hvdgan.values.steps import Range, Standard
from hvdgan.values.value_map import ValueMap

BATCH = 4
ONE_STEP = ValueMap(((Standard((4.0,), (3.0,)),),), ("0",))
_NUMBERS = 2
"""arguments of a step that are numbers of steps, which hvdgan keeps on the host"""


def steps_of(
    recipe: type[Recipe] | str,
    spec: DataSpec | None = None,
    ranks: Ranks | None = None,
    options: dict | None = None,
    **settings,
) -> Iterator["tf.types.experimental.ConcreteFunction"]:
    """The step of each stage, with all its updates, traced as on a GPU.

    Args:
        recipe: a recipe, or the name of one of hvdgan's, which gets its small options and data that suit it.
        options: options besides the small ones.
        settings: settings of a Config.
    """
    ranks = ranks or Ranks()
    name = recipe if isinstance(recipe, str) else "own"
    spec = spec or small.spec(name)
    kind, given = small.small(recipe) if isinstance(recipe, str) else (recipe, recipe.Options())
    config = Config(recipe=name, global_batch_size=BATCH * ranks.size, **settings)
    number = tf.TensorSpec((), tf.int64)
    with device.computing_as(device.GPU):
        parts = make_parts(config, kind, dataclasses.replace(given, **(options or {})), spec, ranks)
        for step in parts.steps:
            yield step.function(step.stage.due(0)).get_concrete_function(number, number, _batch(spec))


def on_host(function: "tf.types.experimental.ConcreteFunction") -> int:
    """How many of the step's first arguments are in the host's memory."""
    assert [each.dtype for each in function.graph.inputs[:_NUMBERS]] == [tf.int64] * _NUMBERS
    return _NUMBERS


def _batch(spec: DataSpec) -> dict[str, tf.TensorSpec]:
    """The shapes of a batch of the data as the pipeline hands it over: pictures are uint8, arrays float32."""
    kind = "uint8" if spec.is_pictures else "float32"
    batch = {"images": tf.TensorSpec((BATCH, *spec.parts.record), kind)}
    batch["numbers"] = tf.TensorSpec((BATCH,), tf.int64)
    for name in [*spec.domains][1:]:
        batch |= {f"{name}/images": batch["images"], f"{name}/numbers": batch["numbers"]}
    if spec.num_classes:
        batch["labels"] = tf.TensorSpec((BATCH,), tf.int64)  # as it is on a GPU
    if spec.conditions:
        batch["conditions"] = tf.TensorSpec((BATCH, len(spec.conditions)), tf.float32)
    return batch


def fields(crop: int | None = None) -> DataSpec:
    """Fields of 32 x 32 pixels with inputs of 8 x 8 and two constant fields, for the recipe downscale."""
    size = crop or 32
    return DataSpec(
        (size, size, 1),
        100,
        input_shape=(size // 4, size // 4, 3),
        constants_shape=(size, size, 2),
        values=SampleValues(ONE_STEP, ValueMap(((Range(-9.0, 9.0),),), ("0", "1", "2"))),
        layout=Layout((32, 32, 1), (8, 8, 3), crop and (crop, crop)),
        constants=np.zeros((32, 32, 2), np.float32),
    )
