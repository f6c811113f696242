"""Measures the quality that recipes reach on the digits at 32 pixels in minutes.

    python benchmarks/quality.py --out results.json              all recipes
    python benchmarks/quality.py dcgan sngan --runs runs         some

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

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "data"))
from digits_features import classifier

COMMANDS = {
    "completion": "--nf 16 --learning-rate 5e-4 --stages completion=600,discriminator=100,joint=600",
    "vae_gan": "--nf 16 --latent-size 32 --steps 1200",
    "dcgan": "--nf 32 --learning-rate 5e-4 --steps 1600",
    "wgan_gp": "--nf 32 --n-critic 3 --learning-rate 5e-4 --steps 4000",
    "sngan": "--nf 8 --d-updates 1 --learning-rate 5e-4 --steps 2000",
    "stylegan2": "--nf 8 --latent-size 64 --global-batch-size 32 --steps 3000",
}
OF_THE_MEAN = {"completion": ("eval/hole_psnr", 10.9), "vae_gan": ("eval/psnr", 12.5)}
"""the metric of held-out digits, and its value in dB of the mean training digit, which a recipe must exceed by 4"""
SAMPLES = 500


def main() -> None:
    """Train, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"some of {', '.join(COMMANDS)}; default: all")
    parser.add_argument("--runs", type=Path, help="folder for the runs; default: a temporary one")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    given = parser.parse_args()
    if unknown := set(given.recipes) - COMMANDS.keys():
        parser.error(f"no recipe {', '.join(sorted(unknown))}; expected some of {', '.join(COMMANDS)}")
    runs = given.runs or Path(tempfile.mkdtemp(prefix="hvdgan-quality-"))
    results = {}
    for recipe in given.recipes or COMMANDS:
        command = ["train", "--recipe", recipe, "--data", "digits", *COMMANDS[recipe].split()]
        begin = time.perf_counter()
        hvdgan(*command, "--run-dir", runs / recipe)
        minutes = (time.perf_counter() - begin) / 60
        results[recipe] = {"minutes": round(minutes, 2), "command": COMMANDS[recipe], **measure(recipe, runs / recipe)}
        print(recipe, json.dumps(results[recipe]), flush=True)
        if given.out:
            given.out.write_text(json.dumps(results, indent=1) + "\n")
    if failed := [recipe for recipe, figures in results.items() if not figures["reached"]]:
        sys.exit(f"not reached: {', '.join(failed)}")


def hvdgan(*words: object) -> None:
    """Run a command of hvdgan."""
    subprocess.run([sys.executable, "-m", f"hvdgan.{words[0]}", *map(str, words[1:])], check=True)


def measure(recipe: str, run_dir: Path) -> dict[str, object]:
    """Measure a run, and compare its figures with the goals."""
    if recipe not in OF_THE_MEAN:
        return judge(samples(run_dir))
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if any(name.startswith("eval/") for name in record)][-1]
    name, of_the_mean = OF_THE_MEAN[recipe]
    found = {key: value for key, value in last.items() if key.startswith("eval/")}
    return {**found, "reached": last[name] >= of_the_mean + 4}


def samples(run_dir: Path) -> np.ndarray:
    """Draw samples with hvdgan.sample, (N, H, W, 1) float32 in [-1, 1]; also writes grid.png into the run folder."""
    folder = run_dir / "drawn"
    hvdgan("sample", run_dir, "--samples", 64, "--out", run_dir / "grid.png", "--overwrite")
    hvdgan("sample", run_dir, "--samples", SAMPLES, "--separate", "--out", folder, "--overwrite")
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


if __name__ == "__main__":
    main()
