"""Recipes that write down a digest of each sample they see; tests name them as sample_digests:Alone."""

import hashlib
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

STEPS = 5
SEEN = Path("seen")
"""folder, in the run's working folder, with a file for each step and rank"""
_HELD_OUT = -1
"""stands for the step of held-out samples"""
_PARTS = ("images", "inputs", "labels", "conditions", "constants")


class Alone(Recipe):
    """A network of one number; the samples of each step are written down, and those held out at the end."""

    def networks(self):
        return {"net": keras.Sequential([keras.Input((1,)), layers.Dense(1)], name="net")}

    def optimizers(self):
        return {"net": keras.optimizers.SGD(0.0)}

    def stages(self):
        return [Stage("only", STEPS, [Update("move", owns=["net"], loss=self.move)])]

    def move(self, nets, batch):
        return _noted(batch, batch.random.step) + tf.reduce_mean(nets.net(_means(batch))), {}

    def evaluate(self, nets, batch):
        return {"mean": _noted(batch, _HELD_OUT) + _means(batch)[:, 0]}

    def sample(self, nets, batch):
        return tf.zeros((1, *self.data.shape))


class Pairs(Alone):
    """The same with inputs."""

    paired = True


def _means(batch):
    return tf.reduce_mean(layers.Flatten()(batch.images), axis=1, keepdims=True)


def _noted(batch, step):
    """Zero, once the digests of a batch are appended to the file of the step and this rank."""
    present = {part: values for part in _PARTS if (values := getattr(batch, part)) is not None}

    def note(step, indices, *arrays):
        each = zip(*(np.broadcast_to(values, (len(indices), *values.shape[1:])) for values in arrays), strict=True)
        samples = zip(indices, each, strict=True)
        if step == _HELD_OUT:
            # An evaluation fills its last batch with blank samples, which have one number in each channel.
            samples = [sample for sample in samples if np.ptp(sample[1][0], axis=(0, 1)).any()]
        SEEN.mkdir(exist_ok=True)
        name = "held out" if step == _HELD_OUT else f"step {step}"
        with open(SEEN / f"{name}.{os.environ.get('HOROVOD_RANK', '0')}", "a") as file:
            file.writelines(f"{index}:{_digest(present, parts)}\n" for index, parts in samples)
        return np.float32(0)

    noted = tf.numpy_function(note, [step, batch.index, *present.values()], tf.float32, stateful=True)
    return tf.ensure_shape(noted, ())


def _digest(names, parts):
    digest = hashlib.sha256()
    for name, values in zip(names, map(np.asarray, parts), strict=True):
        digest.update(f"{name} {values.dtype.str} {values.shape} ".encode() + values.tobytes())
    return digest.hexdigest()[:16]


def seen_in(folder):
    """What all ranks have written down: the samples of each global batch in their order, and those held out, sorted."""
    found = {}
    for path in sorted((folder / SEEN).iterdir(), key=lambda path: (path.stem, int(path.suffix[1:]))):
        found.setdefault(path.stem, []).extend(path.read_text().split())
    return {name: " ".join(sorted({*words}) if name == "held out" else words) for name, words in found.items()}
