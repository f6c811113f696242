"""Recipes whose networks share layers, or have several optimizers; tests name them as shared_layers:CoGAN and so on.

BatchNorm stands behind tanh. Before it, the gradient of a bias is 0 but for rounding, of which Adam makes a whole step.
"""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update, losses
from tiny import TinyOptions


def _judged(nets, name, fake, real):
    judge = getattr(nets, name)
    return losses.non_saturating_discriminator(judge(real), judge(fake))


class CoGAN(Recipe):
    """Two generators with one stem, two discriminators with one trunk (Liu and Tuzel 2016), of digits and negatives."""

    Options = TinyOptions
    ema = ("first", "second")

    def networks(self):
        pixels = self.data.shape
        latents, images = keras.Input((8,)), keras.Input(pixels)
        stem = layers.BatchNormalization()(layers.Dense(16, "tanh")(latents))
        trunk = layers.BatchNormalization()(layers.Dense(16, "tanh")(layers.Flatten()(images)))
        size = pixels[0] * pixels[1] * pixels[2]
        generators = {
            name: keras.Model(latents, layers.Reshape(pixels)(layers.Dense(size, "tanh", name="head")(stem)), name=name)
            for name in ("first", "second")
        }
        critics = {
            name: keras.Model(images, layers.Dense(1, name="head")(trunk), name=name)
            for name in ("critic_1", "critic_2")
        }
        return {**generators, **critics}

    def optimizers(self):
        return {name: keras.optimizers.Adam(1e-3, 0.5) for name in ("first", "second", "critic_1", "critic_2")}

    def stages(self):
        judges = [Update(f"judge_{i}", owns=[f"critic_{i}"], loss=getattr(self, f"judge_{i}")) for i in (1, 2)]
        return [Stage("both", self.options.steps, [*judges, Update("fool", owns=["first", "second"], loss=self.fool)])]

    def draw(self, random):
        return {"latents": random.normal("latents", (8,))}

    def judge_1(self, nets, batch):
        return _judged(nets, "critic_1", nets.first(batch.latents), batch.images), {}

    def judge_2(self, nets, batch):
        return _judged(nets, "critic_2", nets.second(batch.latents), -batch.images), {}

    def fool(self, nets, batch):
        logits = nets.critic_1(nets.first(batch.latents)), nets.critic_2(nets.second(batch.latents))
        return tf.add_n([losses.non_saturating_generator(each) for each in logits]), {}

    def sample(self, nets, batch):
        return nets.first(batch.latents)


class InsideAnother(Recipe):
    """An adversarial autoencoder (Makhzani et al. 2016), whose encoder is a network of its own and part of another."""

    Options = TinyOptions
    ema = ("autoencoder", "encoder")
    shows_data = True

    def networks(self):
        pixels = self.data.shape
        images, codes = keras.Input(pixels), keras.Input((4,))
        hidden = layers.BatchNormalization()(layers.Dense(16, "tanh")(layers.Flatten()(images)))
        encoder = keras.Model(images, layers.Dense(4)(hidden), name="encoder")
        size = pixels[0] * pixels[1] * pixels[2]
        decoder = keras.Model(codes, layers.Reshape(pixels)(layers.Dense(size, "tanh")(codes)), name="decoder")
        critic = keras.Sequential([keras.Input((4,)), layers.Dense(16), layers.LeakyReLU(0.2), layers.Dense(1)])
        whole = keras.Model(images, decoder(encoder(images)), name="autoencoder")
        return {"encoder": encoder, "decoder": decoder, "autoencoder": whole, "critic": critic}

    def optimizers(self):
        rates = {"autoencoder": 2e-3, "encoder": 1e-3, "critic": 1e-3}
        return {name: keras.optimizers.Adam(rate) for name, rate in rates.items()}

    def stages(self):
        owned = {"judge": "critic", "reconstruct": "autoencoder", "fool": "encoder"}
        updates = [Update(name, owns=[each], loss=getattr(self, name)) for name, each in owned.items()]
        return [Stage("both", self.options.steps, updates)]

    def draw(self, random):
        return {"codes": random.normal("codes", (4,))}

    def judge(self, nets, batch):
        return _judged(nets, "critic", nets.encoder(batch.images), batch.codes), {}

    def reconstruct(self, nets, batch):
        return tf.reduce_mean((nets.autoencoder(batch.images) - batch.images) ** 2), {}

    def fool(self, nets, batch):
        return losses.non_saturating_generator(nets.critic(nets.encoder(batch.images))), {}

    def sample(self, nets, batch):
        return nets.autoencoder(batch.images)


class Combined(Recipe):
    """A generator that is trained by a model of it and the discriminator, each of which has BatchNorm."""

    Options = TinyOptions

    def networks(self):
        pixels = self.data.shape
        latents, size = keras.Input((8,)), pixels[0] * pixels[1] * pixels[2]
        parts = [layers.Dense(16, "tanh"), layers.BatchNormalization(), layers.Dense(size, "tanh")]
        generator = keras.Sequential([latents, *parts, layers.Reshape(pixels)])
        parts = [layers.Flatten(), layers.Dense(16, "tanh"), layers.BatchNormalization()]
        critic = keras.Sequential([keras.Input(pixels), *parts, layers.Dense(1)])
        combined = keras.Model(latents, critic(generator(latents)))
        return {"generator": generator, "critic": critic, "combined": combined}

    def optimizers(self):
        return {name: keras.optimizers.Adam(1e-3) for name in ("generator", "critic")}

    def stages(self):
        owned = {"judge": "critic", "fool": "generator"}
        updates = [Update(name, owns=[each], loss=getattr(self, name)) for name, each in owned.items()]
        return [Stage("both", self.options.steps, updates)]

    def draw(self, random):
        return {"latents": random.normal("latents", (8,))}

    def judge(self, nets, batch):
        return _judged(nets, "critic", nets.generator(batch.latents), batch.images), {}

    def fool(self, nets, batch):
        return losses.non_saturating_generator(nets.combined(batch.latents)), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents)


class TwoOptimizers(Combined):
    """A generator that is stepped with one Adam against the discriminator, and with another to fit the images."""

    choices: tuple[str | None, str] = ("fitting", "adversarial")

    def networks(self):
        networks = super().networks()
        return {name: networks[name] for name in ("generator", "critic")}

    def optimizers(self):
        adams = {"adversarial": keras.optimizers.Adam(1e-3), "fitting": keras.optimizers.Adam(2e-3, 0.5)}
        return {"generator": adams, "critic": keras.optimizers.Adam(1e-3)}

    def stages(self):
        judge = Update("judge", owns=["critic"], loss=self.judge)
        mine = [
            Update(name, ["generator"], getattr(self, name), optimizer=choice)
            for name, choice in zip(("fit", "fool"), self.choices, strict=True)
        ]
        return [Stage("both", self.options.steps, [judge, *mine])]

    def fit(self, nets, batch):
        return tf.reduce_mean((nets.generator(batch.latents) - batch.images) ** 2), {}

    def fool(self, nets, batch):
        return losses.non_saturating_generator(nets.critic(nets.generator(batch.latents))), {}
