"""TensorFlow's tutorial cyclegan: the U-Net of its pix2pix with a normalisation of its own, four gradients at once."""

import keras
import tensorflow as tf
from keras import layers
from tf_pix2pix import cross_entropy, patches, unet

from hvdgan.recipe import Recipe, Stage, Update, losses

RUN = "--image-size 16 --channels 1 --data digits --data synthetic"
PROGRAM = {"name": "TF cyclegan", "needs": "random layers, domains, together", "run": RUN}
WEIGHT = 10.0


class InstanceNorm(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape[-1:], initializer=keras.initializers.RandomNormal(1.0, 0.02), name="scale")
        self.offset = self.add_weight(shape[-1:], initializer="zeros", name="offset")

    def call(self, x):
        mean, variance = tf.nn.moments(x, axes=[1, 2], keepdims=True)
        return self.scale * (x - mean) * tf.math.rsqrt(variance + 1e-5) + self.offset


class CycleGAN(Recipe):
    """to_y makes Y of X, to_x makes X of Y."""

    domains = ("x", "y")
    shows_data = True

    def networks(self):
        shape = self.data.shape
        judges = {name: patches(shape, InstanceNorm, paired=False) for name in ("judge_x", "judge_y")}
        return {"to_y": unet(shape, InstanceNorm), "to_x": unet(shape, InstanceNorm), **judges}

    def optimizers(self):
        return {name: keras.optimizers.Adam(2e-4, beta_1=0.5) for name in ("to_x", "to_y", "judge_x", "judge_y")}

    def stages(self):
        updates = [Update(name, [name], getattr(self, name)) for name in ("to_y", "to_x", "judge_x", "judge_y")]
        return [Stage("train", 40_000, updates, together=True)]

    def cycles(self, nets, batch):
        x, y = batch.domains["x"].images, batch.domains["y"].images
        back_x = nets.to_x(nets.to_y(x, training=True), training=True)
        back_y = nets.to_y(nets.to_x(y, training=True), training=True)
        return WEIGHT * (losses.absolute_error(x, back_x) + losses.absolute_error(y, back_y))

    def to_y(self, nets, batch):
        return self.made(nets, batch, nets.to_y, nets.judge_y, "x", "y")

    def to_x(self, nets, batch):
        return self.made(nets, batch, nets.to_x, nets.judge_x, "y", "x")

    def made(self, nets, batch, to, judge, source, target):
        real = batch.domains[target].images
        scores = judge(to(batch.domains[source].images, training=True), training=True)
        identity = losses.absolute_error(real, to(real, training=True))
        loss = cross_entropy(tf.ones_like(scores), scores) + self.cycles(nets, batch) + 0.5 * WEIGHT * identity
        return loss, {"identity": identity}

    def judge_x(self, nets, batch):
        return self.judged(nets.judge_x, batch.domains["x"].images, nets.to_x(batch.domains["y"].images, training=True))

    def judge_y(self, nets, batch):
        return self.judged(nets.judge_y, batch.domains["y"].images, nets.to_y(batch.domains["x"].images, training=True))

    def judged(self, judge, real, fake):
        real, fake = judge(real, training=True), judge(fake, training=True)
        return 0.5 * (cross_entropy(tf.ones_like(real), real) + cross_entropy(tf.zeros_like(fake), fake)), {}

    def sample(self, nets, batch):
        x = batch.domains["x"].images
        return tf.concat([x, nets.to_y(x)], axis=2)
