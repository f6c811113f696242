"""Compares arrays of pictures with real ones by the same code as hvdgan.evaluate, and prints tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.data import Samples, open_source
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluation.comparison import Comparison
from hvdgan.evaluation.features import open_features
from hvdgan.evaluation.sets import Reading, RealSet
from hvdgan.evaluation.tally import Plan
from hvdgan.recipe import DataSpec

COLUMNS = ["frechet", "kid", "precision", "recall", "density", "coverage", "histogram", "spectrum"]
"""distances of a table, in its order; it has sliced_wasserstein and channel_correlation, too"""
_BATCH = 64


class Comparing:
    """Compares sets of pictures with real ones; the sums over the real ones are computed once.

    Args:
        reals: array of real pictures, as for --data.
        features: features as for --eval-features; none: no network.
        count: number of real pictures and of others, at most.
    """

    def __init__(self, reals: Path, features: str = "none", count: int = 10**6) -> None:
        source = open_source(Config(data=str(reals)))
        self._spec, self._count = DataSpec(source.layout.seen, len(source)), count
        opened = open_features(features, self._spec, inception=None, resize="clean", batch_size=_BATCH)
        real = self._set(source)
        self._comparison = Comparison(real, real, Plan(self._spec, opened), None, Ranks())

    def __call__(self, pictures: Path | np.ndarray, folder: Path | None = None) -> dict[str, float]:
        """The distances of pictures, by name.

        Args:
            pictures: array (N, H, W, C) uint8, or a file of one.
            folder: folder for the file, if there is none.
        """
        if isinstance(pictures, np.ndarray):
            assert folder is not None
            np.save(folder / "pictures.npy", pictures)
            pictures = folder / "pictures.npy"
        chosen = self._set(open_source(Config(data=str(pictures))))
        comparison = self._comparison.with_samples(chosen)
        assert comparison is not None
        values = comparison(lambda line: None)
        self._comparison = comparison  # it has the sums over the real pictures
        return {name.removeprefix("eval/"): value for name, value in values.items()}

    def _set(self, source: Samples) -> RealSet:
        return RealSet(source, self._spec, Reading(_BATCH, 1), count=self._count)


def table(rows: Mapping[str, Mapping[str, float | str]], columns: Sequence[str]) -> str:
    """Lay out a table in Markdown; numbers get three digits that count, and columns without values are left out."""
    columns = [each for each in columns if any(each in row for row in rows.values())]
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[name, *(_cell(row.get(each)) for each in columns)] for name, row in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.3g}"
