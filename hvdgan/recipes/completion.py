"""Globally and locally consistent image completion (Iizuka et al. 2017, ACM Transactions on Graphics 36(4))."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from hvdgan.networks.completion import completion_network, context_discriminator
from hvdgan.recipe import (
    Batch,
    Count,
    Decay,
    Fraction,
    Positive,
    Random,
    Recipe,
    Stage,
    Update,
    UserError,
    losses,
    metrics,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Options of the recipe completion."""

    completion_steps: Count = 90_000
    """steps of the first stage, which trains the completion network alone"""
    discriminator_steps: Count = 10_000
    """steps of the second stage, which trains the discriminator alone"""
    joint_steps: Count = 400_000
    """steps of the third stage, which trains both"""
    nf: Count = 64
    """width of the networks: channels of their first layers"""
    alpha: Positive = 4e-4
    """weight of the adversarial loss; the squared error has weight 1"""
    min_hole: Fraction = 0.375
    """smallest height and width of a hole, as a fraction of the image size"""
    max_hole: Fraction = 0.5
    """largest height and width of a hole, as a fraction of the image size, at most 0.5"""
    learning_rate: Positive = 2e-4
    """Adam's step size for both networks"""
    beta_1: Decay = 0.5
    """Adam's decay of the gradients' mean"""


class Completion(Recipe):
    """Completion in three stages: the squared error alone, the discriminator alone, then both networks together.

    Differences from the paper: Adam instead of ADADELTA, images in [-1, 1], and holes filled with middle grey instead
    of the data's mean.

    Command:
        hvdgan launch -np 2 train --recipe completion --data digits --nf 16
            --learning-rate 5e-4 --stages completion=600,discriminator=100,joint=600

    Expect:
        eval/hole_psnr of about 21 dB on held-out digits, 10 dB above that of the mean digit, and filled digits that
        look real. It took 127 s on two cores, in one process.
    """

    Options = CompletionOptions
    ema = ("completion",)
    shows_data = True

    def networks(self) -> dict[str, keras.Model]:
        if not 0 < self.options.min_hole <= self.options.max_hole <= 0.5:
            raise UserError(
                f"--min-hole {self.options.min_hole}, --max-hole {self.options.max_hole}: expected "
                "0 < min_hole <= max_hole <= 0.5, since the discriminator looks at a patch of half the size"
            )
        shape = {"image_size": self.data.image_size, "channels": self.data.channels, "nf": self.options.nf}
        return {"completion": completion_network(**shape), "discriminator": context_discriminator(**shape)}

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        o = self.options
        return {name: keras.optimizers.Adam(o.learning_rate, o.beta_1) for name in ("completion", "discriminator")}

    def stages(self) -> list[Stage]:
        reconstruct = Update("reconstruct", owns=["completion"], loss=self.reconstruct)
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["completion"], loss=self.fool)
        return [
            Stage("completion", self.options.completion_steps, [reconstruct]),
            Stage("discriminator", self.options.discriminator_steps, [judge]),
            Stage("joint", self.options.joint_steps, [judge, fool]),
        ]

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        """Draw a rectangular hole, `mask` (B, H, W, 1), and the `corner` (B, 2) of a patch of half the size around it.

        `real_corner` (B, 2) is the corner of the patch of the real image; it does not depend on the hole.
        """
        size = self.data.image_size
        patch = size // 2
        extent, corner, offset = tf.unstack(random.uniform("holes", (3, 2)), axis=1)  # each (B, 2): down, across
        smallest, largest = (max(1, round(size * f)) for f in (self.options.min_hole, self.options.max_hole))
        extent = smallest + tf.floor(extent * (largest - smallest + 1))
        corner = tf.floor(corner * (size - patch + 1))
        begin = corner + tf.floor(offset * (patch - extent + 1))
        places = tf.range(size, dtype=tf.float32)
        inside = (places >= begin[..., None]) & (places < (begin + extent)[..., None])  # (B, 2, size)
        mask = tf.cast(inside[:, 0, :, None, None] & inside[:, 1, None, :, None], tf.float32)
        real_corner = tf.floor(random.uniform("real_patches", (2,)) * (size - patch + 1))
        return {"mask": mask, "corner": tf.cast(corner, tf.int32), "real_corner": tf.cast(real_corner, tf.int32)}

    def reconstruct(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        output = self._output(nets, batch)
        return _masked_mse(batch.images, output, batch.mask), {
            "hole_psnr": tf.reduce_mean(metrics.psnr(batch.images, output, batch.mask))
        }

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Equation 3; the patch of the real image is around a mask M_d of its own, independent of the hole."""
        filled = self._fill(batch, self._output(nets, batch))
        real_logits = self._logits(nets, batch.images, batch.real_corner)
        fake_logits = self._logits(nets, filled, batch.corner)
        return losses.non_saturating_discriminator(real_logits, fake_logits), {}

    def fool(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Equation 4: the squared error, and the adversarial loss of the filled image."""
        output = self._output(nets, batch)
        error = _masked_mse(batch.images, output, batch.mask)
        adversarial = losses.non_saturating_generator(self._logits(nets, self._fill(batch, output), batch.corner))
        return error + self.options.alpha * adversarial, {
            "mse": error,
            "adversarial": adversarial,
            "hole_psnr": tf.reduce_mean(metrics.psnr(batch.images, output, batch.mask)),
        }

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        """Images with their hole, filled, and original, side by side."""
        masked = batch.images * (1.0 - batch.mask)
        filled = self.complete(nets, batch.images, batch.mask)
        return tf.concat([masked, filled, batch.images], axis=2)[:32]

    def generate(self, nets: Any, batch: Batch) -> tf.Tensor:
        return self.complete(nets, batch.images, batch.mask)

    def evaluate(self, nets: Any, batch: Batch) -> dict[str, tf.Tensor]:
        """Measure the filled pixels inside the holes of held-out images."""
        filled = self.complete(nets, batch.images, batch.mask)
        measure = {"l1": metrics.l1, "psnr": metrics.psnr, "ssim": metrics.ssim}
        return {f"hole_{name}": of(batch.images, filled, batch.mask) for name, of in measure.items()}

    def complete(self, nets: Any, images: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Fill the holes of images (B, H, W, C) in [-1, 1]: the pixels where mask (B, H, W, 1) is 1."""
        return images * (1.0 - mask) + nets.completion([images, mask]) * mask

    def _output(self, nets: Any, batch: Batch) -> tf.Tensor:
        return nets.completion([batch.images, batch.mask])

    def _fill(self, batch: Batch, output: tf.Tensor) -> tf.Tensor:
        return batch.images * (1.0 - batch.mask) + output * batch.mask

    def _logits(self, nets: Any, images: tf.Tensor, corner: tf.Tensor) -> tf.Tensor:
        # In int64, which GPUs compute with; (B, 2, patch).
        places = tf.cast(corner, tf.int64)[..., None] + tf.range(self.data.image_size // 2, dtype=tf.int64)
        rows = tf.gather(images, places[:, 0], axis=1, batch_dims=1)
        patches = tf.gather(rows, places[:, 1], axis=2, batch_dims=1)
        return nets.discriminator([images, patches])


def _masked_mse(images: tf.Tensor, filled: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Squared error inside the mask, divided by the number of all values inside and outside (equation 2)."""
    return tf.reduce_mean(tf.square(mask * (filled - images)))


RECIPE = Completion
