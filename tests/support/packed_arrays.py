"""Arrays in files, and hvdgan.prepare of them in this process."""

from pathlib import Path

import numpy as np

from hvdgan.data import Samples
from hvdgan.prepare import main

RNG = np.random.default_rng(0)


def pack(source: Path | str, target: Path, *flags: str, workers: int = 1) -> Path:
    """Pack arrays into three files, which must succeed; returns the new folder."""
    assert main([str(source), str(target), "--shards", "3", "--workers", str(workers), *flags]) == 0
    return target


def all_of(source: Samples) -> np.ndarray:
    """All records in their order."""
    return source.fetch_batch(np.arange(len(source)))


def fields(folder: Path, count: int = 20) -> Path:
    """An .npz with samples, inputs, classes, conditions and constants."""
    path = folder / "fields.npz"
    np.savez(
        path,
        images=RNG.normal(size=(count, 6, 4, 2)).astype(np.float32),
        coarse=RNG.integers(0, 900, (count, 3, 2), np.int16),
        labels=np.arange(count) % 3,
        energy=RNG.uniform(1, 50, count),
        angle=RNG.uniform(0, 3, (count, 2)).astype(np.float32),
        ground=RNG.normal(size=(6, 4)),
    )
    return path


BESIDE = ("--pairs", "--inputs", "coarse", "--conditions", "energy,angle", "--constants", "ground")
