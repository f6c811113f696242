"""Translation between two domains without pairs: cycle-consistent adversarial networks (Zhu et al. 2017)."""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.networks.cyclegan import MULTIPLE, patch_discriminator, resnet_generator
from hvdgan.networks.pix2pix import patch_halvings
from hvdgan.recipe import (
    Batch,
    Count,
    CountOrNever,
    Decay,
    NonNegative,
    Positive,
    Random,
    Recipe,
    Schedule,
    Stage,
    State,
    Update,
    UserError,
    losses,
    metrics,
)

_OTHER = {"A": "B", "B": "A"}
_GENERATORS, _DISCRIMINATORS = ("generator_A", "generator_B"), ("discriminator_A", "discriminator_B")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CycleGANOptions:
    """Options of the recipe cyclegan."""

    steps: Count = 20_000
    """steps of the first stage, at a constant learning rate"""
    decay_steps: CountOrNever = 20_000
    """steps of the second stage, in which the learning rate falls linearly to 0; 0: no second stage"""
    nf: Count = 64
    """width of the networks: channels of their first layers"""
    blocks: CountOrNever = 0
    """residual blocks of a generator; 0: 9 for pictures of 256 pixels and more, else 6"""
    d_layers: CountOrNever = 0
    """halvings in a discriminator, 3 for patches of 70 x 70 pixels; 0: 3, but 2 below 71 pixels and 1 below 35"""
    cycle_weight: NonNegative = 10.0
    """weight of the cycle losses"""
    identity_weight: NonNegative = 0.5
    """weight of the identity losses, as a factor of --cycle-weight"""
    pool: CountOrNever = 50
    """earlier fakes that a discriminator may see instead of a new one, for each place of the global batch; 0: none"""
    learning_rate: Positive = 2e-4
    """Adam's step size for all networks"""
    beta_1: Decay = 0.5
    """Adam's decay of the gradients' mean"""


class CycleGAN(Recipe):
    """Translation between domains A and B without pairs: two generators, two discriminators of patches, and the cycle.

    Differences from the paper: the discriminators step before the generators, so that both use one computation of the
    fakes; the pool has its size for each place of the global batch, which is 1 in the paper; pictures are not cropped
    (give --flip to mirror them); samples use averaged weights.

    Command:
        hvdgan launch -np 2 train --recipe cyclegan --data horse2zebra --image-size 128
            --global-batch-size 2 --flip

    Expect:
        eval/cycle_A and eval/cycle_B, the mean absolute errors of held-out pictures after the way there and back on the
        scale [-1, 1], fall to about 0.1; grids of rows A, in B, back in A and of rows B, in A, back in B.

    Reference: Zhu et al. 2017 (arXiv:1703.10593); the pool: Shrivastava et al. 2017 (arXiv:1612.07828), section 2.3.
    """

    Options = CycleGANOptions
    domains = ("A", "B")
    ema = _GENERATORS
    shows_data = True
    translates_multiples_of = MULTIPLE

    def networks(self) -> dict[str, keras.Model]:
        """generator_B makes pictures of B from those of A, and discriminator_B judges them; the others the reverse."""
        o, shape = self.options, self.data.shape
        if not all(each.is_pictures for each in self.data.domains.values()):
            raise UserError("cyclegan takes 8-bit pictures, and --data has other arrays; store them as uint8")
        others = {name: each.shape for name, each in self.data.domains.items() if each.shape != shape}
        if others or len(shape) != 3 or shape[0] % MULTIPLE or shape[1] % MULTIPLE or min(shape[:2]) < 2 * MULTIPLE:
            raise UserError(
                f"cyclegan takes pictures (H, W, C) of one size in both domains, H and W multiples of {MULTIPLE} from "
                f"{2 * MULTIPLE} up, and the data have {shape}{f' and {others}' if others else ''}; give --image-size"
            )
        size = min(shape[:2])
        blocks, halvings = o.blocks or (9 if size >= 256 else 6), o.d_layers or patch_halvings(size)
        widths = {"channels": shape[-1], "nf": o.nf}
        made = {name: resnet_generator(**widths, blocks=blocks, name=name) for name in _GENERATORS}
        return made | {name: patch_discriminator(**widths, halvings=halvings, name=name) for name in _DISCRIMINATORS}

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        o = self.options
        return {name: keras.optimizers.Adam(o.learning_rate, o.beta_1) for name in (*_GENERATORS, *_DISCRIMINATORS)}

    def stages(self) -> list[Stage]:
        o = self.options
        constant = Stage("constant", o.steps, self._updates(o.learning_rate))
        falling = self._updates(Schedule(o.learning_rate, 0.0))
        return [constant, Stage("decay", o.decay_steps, falling)] if o.decay_steps else [constant]

    def _updates(self, rate: float | Schedule) -> list[Update]:
        return [
            Update("judge", _DISCRIMINATORS, self.judge, learning_rate=rate),
            Update("translate", _GENERATORS, self.make, learning_rate=rate),
        ]

    def state(self) -> dict[str, State]:
        """The pools of earlier fakes, and how many of them there are, at each place of the global batch."""
        if not self.options.pool:
            return {}
        pool = State(np.zeros((self.options.pool, *self.data.shape)), per_sample=True)
        return {"pool_A": pool, "pool_B": pool, "pooled": State(0, per_sample=True)}

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Least squares, halved: real pictures to 1, and fakes or earlier ones to 0 (section 4)."""
        loss, metrics, state = 0.0, {}, {}
        for name in self.domains:
            fake = self._fake(nets, batch, name)
            if self.options.pool:
                fake, state[f"pool_{name}"] = self.seen(batch, fake, name)
            judge = getattr(nets, f"discriminator_{name}")
            real_logits, fake_logits = judge(batch.domains[name].images), judge(fake)
            metrics[f"judge_{name}"] = 0.5 * (
                losses.least_squares(real_logits, 1.0) + losses.least_squares(fake_logits, 0.0)
            )
            loss += metrics[f"judge_{name}"]
        if state:
            state["pooled"] = tf.minimum(batch.state.pooled + 1, self.options.pool)
        return loss, metrics, state

    def make(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Equation 3 with least squares, and the identity losses of section 5.2."""
        o, loss, metrics = self.options, 0.0, {}
        for name in self.domains:
            real, fake = batch.domains[name].images, self._fake(nets, batch, name)
            logits = getattr(nets, f"discriminator_{name}")(fake)
            back = self._to(nets, name)(self._fake(nets, batch, _OTHER[name]))
            metrics[f"fool_{name}"] = losses.least_squares(logits, 1.0)
            metrics[f"cycle_{name}"] = losses.absolute_error(real, back)
            loss += metrics[f"fool_{name}"] + o.cycle_weight * metrics[f"cycle_{name}"]
            if o.identity_weight:
                metrics[f"identity_{name}"] = losses.absolute_error(real, self._to(nets, name)(real))
                loss += o.cycle_weight * o.identity_weight * metrics[f"identity_{name}"]
        return loss, metrics

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        """Rows of a picture, its translation and its way back: up to 16 of A, then as many of B."""
        rows = []
        for name in self.domains:
            real, other = batch.domains[name].images[:16], _OTHER[name]
            there = self._to(nets, other)(real)
            rows.append(tf.concat([real, there, self._to(nets, name)(there)], axis=2))
        return tf.concat(rows, axis=0)

    def evaluate(self, nets: Any, batch: Batch) -> dict[str, tf.Tensor]:
        found = {}
        for name in self.domains:
            real = batch.domains[name].images
            found[f"cycle_{name}"] = metrics.l1(real, self._to(nets, name)(self._to(nets, _OTHER[name])(real)))
        return found

    def translate(self, nets: Any, images: tf.Tensor, domain: str, random: Random) -> tf.Tensor:
        return self._to(nets, _OTHER[domain])(images)

    def _to(self, nets: Any, name: str) -> Any:
        return getattr(nets, f"generator_{name}")

    def _fake(self, nets: Any, batch: Batch, name: str) -> tf.Tensor:
        return self._to(nets, name)(batch.domains[_OTHER[name]].images)

    def seen(self, batch: Batch, fake: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """What a discriminator sees of each fake, (B, H, W, C), and the new pool, (B, pool, H, W, C).

        A pool that is not full takes the fake. After that, in half of the cases, a fake of the pool is seen, and the
        new one takes its place.
        """
        size, pool, count = self.options.pool, getattr(batch.state, f"pool_{name}"), batch.state.pooled
        is_full, swaps = count == size, batch.random.uniform(f"swap_{name}", ()) < 0.5
        place = tf.where(is_full, tf.cast(batch.random.integers(f"place_{name}", (), size), tf.int64), count)
        seen = tf.where((is_full & swaps)[:, None, None, None], tf.gather(pool, place, batch_dims=1), fake)
        takes = tf.one_hot(place, size, on_value=True, off_value=False, dtype=tf.bool) & (swaps | ~is_full)[:, None]
        return seen, tf.where(takes[:, :, None, None, None], tf.stop_gradient(fake)[:, None], pool)


RECIPE = CycleGAN
