"""Measures the quality that the recipe downscale reaches on synthetic fields of 64 x 64 pixels in 15 minutes.

    python benchmarks/downscale_quality.py --out results.json --picture downscale.png

It makes the fields of random_fields.py, trains, and draws an ensemble for inputs that training has not seen by
hvdgan.sample. The goal: the mean power spectrum of the samples differs by at most 10 % from that of the true fields, at
each wavenumber up to half the Nyquist frequency and in each channel, where bicubic interpolation fails. The CRPS of the
ensemble is compared with bicubic interpolation's mean absolute error, which is its CRPS, and with the best possible
one, which the known distribution of the fields gives. A flat rank histogram shows that the ensemble has the right
spread.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import zoom

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "data"))
import random_fields

TRAINING = "--nf 8 --periodic both --global-batch-size 16 --steps 4000 --ema-decay 0.998"
DATA = "--constants orography --values standard --input-values standard --constant-values standard"
SIZE, FACTOR, SAMPLES = 64, 4, 5000
INPUTS, MEMBERS = 200, 8
TEST = 1_000_000
"""number of the first test field: none of the training fields"""
GOAL = 0.1


def main() -> None:
    """Make the data, train, draw, measure, and compare with the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder for data and run; default: a temporary one")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--picture", type=Path, help="PNG of fields and spectra")
    given = parser.parse_args()
    folder = given.runs or Path(tempfile.mkdtemp(prefix="hvdgan-downscale-"))
    folder.mkdir(parents=True, exist_ok=True)
    heights, test = make_data(folder)
    figures = train(folder, given.seed)
    inputs, truth, members = draw(folder, test)
    bicubic = np.stack([interpolated(each) for each in inputs])
    figures |= measure(truth, members, bicubic, heights)
    print(json.dumps(figures, indent=1))
    if given.out:
        given.out.write_text(json.dumps(figures, indent=1) + "\n")
    if given.picture:
        draw_picture(given.picture, inputs, truth, members, bicubic)
    if not figures["reached"]:
        sys.exit("not reached")


def make_data(folder: Path) -> tuple[np.ndarray, Path]:
    """Write the fields to train on and those to test with; returns the orography and the path of the test fields."""
    heights = random_fields.orography(SIZE)
    for name, num, first in (("fields.npz", SAMPLES, 0), ("test.npz", INPUTS, TEST)):
        images = random_fields.fields(num, heights, first=first)
        inputs = random_fields.coarsened(images, FACTOR)
        np.savez(folder / name, images=images, inputs=inputs, orography=heights)
    return heights, folder / "test.npz"


def train(folder: Path, seed: int) -> dict[str, object]:
    """Run the training command; returns its time."""
    data = f"--recipe downscale --data {folder / 'fields.npz'} {DATA}"
    flags = f"{data} {TRAINING} --seed {seed} --run-dir {folder / 'run'}"
    begin, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "hvdgan.train", *flags.split()], check=True)
    minutes, done = (time.perf_counter() - begin) / 60, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = (done.ru_utime + done.ru_stime - cpu.ru_utime - cpu.ru_stime) / 60
    return {"command": TRAINING, "minutes": round(minutes, 2), "cpu_minutes": round(used, 2)}


def draw(folder: Path, test: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw ensembles by hvdgan.sample; returns inputs (N, h, h, C), true fields and members (M, N, H, H, C)."""
    out = folder / "drawn.npz"
    flags = f"--data {test} --samples {INPUTS * MEMBERS} --members {MEMBERS} --batch-size 40 --out {out} --overwrite"
    subprocess.run([sys.executable, "-m", "hvdgan.sample", str(folder / "run"), *flags.split()], check=True)
    with np.load(out) as drawn, np.load(test) as fields:
        index = drawn["index"].reshape(INPUTS, MEMBERS)
        samples = drawn["samples"].reshape(INPUTS, MEMBERS, *drawn["samples"].shape[1:])
        assert (index == index[:, :1]).all()
        return fields["inputs"][index[:, 0]], fields["images"][index[:, 0]], np.moveaxis(samples, 1, 0)


def interpolated(field: np.ndarray) -> np.ndarray:
    """Bicubic interpolation of a field (h, w, C) that is periodic, as these fields are, to (H, W, C)."""
    return zoom(field, (FACTOR, FACTOR, 1), order=3, mode="grid-wrap", grid_mode=True)


def measure(truth: np.ndarray, members: np.ndarray, bicubic: np.ndarray, heights: np.ndarray) -> dict[str, object]:
    """Compare samples and interpolation with the true fields.

    Args:
        truth: true fields, (N, H, H, C).
        members: ensembles, (M, N, H, H, C).
        bicubic: interpolated inputs, (N, H, H, C).
        heights: orography, (H, H).
    """
    half = SIZE // 4  # half the Nyquist frequency
    true = spectra(truth)
    ratios = {"gan": np.mean([spectra(each) for each in members], axis=0) / true, "bicubic": spectra(bicubic) / true}
    worst = {name: float(np.abs(ratio[:half] - 1).max()) for name, ratio in ratios.items()}
    best_crps, best_rmse = best_possible(heights)
    spread = np.sqrt(members.var(axis=0, ddof=1).mean())
    return {
        "spectrum_ratios": {name: np.round(ratio.T, 3).tolist() for name, ratio in ratios.items()},
        "largest_difference_to_half_nyquist": worst,
        "crps": crps(truth, members),
        "bicubic_mae": float(np.abs(bicubic - truth).mean()),
        "best_possible_crps": best_crps,
        "rmse_of_mean": rmse(members.mean(axis=0), truth),
        "rmse_of_bicubic": rmse(bicubic, truth),
        "best_possible_rmse_of_mean": best_rmse * float(np.sqrt(1 + 1 / len(members))),
        "spread": float(spread),
        "rank_histogram": np.round(rank_histogram(truth, members), 3).tolist(),
        "reached": worst["gan"] <= GOAL < worst["bicubic"],
    }


def spectra(images: np.ndarray) -> np.ndarray:
    """Mean power over samples by wavenumber and channel, (H / 2, C)."""
    return random_fields.radial(random_fields.spectrum(images)).mean(axis=0)


def rank_histogram(truth: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Frequencies of the truth's rank among the members over their mean, (M + 1,); all are 1 for the right spread."""
    ranks = np.bincount((members < truth).sum(axis=0).ravel(), minlength=len(members) + 1)
    return ranks / ranks.mean()


def crps(truth: np.ndarray, members: np.ndarray) -> float:
    """Fair continuous ranked probability score (Ferro 2014), the mean over all pixels."""
    count = len(members)
    apart = sum(np.abs(one - other).mean() for one in members for other in members) / (count * (count - 1))
    return float(np.abs(members - truth).mean() - apart / 2)


def rmse(images: np.ndarray, others: np.ndarray) -> float:
    """Root of the mean squared difference."""
    return float(np.sqrt(np.mean(np.square(images - others))))


def best_possible(heights: np.ndarray) -> tuple[float, float]:
    """CRPS of the true distribution of the fields, given their inputs, and the RMSE of its mean.

    The fields x are Gaussian with a covariance S, and the inputs are y = B x. So x given y is Gaussian, too, with the
    covariance S - S B' (B S B')^-1 B S. The CRPS of a Gaussian of deviation d is d / sqrt(pi) in the mean. Another
    channel of the same correlation in each mode adds no knowledge.
    """
    pixels = heights.size
    by_shift = np.fft.ifft2(random_fields.power_law(SIZE)).real * pixels
    shifts = (np.arange(SIZE)[:, None] - np.arange(SIZE)) % SIZE
    covariance = by_shift[shifts[:, None, :, None], shifts[None, :, None, :]].reshape(pixels, pixels)
    factors = random_fields.multiplier(heights).ravel()
    covariance *= factors[:, None] * factors
    blocks = random_fields.coarsened(np.eye(pixels).reshape(pixels, SIZE, SIZE, 1), FACTOR).reshape(pixels, -1).T
    seen = blocks @ covariance
    variance = np.diag(covariance) - (seen * np.linalg.solve(seen @ blocks.T, seen)).sum(axis=0)
    return float(np.sqrt(variance).mean() / np.sqrt(np.pi)), float(np.sqrt(variance.mean()))


def draw_picture(
    path: Path, inputs: np.ndarray, truth: np.ndarray, members: np.ndarray, bicubic: np.ndarray, *, rows: int = 3
) -> None:
    """Draw the first channel of some fields, one row for each, and below them spectra and the rank histogram."""
    figure = plt.figure(figsize=(15.5, 2.3 * rows + 4.2), layout="constrained")
    fields, graphs = figure.subfigures(2, 1, height_ratios=[2.3 * rows, 4.2])
    axes = fields.subplots(rows, 7)
    titles = ["input", "truth", "bicubic", "member 1", "member 2", "member 3", "mean of 8 members"]
    for row in range(rows):
        shown = [inputs[row], truth[row], bicubic[row], *members[:3, row], members[:, row].mean(axis=0)]
        limit = np.abs(truth[row][..., 0]).max()
        for axis, field, title in zip(axes[row], shown, titles, strict=True):
            picture = axis.imshow(field[..., 0], cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
            axis.set_axis_off()
            if not row:
                axis.set_title(title)
        fields.colorbar(picture, ax=list(axes[row]), shrink=0.9)
    left, middle, right = graphs.subplots(1, 3)
    waves = np.arange(1, SIZE // 2 + 1)
    true = spectra(truth)[:, 0]
    named = {"bicubic": spectra(bicubic)[:, 0], "samples": np.mean([spectra(m)[:, 0] for m in members], axis=0)}
    left.loglog(waves, true, "k", label="truth")
    middle.axhspan(1 - GOAL, 1 + GOAL, color="0.9")
    for name, power in named.items():
        left.loglog(waves, np.maximum(power, true.min() / 10), label=name)
        middle.plot(waves, power / true, label=name)
    for axis, title in ((left, "power spectrum"), (middle, "power / power of the truth")):
        axis.axvline(SIZE / 4, color="0.5", linestyle=":", label="half the Nyquist frequency")
        axis.set(title=title, xlabel="wavenumber (waves per domain)")
        axis.legend()
    middle.set_ylim(0, 2)
    frequencies = rank_histogram(truth, members)
    right.bar(range(len(frequencies)), frequencies)
    right.axhline(1, color="k", linewidth=0.8)
    right.set(title="rank of the truth among 8 members", xlabel="members below the truth", ylabel="frequency / mean")
    figure.savefig(path, dpi=90)
    plt.close(figure)


if __name__ == "__main__":
    main()
