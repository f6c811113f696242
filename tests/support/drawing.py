"""A GAN whose networks hold layers of Keras that draw, as drawing:Drawing --part 0."""

import dataclasses
import math
import re

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update, losses
from keras_cases import CASES

DRAWS = re.compile(r"Random|[Dd]ropout|GaussianNoise")
CHOSEN = [name for name in CASES["layers"] if DRAWS.search(name)]
PARTS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """The layers of a run: each is in one part."""

    part: int = 0


class Drawing(Recipe):
    """Each network joins the results of several layers, each of which sees its own projection of the input."""

    Options = Part

    def networks(self):
        pixels = keras.Input(self.data.shape)
        latents = keras.Input((8,))
        made = layers.Reshape(self.data.shape)(layers.Dense(math.prod(self.data.shape), "tanh")(self.drawn(latents)))
        return {
            "generator": keras.Model(latents, made),
            "critic": keras.Model(pixels, layers.Dense(1)(self.drawn(layers.Flatten()(pixels)))),
        }

    def drawn(self, x):
        found = []
        for name in CHOSEN[self.options.part :: PARTS]:
            case = CASES["layers"][name]
            own = layers.Reshape(case.shape)(layers.Dense(math.prod(case.shape), "tanh")(x))
            if name == "RandomCrop":  # in inference it returns pictures of another size
                parts = [layers.GlobalAveragePooling2D()(case.inner(own))]
            else:
                parts = [layers.Flatten()(each) for each in tf.nest.flatten(case.inner(own))]
            found += [layers.Dense(2)(each) for each in parts]
        return layers.Concatenate()(found)

    def optimizers(self):
        return {name: keras.optimizers.SGD(0.02) for name in ("generator", "critic")}

    def stages(self):
        judge, fool = Update("judge", ["critic"], self.judge), Update("fool", ["generator"], self.fool)
        return [Stage("both", 10, [judge, fool])]

    def draw(self, random):
        return {"latents": random.normal("latents", (8,))}

    def judge(self, nets, batch):
        return losses.non_saturating_discriminator(
            nets.critic(batch.images), nets.critic(nets.generator(batch.latents))
        ), {}

    def fool(self, nets, batch):
        return losses.non_saturating_generator(nets.critic(nets.generator(batch.latents))), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents)
