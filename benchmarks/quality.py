"""Measures the quality that recipes reach on the digits at 32 pixels in minutes.

    python benchmarks/quality.py --out results.json              all recipes
    python benchmarks/quality.py dcgan sngan --ranks 2           some, under horovodrun

completion and vae_gan are evaluated on held-out digits, relative to the mean of the training images. For the others, a
small classifier trained on real digits looks at 500 samples: it must find all classes, with high probabilities.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.data import Samples, hold_out, open_source
from hvdgan.recipe import DataSpec, measures
from hvdgan.recipe.draws import Random
from hvdgan.recipes.completion import Completion, CompletionOptions

COMMANDS = {
    "completion": "--nf 16 --learning-rate 5e-4 --stages completion=600,discriminator=100,joint=600",
    "vae_gan": "--nf 16 --latent-size 32 --steps 1200",
    "dcgan": "--nf 32 --learning-rate 5e-4 --steps 1600",
    "wgan_gp": "--nf 32 --n-critic 3 --learning-rate 5e-4 --steps 4000",
    "sngan": "--nf 8 --d-updates 1 --learning-rate 5e-4 --steps 2000",
    "stylegan2": "--nf 8 --latent-size 64 --global-batch-size 32 --steps 3000",
}
SAMPLES = 500


def main() -> None:
    """Train, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"some of {', '.join(COMMANDS)}; default: all")
    parser.add_argument("--ranks", type=int, default=1, help="number of ranks, started by horovodrun if more than one")
    parser.add_argument("--runs", type=Path, help="folder for the runs; default: a temporary one")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    given = parser.parse_args()
    if unknown := set(given.recipes) - COMMANDS.keys():
        parser.error(f"no recipe {', '.join(sorted(unknown))}; expected some of {', '.join(COMMANDS)}")
    runs = given.runs or Path(tempfile.mkdtemp(prefix="hvdgan-quality-"))
    results = {}
    for recipe in given.recipes or COMMANDS:
        run_dir = runs / recipe
        seconds = train(recipe, run_dir, given.ranks)
        results[recipe] = {"minutes": round(seconds / 60, 2), "command": COMMANDS[recipe], **measure(recipe, run_dir)}
        print(recipe, json.dumps(results[recipe]), flush=True)
        if given.out:
            given.out.write_text(json.dumps(results, indent=1) + "\n")
    if failed := [recipe for recipe, figures in results.items() if not figures["reached"]]:
        sys.exit(f"not reached: {', '.join(failed)}")


def train(recipe: str, run_dir: Path, ranks: int) -> float:
    """Run the training command; returns its wall-clock seconds."""
    launcher = [] if ranks == 1 else ["horovodrun", "-np", str(ranks)]
    command = [*launcher, sys.executable, "-m", "hvdgan.train", "--recipe", recipe, "--data", "digits"]
    begin = time.perf_counter()
    subprocess.run([*command, *COMMANDS[recipe].split(), "--run-dir", str(run_dir)], check=True)
    return time.perf_counter() - begin


def measure(recipe: str, run_dir: Path) -> dict[str, object]:
    """Measure a run, and compare its figures with the goals."""
    if recipe in ("completion", "vae_gan"):
        reached = last_evaluation(run_dir)
        name = "eval/hole_psnr" if recipe == "completion" else "eval/psnr"
        mean = psnr_of_the_mean(holes=recipe == "completion")
        return {
            **reached,
            "mean_image_psnr": mean,
            "gain_db": reached[name] - mean,
            "reached": reached[name] >= mean + 4,
        }
    return judge(samples(run_dir))


def last_evaluation(run_dir: Path) -> dict[str, float]:
    """Read the metrics of the held-out digits at the end of a run."""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if any(name.startswith("eval/") for name in record)][-1]
    return {name: value for name, value in last.items() if name.startswith("eval/")}


def psnr_of_the_mean(*, holes: bool) -> float:
    """Compute the PSNR in dB of the mean training digit against held-out digits, inside their holes if `holes`."""
    config = Config()
    training, held_out = hold_out(open_source(config), 0.05)
    assert held_out is not None
    mean = to_float(training).mean(axis=0, keepdims=True)
    images = to_float(held_out.samples)
    recipe = Completion(CompletionOptions(), DataSpec(training.layout.seen, len(training)))
    values = []
    for number, first in enumerate(range(0, len(images), config.global_batch_size)):
        random = Random(config.seed, tf.constant(-2 - number, tf.int64), 0, config.global_batch_size)
        batch = images[first : first + config.global_batch_size]
        mask = recipe.draw(random.scoped("draw"))["mask"][: len(batch)] if holes else None
        values.append(measures.psnr(tf.constant(batch), tf.constant(np.repeat(mean, len(batch), axis=0)), mask).numpy())
    return float(np.concatenate(values).mean())


def to_float(source: Samples) -> np.ndarray:
    """Read all images, (N, H, W, 1) float32 in [-1, 1]."""
    return source.fetch_batch(np.arange(len(source))).astype(np.float32) / 127.5 - 1


def samples(run_dir: Path) -> np.ndarray:
    """Draw samples with hvdgan.sample, (N, H, W, 1) float32 in [-1, 1]; also writes grid.png into the run folder."""
    command = [sys.executable, "-m", "hvdgan.sample", str(run_dir)]
    subprocess.run([*command, "--samples", "64", "--out", str(run_dir / "grid.png"), "--overwrite"], check=True)
    folder = run_dir / "drawn"
    subprocess.run([*command, "--samples", str(SAMPLES), "--separate", "--out", str(folder), "--overwrite"], check=True)
    images = [np.asarray(Image.open(path), np.float32) for path in sorted(folder.glob("*.png"))]
    return np.stack(images)[..., None] / 127.5 - 1


def judge(images: np.ndarray) -> dict[str, object]:
    """Classify samples."""
    network, accuracy = classifier()
    probabilities = network.predict(images, verbose=0)
    shares = np.bincount(probabilities.argmax(axis=1), minlength=10) / len(images)
    confidence = float(probabilities.max(axis=1).mean())
    reached = accuracy >= 0.97 and shares.min() > 0 and shares.max() <= 0.3 and confidence >= 0.8
    return {
        "classifier_accuracy": accuracy,
        "classes_found": int((shares > 0).sum()),
        "largest_share": float(shares.max()),
        "smallest_share": float(shares.min()),
        "mean_top_probability": confidence,
        "reached": bool(reached),
    }


def classifier(features: int = 0, data: str = "digits", epochs: int = 15) -> tuple[keras.Model, float]:
    """Train a small convolutional network on 4/5 of some digits; returns it with its accuracy on the rest.

    Args:
        features: units of a layer of that name before the classes; 0: there is no such layer.
        data: grey digits of 32 x 32 pixels with labels, as for --data.
        epochs: number of times that each digit is seen.
    """
    keras.utils.set_random_seed(0)
    source = open_source(Config(data=data))
    training, held_out = hold_out(source, 0.2)
    assert held_out is not None
    network = keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Conv2D(64, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            *([layers.Dense(features, activation="relu", name="features")] if features else []),
            layers.Dense(10, activation="softmax"),
        ]
    )
    network.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    network.fit(to_float(training), training.labels, batch_size=32, epochs=epochs, verbose=0)
    return network, float(network.evaluate(to_float(held_out.samples), held_out.samples.labels, verbose=0)[1])


if __name__ == "__main__":
    main()
