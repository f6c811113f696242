"""A GAN trained by a plain loop of TensorFlow, in which both gradients are computed before one is applied."""

import dataclasses
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from building import data_of
from hvdgan.recipe import Random, losses
from tiny import Tiny


class AtOnce(Tiny):
    """A simultaneous stage. No bias stands before BatchNorm: Adam would make steps of the rounding of its gradient."""

    ema = ("discriminator",)
    judges: ClassVar[dict[str, Any]] = {}
    """settings of the discriminator's update"""

    def networks(self):
        norm = lambda: layers.BatchNormalization(momentum=0.9)  # noqa: E731
        spectral = [layers.SpectralNormalization(layers.Dense(16))] if self.options.norm == "none" else []
        judging = spectral or [layers.Dense(16, use_bias=False), norm()]
        making = [layers.Dense(16, use_bias=False), norm(), layers.ReLU(), layers.Dense(64, "tanh")]
        return {
            "generator": keras.Sequential([keras.Input((8,)), *making, layers.Reshape((8, 8, 1))]),
            "discriminator": keras.Sequential(
                [keras.Input((8, 8, 1)), layers.Flatten(), *judging, layers.LeakyReLU(0.2), layers.Dense(1)]
            ),
        }

    def stages(self):
        (stage,) = super().stages()
        judge, fool = stage.updates
        return [dataclasses.replace(stage, updates=[dataclasses.replace(judge, **self.judges), fool], together=True)]


def plain_loop(run, steps=20, groups=1, micro_batches=1, before=lambda step, optimizers: None):
    """What a plain loop makes of a run's networks at their start: variables by the run's names.

    It sees the samples of a run on one rank; a batch is cut as `groups` ranks would, each into micro-batches.
    `before` may change the optimizers before a step.
    """
    networks, optimizers, settings = run.recipe.networks(), run.recipe.optimizers(), run.recipe.judges
    for name, network in networks.items():
        network.set_weights(run.state.networks[name].get_weights())
    variables = {name: network.trainable_variables for name, network in networks.items()}
    averages = [variable.numpy() for variable in networks["discriminator"].variables]
    count = run.config.global_batch_size
    parts = np.arange(count).reshape(groups, micro_batches, -1).swapaxes(0, 1).reshape(micro_batches, -1)
    for step in range(steps):
        images = tf.cast(data_of(run, step)["images"], tf.float32) / 127.5 - 1
        random = Random(run.config.seed, tf.constant(step, tf.int64), 0, count)
        latents, gradients = run.recipe.draw(random.scoped("draw"))["latents"], []
        for part in parts:
            with tf.GradientTape() as judging, tf.GradientTape() as fooling:
                fake = networks["generator"](tf.gather(latents, part), training=True)
                real_logits = networks["discriminator"](tf.gather(images, part), training=True)
                fake_logits = networks["discriminator"](fake, training=True)
                judge = losses.non_saturating_discriminator(real_logits, fake_logits)
                fool = losses.non_saturating_generator(fake_logits)
            both = judging.gradient(judge, variables["discriminator"]), fooling.gradient(fool, variables["generator"])
            gradients.append([[each / micro_batches for each in group] for group in both])
        judged, fooled = ([sum(each) for each in zip(*group, strict=True)] for group in zip(*gradients, strict=True))
        if "clip_value" in settings:
            judged = [tf.clip_by_value(each, -settings["clip_value"], settings["clip_value"]) for each in judged]
        before(step, optimizers)
        optimizers["discriminator"].apply(judged, variables["discriminator"])
        optimizers["generator"].apply(fooled, variables["generator"])
        if "clip_weights" in settings:
            for variable in variables["discriminator"]:
                variable.assign(np.clip(variable.numpy(), -settings["clip_weights"], settings["clip_weights"]))
        decay = min(run.config.ema_decay, (1 + step) / (10 + step))
        now = [variable.numpy() for variable in networks["discriminator"].variables]
        averages = [decay * old + (1 - decay) * new for old, new in zip(averages, now, strict=True)]
    found = {}
    for name, network in networks.items():
        names = [variable.path for variable in run.state.networks[name].variables]
        found |= {f"networks/{name}/{path}": v.numpy() for path, v in zip(names, network.variables, strict=True)}
        if name == "discriminator":
            found |= {f"ema/{name}/{path}": value for path, value in zip(names, averages, strict=True)}
    return found


def assert_equal(found, expected, tolerance=1e-6):
    """Compare what both have; seeds of layers that do not draw are left out."""
    for name, value in expected.items():
        if name in found:
            np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)
