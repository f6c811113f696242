"""Trains an unconditional recipe's networks in a plain Keras loop, for benchmarks/evaluation/recipes.py.

    python benchmarks/evaluation/plain_keras.py wgan_gp --data mnist/train.npz --out plain --nf 16 --steps 750

The networks are hvdgan's as Keras builds them, and the options are the recipe's; everything else is what the recipe
does, written without hvdgan. It draws samples with averaged weights from time to time, writes samples-STEP.npy into its
folder, and a line of JSON with `step` and `seconds` (of training alone) for each.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from plain_loops.dcgan import PlainDCGAN
from plain_loops.loop import Loop
from plain_loops.sngan import PlainSNGAN
from plain_loops.stylegan2 import PlainStyleGAN2
from plain_loops.vae_gan import PlainVAEGAN
from plain_loops.wgan_gp import PlainWGANGP

from hvdgan.recipe import DataSpec

LOOPS: dict[str, type[Loop]] = {
    "dcgan": PlainDCGAN,
    "wgan_gp": PlainWGANGP,
    "sngan": PlainSNGAN,
    "stylegan2": PlainStyleGAN2,
    "vae_gan": PlainVAEGAN,
}


def main() -> None:
    """Train."""
    given, options = parse(sys.argv[1:])
    given.out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(given.seed)
    with np.load(given.data) as file:
        images = file["images"]
    kind = LOOPS[given.loop]
    networks = kind.recipe(options, DataSpec(images.shape[1:], len(images))).networks()
    train(kind(networks, options, given.ema_decay), batches(images, given.batch_size, given.seed), given)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, object]:
    """The settings of the loop, and the options of its recipe, which have flags of the same names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("--data", type=Path, required=True, help=".npz with images (N, H, W, C) uint8")
    parser.add_argument("--out", type=Path, required=True, help="folder for samples and times")
    for name, default in (("steps", 1000), ("every", 250), ("batch-size", 64), ("num", 5000), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ema-decay", type=float, default=0.995, help="decay of averaged weights; 0: no average")
    given, flags = parser.parse_known_args(arguments)
    recipe = argparse.ArgumentParser(prog=f"plain_keras.py {given.loop}")
    for field in dataclasses.fields(LOOPS[given.loop].recipe.Options):
        recipe.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    return given, LOOPS[given.loop].recipe.Options(**vars(recipe.parse_args(flags)))


def batches(images: np.ndarray, batch_size: int, seed: int) -> tf.data.Dataset:
    """Shuffled batches of pixels without end."""
    pixels = tf.constant(images)
    places = tf.data.Dataset.range(len(images)).shuffle(len(images), seed=seed).repeat()
    return places.batch(batch_size, drop_remainder=True).map(lambda chosen: tf.gather(pixels, chosen)).prefetch(2)


def train(loop: Loop, dataset: tf.data.Dataset, given: argparse.Namespace) -> None:
    """Train, and write samples and the seconds until each."""
    # hvdgan traces all graphs before its first step, too.
    kinds = {loop.due(step) for step in range(given.steps)}
    traced = {due: loop.train_step.get_concrete_function(dataset.element_spec, *due) for due in kinds}
    spent, steps = 0.0, enumerate(dataset.take(given.steps), start=1)
    with (given.out / "times.jsonl").open("w") as times:
        begin = time.perf_counter()
        for step, pixels in steps:
            losses = traced[loop.due(step - 1)](pixels)
            if step % given.every == 0 or step == given.steps:
                shown = " ".join(f"{float(loss):.3f}" for loss in losses)
                spent += time.perf_counter() - begin
                print(f"step {step}/{given.steps} {shown} {spent:.1f} s", flush=True)
                np.save(given.out / f"samples-{step}.npy", loop.samples(given.num))
                times.write(json.dumps({"step": step, "seconds": spent}) + "\n")
                times.flush()
                begin = time.perf_counter()


if __name__ == "__main__":
    main()
