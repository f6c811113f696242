"""Measures whether the distances mean something: how real pictures that were made worse differ from real ones.

    python benchmarks/datasets.py mnist --download packages --out mnist
    python benchmarks/datasets.py emoji --download packages --out emoji
    python benchmarks/digits_features.py --data mnist/train.npz --epochs 3 --out mnist.keras
    python benchmarks/evaluation/meaning.py --data mnist/train.npz --others mnist/test.npz --features mnist.keras
    python benchmarks/evaluation/meaning.py --data emoji/train.npz --num 150

The real set is three quarters of --data. The other quarter gives three draws of --num pictures: the noise floor. The
worse sets are made of --others, other real pictures, by default of that quarter. It fails unless each of them is worse
than all draws, in the distances that can show it.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from comparing import COLUMNS, Comparing, table
from scipy.ndimage import gaussian_filter

DRAWS = 3
RISING = ["frechet", "kid", "histogram", "spectrum", "sliced_wasserstein"]
FALLING = ["recall", "coverage"]
"""parts of 1 that a worse set lowers; precision and density may rise, if all its samples are typical"""
SHOWN_BY = {
    "half of the classes": ["frechet", "kid", "recall", "coverage", "sliced_wasserstein"],
    "blurred, 1 pixel": ["frechet", "kid", "histogram", "spectrum", "sliced_wasserstein"],
    "blurred, 2 pixels": [*RISING, *FALLING],
    "one picture repeated": [*RISING, *FALLING],
}
"""distances that must show what is wrong with a set; all pixels together hardly tell classes apart, and pictures that
are a little blurred may still cover the real ones"""


def main() -> None:
    """Compare, print a table, and check the order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help=".npz of pictures with labels")
    parser.add_argument("--others", type=Path, help=".npz of other real pictures with labels")
    parser.add_argument("--features", default="none", help="features as for --eval-features")
    parser.add_argument("--num", type=int, default=5000, help="number of pictures of each set")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    given = parser.parse_args()
    rows = measure(given.data, given.others, given.features, given.num)
    print(table(rows, [*COLUMNS, "sliced_wasserstein", "channel_correlation"]))
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    if wrong := unexpected(rows):
        sys.exit(f"not as expected: {'; '.join(wrong)}")


def measure(data: Path, others: Path | None, features: str, num: int) -> dict[str, dict[str, float]]:
    """The distances of each set from the real one, by its name."""
    images, labels = _read(data)
    order = np.random.default_rng(0).permutation(len(images))
    rest = order[: len(images) // 4]
    worse_from = (images[rest], labels[rest]) if others is None else _read(others)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        np.save(folder / "reals.npy", images[order[len(rest) :]])
        comparing = Comparing(folder / "reals.npy", features)
        sets = {f"real, draw {draw + 1}": images[_draw(rest, num, draw)] for draw in range(DRAWS)}
        return {name: comparing(each, folder) for name, each in [*sets.items(), *worse(*worse_from, num)]}


def worse(images: np.ndarray, labels: np.ndarray, num: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield sets of pictures by name: one as it is, and worse ones."""
    everything = np.arange(len(images))
    some = images[_draw(everything, num, 0)]
    yield "real, of --others", some
    classes = labels.max() + 1
    yield "without one class", images[_draw(everything[labels > 0], num, 0)]
    yield "half of the classes", images[_draw(everything[labels < classes // 2], num, 0)]
    for sigma, name in ((0.5, "blurred, 0.5 pixels"), (1, "blurred, 1 pixel"), (2, "blurred, 2 pixels")):
        smooth = gaussian_filter(some.astype(np.float32), (0, sigma, sigma, 0))
        yield name, np.rint(smooth).astype(np.uint8)
    yield "one picture repeated", np.repeat(some[:1], num, axis=0)


def unexpected(rows: dict[str, dict[str, float]]) -> list[str]:
    """Say which distances of worse sets are not worse than those of all real draws."""
    draws = [row for name, row in rows.items() if name.startswith("real, draw")]
    found = []
    for name, expected in SHOWN_BY.items():
        for distance in (each for each in expected if each in rows[name]):
            value, floor = rows[name][distance], [row[distance] for row in draws]
            if value >= min(floor) if distance in FALLING else value <= max(floor):
                found.append(f"{distance} {value:.3g} of {name}, {min(floor):.3g} to {max(floor):.3g} of real draws")
    return found


def _draw(indices: np.ndarray, num: int, seed: int) -> np.ndarray:
    if len(indices) < num:
        sys.exit(f"--num {num}: there are {len(indices)} pictures to choose from")
    return np.random.default_rng(seed).choice(indices, num, replace=False)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as file:
        return file["images"], file["labels"]


if __name__ == "__main__":
    main()
