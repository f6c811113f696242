"""Compares the formulas of hvdgan/evaluation and hvdgan/recipe/measures.py with published packages on the same numbers.

    python -m venv .venv-formulas
    .venv-formulas/bin/pip install -r benchmarks/peers/formulas.txt
    python benchmarks/metrics.py --python .venv-formulas/bin/python

The packages need PyTorch, so they have an environment of their own (6 GB). The features are random: no network is run.
The command prints a table and fails if a relative difference is above 1e-5. It leaves out packages that are missing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from hvdgan.evaluation.class_score import ClassScore
from hvdgan.evaluation.fields import FieldSums, field_distances
from hvdgan.evaluation.frechet import frechet_distance
from hvdgan.evaluation.kernel import kid
from hvdgan.evaluation.moments import Moments
from hvdgan.evaluation.neighbours import neighbours
from hvdgan.evaluation.sliced import sliced_wasserstein

GOAL = 1e-5
PEERS = Path(__file__).parent / "peers" / "formulas.py"
BATCH = 70
"""samples that are added at a time"""
EDGE = 5
"""pixels at each edge of an image whose SSIM window is cut off"""


def main() -> int:
    """Make the numbers, compute the formulas on both sides, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="Python of the environment of the packages")
    parser.add_argument("--samples", type=int, default=1000, help="number of feature vectors of each kind")
    parser.add_argument("--dimensions", type=int, default=256, help="length of a feature vector")
    parser.add_argument("--seed", type=int, default=0, help="seed of the numbers")
    given = parser.parse_args()
    arrays = numbers(given.samples, given.dimensions, given.seed)
    with tempfile.TemporaryDirectory(prefix="hvdgan-formulas-") as folder:
        inputs, out = Path(folder) / "inputs.npz", Path(folder) / "values.json"
        np.savez(inputs, **arrays)
        subprocess.run([given.python, PEERS, inputs, out], stdout=subprocess.DEVNULL, check=True)  # prdc prints
        found = json.loads(out.read_text())
    ours = formulas(arrays)
    print("| formula | hvdgan | package | its value | relative difference |\n|---|---|---|---|---|")
    largest = 0.0
    for name, value in ours.items():
        for package, other in found["values"].get(name, {}).items():
            difference = abs(value - other) / abs(other)
            largest = max(largest, difference)
            print(f"| {name} | {value:.9g} | {package} | {other:.9g} | {difference:.1e} |")
    if found["missing"]:
        print(f"left out, because they are not installed: {', '.join(found['missing'])}")
    print(f"largest relative difference: {largest:.1e} (goal: {GOAL:g}: {'reached' if largest <= GOAL else 'MISSED'})")
    return int(largest > GOAL)


def numbers(samples: int, dimensions: int, seed: int) -> dict[str, np.ndarray]:
    """Random features, logits, projections, images and ensembles, all float32 but the projections and edges."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(dimensions, dimensions)) / np.sqrt(dimensions)
    # Like a network's features: correlated, with a lower bound, and most of the variance in few directions.
    scales = np.arange(1, dimensions + 1) ** -0.5
    fake, real = (np.maximum(rng.normal(size=(samples, dimensions)) * scales @ mixing, -0.2) for _ in range(2))
    images = rng.uniform(-1, 1, (8, 40, 48, 3))
    arrays = {
        "fake": 1.05 * fake + 0.02,
        "real": real,
        "few_fake": fake[: dimensions // 2] * 1.05,
        "few_real": real[: dimensions // 2],
        "logits": rng.normal(size=(samples, 10)) * 3,
        "images": images,
        "others": np.clip(images + 0.3 * rng.normal(size=images.shape), -1, 1),
        "members": images + 0.4 * rng.normal(size=(8, *images.shape)),
    }
    arrays = {name: each.astype(np.float32) for name, each in arrays.items()}
    arrays["projections"], arrays["few_projections"] = rng.normal(size=(samples, 16)), rng.normal(size=(601, 16)) + 0.1
    arrays["edges"] = np.linspace(-1, 1, 65)
    return arrays


def formulas(arrays: dict[str, np.ndarray]) -> dict[str, float]:
    """The values of hvdgan by the name of the formula; sums are made in batches."""
    fake, real = arrays["fake"], arrays["real"]
    values = {
        "Fréchet distance": frechet(fake, real),
        "Fréchet distance, singular": frechet(arrays["few_fake"], arrays["few_real"]),
        "kernel distance": kid(fake, real, seed=0, subsets=1, subset_size=len(fake))[0],
    }
    values["Inception score"], values["Inception score, deviation"] = inception_score(arrays["logits"], 10)
    values["Inception score, one split"] = inception_score(arrays["logits"], 1)[0]
    values |= neighbours(fake, real)
    values["sliced Wasserstein distance"] = sliced_wasserstein(arrays["few_projections"], arrays["projections"])
    sums = []
    for samples in (arrays["others"], arrays["images"]):
        sums.append(FieldSums(samples.shape[1:], np.stack([arrays["edges"]] * samples.shape[-1])))
        sums[-1].add(samples)
    values["histogram distance"] = field_distances(*sums)["histogram"]
    return values | of_pairs(arrays)


def frechet(fake: np.ndarray, real: np.ndarray) -> float:
    """The distance of two sets of features."""
    moments = []
    for features in (fake, real):
        moments.append(Moments(real[0]))
        for first in range(0, len(features), BATCH):
            moments[-1].add(features[first : first + BATCH])
    (one, other) = moments
    return frechet_distance(one.mean, one.covariance, other.mean, other.covariance)


def inception_score(logits: np.ndarray, splits: int) -> tuple[float, float]:
    """Mean and deviation over the splits."""
    powers = np.exp(logits.astype(np.float64))
    score = ClassScore(logits.shape[1], len(logits), splits)
    for first in range(0, len(logits), BATCH):
        some = powers[first : first + BATCH]
        score.add(some / some.sum(axis=1, keepdims=True), np.arange(first, first + len(some)))
    return score.value()


def of_pairs(arrays: dict[str, np.ndarray]) -> dict[str, float]:
    """The measures of images and ensembles, which TensorFlow computes in float32."""
    import tensorflow as tf

    from hvdgan.recipe import measures

    images, others = (tf.constant(arrays[name]) for name in ("images", "others"))
    inside = np.zeros((*images.shape[:3], 1), np.float32)
    inside[:, EDGE:-EDGE, EDGE:-EDGE] = 1
    found = {
        "PSNR": measures.psnr(images, others),
        "SSIM": measures.ssim(images, others),
        "SSIM without edges": measures.ssim(images, others, tf.constant(inside)),
        "CRPS": measures.fair_crps(images, tf.constant(arrays["members"])),
    }
    return {name: float(np.mean(each, dtype=np.float64)) for name, each in found.items()}


if __name__ == "__main__":
    sys.exit(main())
