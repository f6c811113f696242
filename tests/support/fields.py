"""A recipe of fields whose generator is of a kind that can, or cannot, be applied to parts of a larger field."""

import dataclasses

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update, losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    kind: str = "strides"


class Fields(Recipe):
    """From a field to one of the same size; noise joins at half the size."""

    Options = Options
    shows_data = True

    def networks(self):
        shape = self.data.shape
        conv = {2: layers.Conv1D, 3: layers.Conv2D, 4: layers.Conv3D}[len(shape)]
        grow = {2: layers.UpSampling1D, 3: layers.UpSampling2D, 4: layers.UpSampling3D}[len(shape)]
        how = {"padding": "same", "activation": "elu"}
        images = keras.Input(shape, name="images")
        noise = keras.Input((*(side // 2 for side in shape[:-1]), 2), name="noise")
        half = layers.Concatenate()([conv(3, 4, strides=2, name="half", **how)(images), noise])
        more = 3 if self.options.kind == "sixths" else 2
        x = conv(3, more + 1, strides=more, name="quarter", **how)(half)
        facts = [keras.Input((n,)) for n in (self.data.num_classes, len(self.data.conditions)) if n]
        if facts:
            x = x * layers.Reshape((*[1] * (len(shape) - 1), 3))(layers.Dense(3)(layers.Concatenate()(facts)))
        if self.options.kind == "nested":
            inner = keras.Sequential([keras.Input(x.shape[1:]), conv(3, 3, **how), layers.BatchNormalization()])
            x = inner(x)
        if self.options.kind == "norm":
            x = layers.GroupNormalization(-1, name="over_all")(x)
        if self.options.kind == "attention":
            x = layers.MultiHeadAttention(1, 2, name="attends", attention_axes=(1, 2))(x, x)
        if self.options.kind == "pool":
            x = x * layers.GlobalAveragePooling2D(keepdims=True, name="pooled")(x)
        if self.options.kind == "dense":
            flat = layers.Dense(x.shape[1] * x.shape[2])(layers.Flatten(name="flat")(x))
            x = layers.Concatenate()([x, layers.Reshape((*x.shape[1:3], 1))(flat)])
        if self.options.kind == "fixed":
            x = x + layers.Reshape((*x.shape[1:-1], 3), name="same_size")(x)
        x = layers.Concatenate()([grow(more)(conv(3, 3, **how)(x)), half])
        x = conv(shape[-1], 3, padding="same", name="last")(grow(2)(x))
        return {"generator": keras.Model([images, noise, *facts], x + images, name="generator")}

    def optimizers(self):
        return {"generator": keras.optimizers.Adam(1e-3)}

    def stages(self):
        return [Stage("fit", 1, [Update("fit", owns=["generator"], loss=self.fit)])]

    def fit(self, nets, batch):
        return losses.squared_error(batch.images, self.sample(nets, batch)), {}

    def draw(self, random):
        ramp = tf.reshape(tf.linspace(0.0, 1.0, self.data.shape[0]), (1, -1, 1, 1))
        drawn = random.normal("noise", (*(side // 2 for side in self.data.shape[:-1]), 2))
        return {"noise": drawn, "level": random.uniform("level", ()), "ramp": ramp}

    def sample(self, nets, batch):
        facts = [tf.one_hot(batch.labels, self.data.num_classes)] if self.data.num_classes else []
        facts += [batch.conditions] if self.data.conditions else []
        made = nets.generator([batch.images, batch.noise, *facts]) + tf.reshape(
            batch.level, (-1, *[1] * len(self.data.shape))
        )
        return made + batch.ramp if self.options.kind == "ramp" else made
