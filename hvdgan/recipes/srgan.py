"""Photo-realistic super-resolution with a frozen feature network (Ledig et al. 2017, arXiv:1609.04802)."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from hvdgan.networks.srgan import picture_discriminator, super_resolution
from hvdgan.recipe import Batch, Count, Decay, NonNegative, Positive, Recipe, Stage, Update, UserError, losses, metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class SRGANOptions:
    """Options of the recipe srgan."""

    pixel_steps: Count = 1_000_000
    """steps of the first stage, which trains the generator alone by the squared error of pixels (SRResNet)"""
    steps: Count = 200_000
    """steps of the second stage, which trains both networks"""
    factor: Count = 4
    """size of a picture / size of the small picture that the generator sees, a power of two"""
    nf: Count = 64
    """width of the networks: channels of their first layers"""
    blocks: Count = 16
    """residual blocks of the generator"""
    features: str = ""
    """file (.keras) of a frozen network of pictures in [-1, 1]; the content loss compares its features"""
    content_weight: NonNegative = 1.0
    """weight of the content loss: the squared error of features, or of pixels without a feature network"""
    adversarial_weight: NonNegative = 1e-3
    """weight of the adversarial loss"""
    learning_rate: Positive = 1e-4
    """Adam's step size for both networks"""
    beta_1: Decay = 0.9
    """Adam's decay of the gradients' mean"""


class SRGAN(Recipe):
    """Super-resolution in two stages: the squared error of pixels, then a content loss and a discriminator.

    Pictures of the data are what the generator should make; it sees them shrunk. Without --features the second stage is
    the paper's SRGAN-MSE.

    Differences from the paper: pictures are shrunk by means of factor x factor pixels; the step size stays as it is in
    the second stage; and there is no factor of 0.006 at the features of VGG19: --content-weight takes its place.

    Command:
        python examples/data/picture_features.py --data emoji/train.npz --out emoji.keras
        hvdgan train --recipe srgan --data emoji/train.npz --features emoji.keras --nf 16 --blocks 4
            --learning-rate 1e-3 --global-batch-size 16 --stages pixel=600,adversarial=600

    Expect:
        eval/psnr of about 22 dB after the first stage, bicubic enlargement 20.4; at the end sharp edges with a
        checkered pattern, and eval/features of about 0.02, bicubic 0.46. It took 2.3 minutes on two cores.
    """

    Options = SRGANOptions
    ema = ("generator",)
    shows_data = True

    def networks(self) -> dict[str, keras.Model]:
        o, data = self.options, self.data
        if o.factor < 2 or o.factor & (o.factor - 1) or data.image_size % o.factor:
            raise UserError(
                f"--factor {o.factor}: expected a power of two from 2 up that divides the image size, {data.image_size}"
            )
        networks = {
            "generator": super_resolution(factor=o.factor, channels=data.channels, nf=o.nf, blocks=o.blocks),
            "discriminator": picture_discriminator(image_size=data.image_size, channels=data.channels, nf=o.nf),
        }
        return {**networks, "features": _frozen(o.features)} if o.features else networks

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        o = self.options
        return {name: keras.optimizers.Adam(o.learning_rate, o.beta_1) for name in ("generator", "discriminator")}

    def stages(self) -> list[Stage]:
        restore = Update("restore", owns=["generator"], loss=self.restore)
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool)
        return [
            Stage("pixel", self.options.pixel_steps, [restore]),
            Stage("adversarial", self.options.steps, [judge, fool]),
        ]

    def restore(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Equation 4: the squared error of pixels."""
        made = nets.generator(self._shrunk(batch.images))
        return losses.squared_error(batch.images, made), {"psnr": tf.reduce_mean(metrics.psnr(batch.images, made))}

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Equation 2."""
        fake_logits = nets.discriminator(nets.generator(self._shrunk(batch.images)))
        return losses.non_saturating_discriminator(nets.discriminator(batch.images), fake_logits), {}

    def fool(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Equations 3, 5 and 6."""
        made = nets.generator(self._shrunk(batch.images))
        content = losses.squared_error(self._features(nets, batch.images), self._features(nets, made))
        adversarial = losses.non_saturating_generator(nets.discriminator(made))
        loss = self.options.content_weight * content + self.options.adversarial_weight * adversarial
        return loss, {
            "content": content,
            "adversarial": adversarial,
            "psnr": tf.reduce_mean(metrics.psnr(batch.images, made)),
        }

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        """Pictures enlarged bicubically, by the generator, and the true ones, side by side."""
        small = self._shrunk(batch.images)
        return tf.concat([self._enlarged(small), nets.generator(small), batch.images], axis=2)[:32]

    def generate(self, nets: Any, batch: Batch) -> tf.Tensor:
        return nets.generator(self._shrunk(batch.images))

    def evaluate(self, nets: Any, batch: Batch) -> dict[str, tf.Tensor]:
        """Compare held-out pictures with the generator's and with bicubic enlargement (bicubic_...).

        With --features, `features` is the squared error of the frozen network's: small where the details are right.
        """
        small = self._shrunk(batch.images)
        scores = {}
        for prefix, made in (("", nets.generator(small)), ("bicubic_", self._enlarged(small))):
            scores[f"{prefix}psnr"] = metrics.psnr(batch.images, made)
            scores[f"{prefix}ssim"] = metrics.ssim(batch.images, made)
            if self.options.features:
                scores[f"{prefix}features"] = _error(self._features(nets, batch.images), self._features(nets, made))
        return scores

    def _shrunk(self, images: tf.Tensor) -> tf.Tensor:
        # Not tf.image.resize with antialiasing, for which TensorFlow has no kernel on GPUs.
        return tf.nn.avg_pool2d(images, self.options.factor, self.options.factor, "VALID")

    def _enlarged(self, small: tf.Tensor) -> tf.Tensor:
        size = self.data.image_size
        return tf.clip_by_value(tf.image.resize(small, (size, size), "bicubic"), -1.0, 1.0)

    def _features(self, nets: Any, images: tf.Tensor) -> tf.Tensor:
        return nets.features(images) if self.options.features else images


def _error(features: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(features - others), axis=range(1, features.shape.rank))


def _frozen(file: str) -> keras.Model:
    try:
        network = keras.models.load_model(file, compile=False)
    except (OSError, ValueError, TypeError) as e:
        raise UserError(f"--features {file}: expected a network that Keras has saved (.keras): {e}") from None
    network.trainable = False
    return network


RECIPE = SRGAN
