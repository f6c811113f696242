"""keras.io's wgan_gp: a critic with Dropout steps three times on the same pictures, each time with new latents."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update, losses

PROGRAM = {"name": "keras.io wgan_gp", "needs": "random layers", "run": "--image-size 12 --sync-batch-norm"}
LATENTS, STEPS_OF_CRITIC = 16, 3


def critic_block(x, filters, dropout=0.0):
    x = layers.LeakyReLU(negative_slope=0.2)(layers.Conv2D(filters, 5, strides=2, padding="same")(x))
    return layers.Dropout(dropout)(x) if dropout else x


def generator_block(x, filters, activation):
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(layers.UpSampling2D()(x))
    return activation(layers.BatchNormalization()(x))


class WGANGP(Recipe):
    ema = ("generator",)

    def networks(self):
        size, channels = self.data.image_size, self.data.channels
        noise = keras.Input((LATENTS,))
        x = layers.Dense((size + 4) // 4 * ((size + 4) // 4) * 16, use_bias=False)(noise)
        x = layers.LeakyReLU(negative_slope=0.2)(layers.BatchNormalization()(x))
        x = layers.Reshape(((size + 4) // 4, (size + 4) // 4, 16))(x)
        x = generator_block(x, 8, layers.LeakyReLU(negative_slope=0.2))
        x = layers.Cropping2D(2)(generator_block(x, channels, layers.Activation("tanh")))
        images = keras.Input(self.data.shape)
        y = critic_block(layers.ZeroPadding2D(2)(images), 8)
        y = critic_block(critic_block(y, 16, dropout=0.3), 32, dropout=0.3)
        y = layers.Dense(1)(layers.Dropout(0.2)(layers.Flatten()(critic_block(y, 32))))
        return {"generator": keras.Model(noise, x), "critic": keras.Model(images, y)}

    def optimizers(self):
        return {name: keras.optimizers.Adam(2e-4, beta_1=0.5, beta_2=0.9) for name in ("generator", "critic")}

    def stages(self):
        critic = [Update(f"critic_{number}", ["critic"], self.judge) for number in range(STEPS_OF_CRITIC)]
        return [Stage("train", 10_000, [*critic, Update("generator", ["generator"], self.fool)])]

    def draw(self, random):
        return {"latents": random.normal("latents", (LATENTS,))}

    def judge(self, nets, batch):
        fake = nets.generator(batch.random.normal("latents", (LATENTS,)), training=True)
        real_scores, fake_scores = nets.critic(batch.images, training=True), nets.critic(fake, training=True)
        cost = tf.reduce_mean(fake_scores) - tf.reduce_mean(real_scores)
        # The program mixes by normal numbers, not by uniform ones.
        mix = 1.0 - batch.random.normal("mix", ())
        penalty = losses.gradient_penalty(lambda x: nets.critic(x, training=True), batch.images, fake, mix)
        return cost + 10.0 * penalty, {"cost": cost}

    def fool(self, nets, batch):
        return -tf.reduce_mean(nets.critic(nets.generator(batch.latents, training=True), training=True)), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents)
