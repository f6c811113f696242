"""Recipes with state of their own: a pool of earlier pictures for each sample, a weight that all ranks set, and
discriminators of which each rank has its own."""

import keras
import numpy as np
import tensorflow as tf

from hvdgan.recipe import Plateau, Stage, State, Update, losses
from tiny import Tiny

PLACES = 3
STEP = 0.25


class Pooled(Tiny):
    """The discriminator sees a picture of a pool of earlier ones (Shrivastava et al. 2017), and a controller counts."""

    def state(self):
        return {
            "pool": State(np.zeros((PLACES, *self.data.shape)), per_sample=True),
            "filled": State(0, per_sample=True),
            "weight": State(1.0),
            "judged": State([0, 0]),
        }

    def judge(self, nets, batch):
        fake = nets.generator(batch.latents)
        place = batch.state.filled % PLACES
        pool = tf.tensor_scatter_nd_update(
            batch.state.pool, tf.stack([tf.range(fake.shape[0], dtype=tf.int64), place], axis=1), tf.stop_gradient(fake)
        )
        last = tf.cast(tf.minimum(batch.state.filled, PLACES - 1) + 1, tf.float32)
        chosen = tf.cast(batch.random.uniform("chosen", ()) * last, tf.int64)
        shown = tf.gather(pool, chosen, batch_dims=1)
        real = nets.discriminator(batch.images)
        loss = losses.non_saturating_discriminator(real, nets.discriminator(shown))
        positive = tf.reduce_mean(tf.cast(real > 0, tf.float32))
        return (
            batch.state.weight * loss,
            {"positive": positive},
            {
                **{"pool": pool, "filled": batch.state.filled + 1},
                "judged": batch.state.judged + 1,
            },
        )

    def control(self, state, metrics):
        return {"weight": state.weight + STEP * (metrics["judge/positive"] - 0.5)}


class Local(Tiny):
    """Two steps of the discriminator alone, of which each rank trains its own, and two of the generator."""

    reduce = False

    def optimizers(self):
        return {name: keras.optimizers.SGD(0.1) for name in ("generator", "discriminator")}

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge, reduce=self.reduce)
        return [Stage("judges", 2, [judge]), Stage("fool", 2, [Update("fool", owns=["generator"], loss=self.fool)])]


class Averaged(Local):
    """The same with averages of the discriminators."""

    ema = ("discriminator",)


class Everything(Averaged):
    """Statistics, networks of each rank and state per sample: all that differs between ranks."""

    ema = ("generator", "discriminator")
    state, judge = Pooled.state, Pooled.judge


class Reduced(Everything):
    """The same with one discriminator for all ranks."""

    reduce = True


class Ending(Tiny):
    """Two stages; the first ends when the discriminator's mean logit is steady, which a tiny learning rate makes it."""

    def stages(self):
        (stage,) = super().stages()
        until = Plateau("judge/steady", window=2, patience=2)
        return [Stage("first", 40, stage.updates, until=until), Stage("second", 3, stage.updates)]

    def judge(self, nets, batch):
        loss, _ = super().judge(nets, batch)
        return loss, {"steady": 1.0}


def faulty(**methods):
    """A recipe with other methods than Pooled."""
    return type("Faulty", (Pooled,), methods)
