"""Recipes that each make one mistake; the line that an error must name, if any, ends with `# here`."""

import dataclasses
import os
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from hvdgan.recipe import Recipe, Stage, State, Update
from tiny import Tiny, TinyOptions


class WrongArgument(Tiny):
    def stages(self):
        return [Stage("joint", 3, [Update("fool", own=["generator"], loss=self.fool)])]  # here


class Selective(Tiny):
    def stages(self):
        judge, fool = super().stages()[0].updates
        return [Stage("joint", 3, [dataclasses.replace(judge, only_if=self.wanted), fool])]

    def wanted(self, metrics):
        return metrics["reall"] > 0.0  # here


class BlankImages(Tiny):
    def sample(self, nets, batch):  # here
        return tf.cond(batch.random.step < 0, lambda: 0.5 * batch.images, lambda: nets.generator(batch.latents))


class Frozen(Tiny):
    def networks(self):
        networks = super().networks()
        networks["generator"].trainable = False
        return networks

    def stages(self):  # here
        both = ["generator", "discriminator"]
        return [Stage("joint", 3, [Update("fool", owns=both, loss=self.fool)])]


class PacksRows(Tiny):
    def pack(self, rows):  # here
        return tf.reshape(rows, (-1, 4))


class Even(Tiny):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Options(TinyOptions):
        def __post_init__(self):
            if self.steps % 2:
                raise ValueError(f"steps is {self.steps}; it must be even")  # here


class OutOfRange(Tiny):
    def fool(self, nets, batch):
        loss, _ = super().fool(nets, batch)
        return loss + tf.gather(tf.zeros(3), 3 + tf.cast(batch.random.step, tf.int32)), {}  # here


class Unseen(Tiny):
    sample = Recipe.sample  # there is none


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without get_config(), which saves nothing."""

    def __call__(self, step):
        return 1e-3 * 0.5 ** (tf.cast(step, tf.float32) / 10)


class Decaying(Tiny):
    """A learning rate where the optimizer has a schedule."""

    def optimizers(self):
        return {**super().optimizers(), "generator": keras.optimizers.Adam(Halving())}

    def stages(self):
        judge, fool = super().stages()[0].updates
        return [Stage("adversarial", 3, [judge, dataclasses.replace(fool, learning_rate=1e-3)])]


class NoPair(Tiny):
    def fool(self, nets, batch):  # here
        return tf.reduce_mean(nets.discriminator(nets.generator(batch.latents)))


class If(Tiny):
    def fool(self, nets, batch):
        loss, _ = super().fool(nets, batch)
        if loss > 1.0:  # here
            loss = loss * 0.5
        return loss, {}


class Groups(Tiny):
    """Its loss compares groups of four samples."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        groups = tf.reshape(nets.discriminator(batch.images), (4, -1))  # here
        return loss + tf.reduce_mean(tf.math.reduce_std(groups, 0)), metrics


class UnknownDraw(Tiny):
    def fool(self, nets, batch):
        return tf.reduce_mean(nets.generator(batch.noise)), {}  # here


class OnSome(Tiny):
    """Fails on the ranks that the environment names, or on all."""

    def fool(self, nets, batch):
        if os.environ["HOROVOD_RANK"] in (os.environ["WRONG_RANKS"] or "01"):
            raise FileNotFoundError("weights.npy")  # here
        return super().fool(nets, batch)


class Hungry(Tiny):
    """Asks for more memory than any machine has, in its third step."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        count = tf.where(batch.random.step == 2, tf.constant(2**48, tf.int64), 1)
        return loss + tf.reduce_sum(tf.zeros(count[None])), metrics


class HalfLayers(Tiny):
    """Layers compute in float16, and nothing scales the loss."""

    def networks(self):  # here
        half = [keras.layers.Dense(4, dtype="mixed_float16"), keras.layers.Dense(1, dtype="float32")]
        critic = keras.Sequential([keras.Input(self.data.shape), keras.layers.Flatten(), keras.Sequential(half)])
        return {**super().networks(), "discriminator": critic}


class Float8(Tiny):
    def networks(self):  # here
        networks = super().networks()
        networks["generator"].quantize("float8", filters="dense")
        return networks


class OfHorovod(Tiny):
    def optimizers(self):  # here
        import horovod.tensorflow as hvd

        return {**super().optimizers(), "generator": hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))}


class LayerInLoss(Tiny):
    def fool(self, nets, batch):
        return tf.reduce_mean(keras.layers.Dense(1)(nets.generator(batch.latents))), {}  # here


class InNumPy(Tiny):
    def fool(self, nets, batch):  # here
        fake = nets.generator(batch.latents)
        return tf.ensure_shape(tf.numpy_function(lambda x: x.mean(), [fake], tf.float32), ()), {}


class TwoHeads(keras.Model):
    """Calls its second head in training only."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.other = keras.layers.Flatten(), keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, x, training=False):
        x = self.body(x)
        return self.head(x) + (self.other(x) if training else 0.0)


class LateHead(Tiny):
    def networks(self):  # here
        critic = TwoHeads()
        critic(tf.zeros((1, *self.data.shape)))
        return {**super().networks(), "discriminator": critic}


class Centring(keras.layers.Layer):
    """Subtracts a moving mean of the samples."""

    def build(self, shape):
        kept = {"trainable": False, "aggregation": "mean", "synchronization": "on_read"}
        self.mean = keras.Variable("zeros", shape[-1:], name="mean", **kept)

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, 0))
        return x - self.mean


class OwnMean(Tiny):
    """Each rank would train by another mean."""

    layer = Centring

    def networks(self):
        shape = self.data.shape
        critic = [keras.Input(shape), keras.layers.Flatten(), self.layer(name="kept"), keras.layers.Dense(1)]
        return {**super().networks(), "discriminator": keras.Sequential(critic, name="discriminator")}


class OwnState(Tiny):
    """Each rank would keep another mean of its samples."""

    def state(self):
        return {"seen": State(np.zeros((8, 8, 1)))}

    def judge(self, nets, batch):
        return *super().judge(nets, batch), {"seen": tf.reduce_mean(batch.images, 0)}


class Keeping(Centring):
    """Keeps the same mean for samples, and a largest singular vector of its weights, by which it trains."""

    def build(self, shape):
        super().build(shape)
        self.kernel = self.add_weight((shape[-1], 3), name="kernel")
        more = {"initializer": "ones", "trainable": False, "aggregation": "mean"}
        self.vector = self.add_weight((3,), name="vector", **more)

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, 0))
        else:
            x = x - self.mean
        vector = tf.linalg.matvec(tf.matmul(self.kernel, self.kernel, transpose_a=True), self.vector)
        vector = tf.stop_gradient(tf.math.l2_normalize(vector))
        if training:
            self.vector.assign(vector)
        return tf.matmul(x, self.kernel) / tf.norm(tf.linalg.matvec(self.kernel, vector))


class KeptMeans(OwnMean):
    """No mistake: no loss reads a mean over the samples of one rank."""

    layer = Keeping


class OfParts(Tiny):
    def networks(self):  # here
        return {"whole/part" if name == "generator" else name: each for name, each in super().networks().items()}


class Lists(Tiny):
    """No mistake: options that are lists."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Options(TinyOptions):
        sizes: tuple[int, ...] = (1,)
        names: list[str] = dataclasses.field(default_factory=list)
        pair: tuple[int, int] = (1, 2)
        maybe: tuple[int, ...] | None = None
        several: Sequence[int] = (7,)
