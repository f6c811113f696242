"""Image-to-image translation with conditional adversarial networks (Isola et al. 2017, arXiv:1611.07004)."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from hvdgan.networks.pix2pix import HEADS, mask_shapes, patch_discriminator, patch_halvings, unet_generator
from hvdgan.recipe import (
    Batch,
    Count,
    CountOrNever,
    Decay,
    Positive,
    Random,
    Recipe,
    Stage,
    Update,
    UserError,
    losses,
    metrics,
)


def _binary_cross_entropy(images: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Mean cross-entropy of probabilities over all pixels and channels, with -1 for probability 0 and 1 for 1."""
    yes = tf.clip_by_value((outputs + 1.0) / 2.0, 1e-6, 1.0 - 1e-6)
    wanted = (images + 1.0) / 2.0
    return -tf.reduce_mean(wanted * tf.math.log(yes) + (1.0 - wanted) * tf.math.log(1.0 - yes))


_LOSSES = {"l1": losses.absolute_error, "mse": losses.squared_error, "bce": _binary_cross_entropy}
_SHRINKS = {"images": 1, **HEADS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pix2PixOptions:
    """Options of the recipe pix2pix."""

    steps: Count = 20_000
    """steps of the only stage"""
    nf: Count = 64
    """width of the networks: channels of their first layers"""
    dropout: Decay = 0.5
    """fraction of the decoder's first three layers that is dropped, in training and in sampling; 0: none"""
    outputs: str = "images=l1:100"
    """losses of the outputs, NAME=LOSS:WEIGHT,...; NAME is images, half or quarter, and LOSS l1, mse or bce"""
    d_layers: CountOrNever = 0
    """halvings in the discriminator, 3 for patches of 70 x 70 pixels; 0: 3, but 2 at 64 pixels and 1 at 32"""
    learning_rate: Positive = 2e-4
    """Adam's step size for both networks"""
    beta_1: Decay = 0.5
    """Adam's decay of the gradients' mean"""


class OutputLoss(NamedTuple):
    """A loss of one output of the generator: names of the output and of the loss, and the loss's weight."""

    output: str
    loss: str
    weight: float


class Pix2Pix(Recipe):
    """Translation of an input into an image: a U-Net, a discriminator of patches, and losses for each output.

    Differences from the paper: samples are drawn with BatchNorm's moving statistics instead of those of the test batch.

    Command:
        hvdgan launch -np 2 train --recipe pix2pix --data digits --nf 16 --learning-rate 5e-4
            --global-batch-size 16 --steps 1500

    Expect:
        fool/images_l1 of about 0.05, digits filled within their outlines and hard to tell from the real ones; the
        discriminator's loss stays near 0.65. It took 105 s on two cores, in one process.
    """

    Options = Pix2PixOptions
    ema = ("generator",)
    paired = True
    shows_data = True

    def networks(self) -> dict[str, keras.Model]:
        o, data = self.options, self.data
        shape: dict[str, Any] = {"image_size": data.image_size, "channels": data.channels, "nf": o.nf}
        heads = [name for name in HEADS if name in {wanted.output for wanted in self.wanted}]
        return {
            "generator": unet_generator(**shape, dropout=o.dropout > 0, heads=heads),
            "discriminator": patch_discriminator(**shape, halvings=o.d_layers or patch_halvings(data.image_size)),
        }

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        o = self.options
        return {name: keras.optimizers.Adam(o.learning_rate, o.beta_1) for name in ("generator", "discriminator")}

    def stages(self) -> list[Stage]:
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool)
        return [Stage("joint", self.options.steps, [judge, fool])]

    @functools.cached_property
    def wanted(self) -> list[OutputLoss]:
        """The losses that the option `outputs` names."""
        return _read(self.options.outputs)

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        """Draw a keep-mask for each layer with dropout: `keep_2` (B, 2, 2, C) and so on, 0 or 1 / (1 - dropout)."""
        rate = self.options.dropout
        masks = {}
        for shape in self._mask_shapes():
            name = f"keep_{shape[0]}"
            kept = random.uniform(name, shape) >= rate
            masks[name] = tf.cast(kept, tf.float32) / (1.0 - rate)
        return masks

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Half the cross-entropy, so that the discriminator learns half as fast as the generator (section 3.3)."""
        real_logits = nets.discriminator([batch.inputs, batch.images])
        fake_logits = nets.discriminator([batch.inputs, self._translate(nets, batch)["images"]])
        return 0.5 * losses.non_saturating_discriminator(real_logits, fake_logits), {
            "real_score": tf.reduce_mean(tf.sigmoid(real_logits)),
            "fake_score": tf.reduce_mean(tf.sigmoid(fake_logits)),
        }

    def fool(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Equation 4: the adversarial loss and the weighted losses of the outputs, each a metric by its name."""
        translated = self._translate(nets, batch)
        adversarial = losses.non_saturating_generator(nets.discriminator([batch.inputs, translated["images"]]))
        loss, metrics = adversarial, {"adversarial": adversarial}
        for output, name, weight in self.wanted:
            value = _LOSSES[name](shrink(batch.images, _SHRINKS[output]), translated[output])
            metrics[f"{output}_{name}"] = value
            loss += weight * value
        return loss, metrics

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        """The inputs, their translations and the true images, side by side."""
        return tf.concat([batch.inputs, self._translate(nets, batch)["images"], batch.images], axis=2)[:32]

    def generate(self, nets: Any, batch: Batch) -> tf.Tensor:
        return self._translate(nets, batch)["images"]

    def evaluate(self, nets: Any, batch: Batch) -> dict[str, tf.Tensor]:
        translated = self._translate(nets, batch)["images"]
        return {"l1": metrics.l1(batch.images, translated), "psnr": metrics.psnr(batch.images, translated)}

    def translate(self, nets: Any, images: tf.Tensor, domain: str, random: Random) -> tf.Tensor:
        return nets.generator([images, *self.draw(random).values()])["images"]

    def _translate(self, nets: Any, batch: Batch) -> dict[str, tf.Tensor]:
        masks = [getattr(batch, f"keep_{shape[0]}") for shape in self._mask_shapes()]
        return nets.generator([batch.inputs, *masks])

    def _mask_shapes(self) -> list[tuple[int, int, int]]:
        return mask_shapes(image_size=self.data.image_size, nf=self.options.nf) if self.options.dropout else []


def shrink(images: tf.Tensor, factor: int) -> tf.Tensor:
    """Shrink images (B, H, W, C) to 1 / factor of their height and width by the means of factor x factor pixels."""
    return tf.nn.avg_pool2d(images, factor, factor, "VALID") if factor > 1 else images


def _read(outputs: str) -> list[OutputLoss]:
    wanted: list[OutputLoss] = []
    for part in outputs.split(","):
        output, _, rest = part.strip().partition("=")
        loss, _, weight = rest.partition(":")
        known = output in _SHRINKS and loss in _LOSSES and _is_weight(weight)
        if not known or (output, loss) in {(w.output, w.loss) for w in wanted}:
            raise UserError(
                f'--outputs {outputs}: "{part.strip()}" is not NAME=LOSS:WEIGHT, each NAME=LOSS once, with NAME one of '
                f"{', '.join(_SHRINKS)}, LOSS one of {', '.join(_LOSSES)}, and WEIGHT a number from 0 up"
            )
        wanted.append(OutputLoss(output, loss, float(weight)))
    return wanted


def _is_weight(text: str) -> bool:
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False


RECIPE = Pix2Pix
