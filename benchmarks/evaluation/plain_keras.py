"""Trains a DCGAN in a plain Keras loop, and draws samples from time to time, for benchmarks/evaluation/recipes.py.

The networks are hvdgan's as Keras builds them; everything else is what the recipe dcgan says, written without hvdgan.
It writes samples-STEP.npy into its folder, and a line of JSON with `step` and `seconds` (of training alone) for each.
"""

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from hvdgan.networks.dcgan import dcgan_discriminator, dcgan_generator

LATENT_SIZE, BETA_1 = 100, 0.5
_BATCH = 64


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help=".npz with images (N, H, W, C) uint8")
    parser.add_argument("--out", type=Path, required=True, help="folder for samples and times")
    for name, default in (("nf", 64), ("steps", 1000), ("every", 250), ("batch-size", 64), ("num", 5000), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(given.seed)
    with np.load(given.data) as file:
        images = file["images"]
    trainer, spent = Trainer(images.shape[1], images.shape[-1], given.nf, given.learning_rate), 0.0
    dataset = batches(images, given.batch_size, given.seed)
    steps = enumerate(dataset.take(given.steps), start=1)
    trainer.train_step.get_concrete_function(dataset.element_spec)  # hvdgan traces before its first step, too
    with (given.out / "times.jsonl").open("w") as times:
        begin = time.perf_counter()
        for step, pixels in steps:
            losses = trainer.train_step(pixels)
            if step % given.every == 0 or step == given.steps:
                d_loss, g_loss = (float(loss) for loss in losses)
                spent += time.perf_counter() - begin
                print(f"step {step}/{given.steps} {d_loss:.3f} {g_loss:.3f} {spent:.1f} s", flush=True)
                np.save(given.out / f"samples-{step}.npy", trainer.samples(given.num, given.seed))
                times.write(json.dumps({"step": step, "seconds": spent}) + "\n")
                begin = time.perf_counter()


def batches(images: np.ndarray, batch_size: int, seed: int) -> tf.data.Dataset:
    """Shuffled batches of pixels without end."""
    dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(len(images), seed=seed).repeat()
    return dataset.batch(batch_size, drop_remainder=True).prefetch(2)


class Trainer:
    """Both networks with their optimizers."""

    def __init__(self, image_size: int, channels: int, nf: int, learning_rate: float) -> None:
        self.generator = dcgan_generator(image_size=image_size, channels=channels, latent_size=LATENT_SIZE, nf=nf)
        self.discriminator = dcgan_discriminator(image_size=image_size, channels=channels, nf=nf)
        self.g_optimizer = keras.optimizers.Adam(learning_rate, beta_1=BETA_1)
        self.d_optimizer = keras.optimizers.Adam(learning_rate, beta_1=BETA_1)
        self.g_optimizer.build(self.generator.trainable_variables)
        self.d_optimizer.build(self.discriminator.trainable_variables)

    @tf.function
    def train_step(self, pixels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Update the discriminator, then the generator; pixels (B, H, W, C) uint8."""
        images = tf.cast(pixels, tf.float32) / 127.5 - 1.0
        latents = tf.random.normal((tf.shape(images)[0], LATENT_SIZE))
        with tf.GradientTape() as tape:
            real_logits = self.discriminator(images, training=True)
            fake_logits = self.discriminator(self.generator(latents, training=True), training=True)
            d_loss = tf.reduce_mean(tf.nn.softplus(-real_logits)) + tf.reduce_mean(tf.nn.softplus(fake_logits))
        weights = self.discriminator.trainable_variables
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            fakes = self.generator(latents, training=True)
            g_loss = tf.reduce_mean(tf.nn.softplus(-self.discriminator(fakes, training=True)))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        return d_loss, g_loss

    def samples(self, num: int, seed: int) -> np.ndarray:
        """Draw samples, (num, H, W, C) uint8."""
        latents = np.random.default_rng(seed).standard_normal((num, LATENT_SIZE), np.float32)
        drawn = self.generator.predict(latents, batch_size=_BATCH, verbose=0)
        return np.clip(np.rint((drawn + 1) * 127.5), 0, 255).astype(np.uint8)


if __name__ == "__main__":
    main()
