"""deblur-gan: sharp pictures of blurred ones; the critic steps several times on the same fakes."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

RUN = "--data synthetic --image-size 16 --sync-batch-norm"
PROGRAM = {"name": "deblur-gan", "needs": "random layers, pairs, frozen network, training=False", "run": RUN}
FILTERS, BLOCKS, STEPS_OF_CRITIC = 4, 1, 2  # 64, 9 and 5 in the program


class ReflectionPadding(layers.Layer):
    def __init__(self, pixels):
        super().__init__()
        self.pixels = pixels

    def call(self, x):
        return tf.pad(x, [[0, 0], [self.pixels] * 2, [self.pixels] * 2, [0, 0]], "REFLECT")


def normed(x, filters, size=3, strides=1, *, reflected=True):
    if reflected:
        x = ReflectionPadding(size // 2)(x)
    x = layers.Conv2D(filters, size, strides=strides, padding="valid" if reflected else "same")(x)
    return layers.BatchNormalization()(x)


def features(shape):
    """Stands for VGG16 and its ImageNet weights."""
    image = keras.Input(shape)
    made = keras.Model(image, layers.Conv2D(8, 3, 2, activation="relu")(image))
    made.trainable = False
    return made


class DeblurGAN(Recipe):
    paired = True
    shows_data = True

    def networks(self):
        blurred = keras.Input(self.data.input_shape)
        x = layers.Activation("relu")(normed(blurred, FILTERS, 7))
        for factor in (2, 4):
            x = layers.Activation("relu")(normed(x, factor * FILTERS, strides=2, reflected=False))
        for _ in range(BLOCKS):
            y = layers.Dropout(0.5)(layers.Activation("relu")(normed(x, 4 * FILTERS)))
            x = layers.Add()([x, normed(y, 4 * FILTERS)])
        for factor in (2, 1):
            x = layers.Activation("relu")(normed(layers.UpSampling2D()(x), factor * FILTERS, reflected=False))
        x = layers.Conv2D(self.data.channels, 7, activation="tanh")(ReflectionPadding(3)(x))
        x = layers.Lambda(lambda z: z / 2)(layers.Add()([x, blurred]))
        return {"generator": keras.Model(blurred, x), "critic": self.critic(), "vgg": features(self.data.shape)}

    def critic(self):
        image = keras.Input(self.data.shape)
        x = layers.LeakyReLU(0.2)(layers.Conv2D(FILTERS, 4, strides=2, padding="same")(image))
        for factor, strides in ((2, 2), (4, 2), (8, 1)):
            x = layers.LeakyReLU(0.2)(normed(x, factor * FILTERS, 4, strides, reflected=False))
        x = layers.Flatten()(layers.Conv2D(1, 4, padding="same")(x))
        x = layers.Dense(16 * FILTERS, activation="tanh")(x)
        return keras.Model(image, layers.Dense(1, activation="sigmoid")(x))

    def optimizers(self):
        return {name: keras.optimizers.Adam(1e-4, epsilon=1e-8) for name in ("generator", "critic")}

    def stages(self):
        updates = []
        for number in range(1, STEPS_OF_CRITIC + 1):
            updates += [
                Update(f"real_{number}", ["critic"], self.real),
                Update(f"fake_{number}", ["critic"], self.fake),
            ]
        return [Stage("train", 50_000, [*updates, Update("restore", ["generator"], self.restore)])]

    def real(self, nets, batch):
        return tf.reduce_mean(nets.critic(batch.images)), {}

    def fake(self, nets, batch):
        return -tf.reduce_mean(nets.critic(nets.generator(batch.inputs, training=False))), {}

    def restore(self, nets, batch):
        made = nets.generator(batch.inputs)
        content = tf.reduce_mean((nets.vgg(made) - nets.vgg(batch.images)) ** 2)
        return 100 * content + tf.reduce_mean(nets.critic(made)), {"content": content}

    def sample(self, nets, batch):
        return tf.concat([batch.inputs, nets.generator(batch.inputs), batch.images], 2)
