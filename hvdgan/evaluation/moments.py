"""Number, mean and covariance of vectors, from sums that add up over batches and ranks."""

from collections.abc import Iterator

import numpy as np


class Moments:
    """Sums over vectors of length d, such as features, float64.

    They are of the differences from `origin`, a vector near the mean, so that no digits are lost. `sums`: arrays() of
    other sums, which are added to in place.
    """

    def __init__(self, origin: np.ndarray, sums: dict[str, np.ndarray] | None = None) -> None:
        size = len(origin)
        self._origin = np.asarray(origin, np.float64)
        self._sums = sums or {"count": np.zeros(()), "total": np.zeros(size), "products": np.zeros((size, size))}

    def add(self, vectors: np.ndarray) -> None:
        """Add vectors, (B, d)."""
        vectors = np.asarray(vectors, np.float64) - self._origin
        self._sums["count"] += len(vectors)
        self._sums["total"] += vectors.sum(axis=0)
        self._sums["products"] += vectors.T @ vectors

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, float64, not copied; those of several ranks with one origin add up."""
        return self._sums

    @property
    def count(self) -> int:
        """Number of vectors."""
        return int(self._sums["count"])

    @property
    def mean(self) -> np.ndarray:
        """Mean of the vectors, (d,)."""
        return self._origin + self._sums["total"] / self.count

    @property
    def mean_square(self) -> np.ndarray:
        """Mean square of the differences from the origin, (d,)."""
        return np.diag(self._sums["products"]) / self.count

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of two vectors or more with the divisor N - 1, (d, d)."""
        total = self._sums["total"]
        return (self._sums["products"] - np.outer(total, total / self.count)) / (self.count - 1)


class ClassMoments:
    """Moments of each of several classes; a class without vectors takes no time, and no memory that is written to."""

    def __init__(self, classes: int, origin: np.ndarray) -> None:
        shape = classes, len(origin)
        self._origin = origin
        self._sums = {"count": np.zeros(classes), "total": np.zeros(shape), "products": np.zeros((*shape, shape[1]))}

    def add(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Add vectors, (B, d), of the classes `labels`, (B,); those of no class of these do not count."""
        for label, places in places_of_classes(labels):
            if 0 <= label < len(self.counts):
                self.of(label).add(features[places])

    def of(self, label: int) -> Moments:
        """The moments of a class, which share their memory with these."""
        return Moments(self._origin, {name: each[label, ...] for name, each in self._sums.items()})

    @property
    def counts(self) -> np.ndarray:
        """Number of vectors of each class, (classes,)."""
        return self._sums["count"]

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, all float64; those of several ranks with one origin add up. They are not copied."""
        return self._sums


def places_of_classes(labels: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The classes among some labels, (B,), and the places of each, ascending."""
    order = np.argsort(labels, kind="stable")
    present, first = np.unique(labels[order], return_index=True)
    yield from zip(map(int, present), np.split(order, first[1:]), strict=False)
