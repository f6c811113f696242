"""Number, mean and covariance of features, from sums that add up over batches and ranks."""

import dataclasses
from collections.abc import Iterator

import numpy as np


@dataclasses.dataclass
class Moments:
    """Sums over feature vectors of length d, float64.

    Args:
        count: number of vectors.
        total: sum of the vectors less the origin, (d,).
        products: sum of the outer products of each of these differences with itself, (d, d).
        origin: vector near the mean, (d,): the differences from it lose no digits when the mean is large.
    """

    count: int
    total: np.ndarray
    products: np.ndarray
    origin: np.ndarray

    @staticmethod
    def none(origin: np.ndarray) -> "Moments":
        """The sums over no vectors, which begin with this origin."""
        size = len(origin)
        return Moments(0, np.zeros(size), np.zeros((size, size)), np.asarray(origin, np.float64))

    def add(self, features: np.ndarray) -> None:
        """Add vectors, (B, d), in place."""
        features = np.asarray(features, np.float64) - self.origin
        self.count += len(features)
        self.total += features.sum(axis=0)
        self.products += features.T @ features

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, all float64; those of several ranks with one origin add up. They are not copied."""
        return {"count": np.array(self.count, np.float64), "total": self.total, "products": self.products}

    @staticmethod
    def of_arrays(arrays: dict[str, np.ndarray], origin: np.ndarray) -> "Moments":
        """Make moments again from arrays(), or from the sum of several, and their origin."""
        total, products = (np.array(arrays[name], np.float64) for name in ("total", "products"))
        return Moments(int(arrays["count"]), total, products, np.asarray(origin, np.float64))

    @property
    def mean(self) -> np.ndarray:
        """Mean of the vectors, (d,)."""
        if not self.count:
            raise ValueError("the mean of no samples")
        return self.origin + self.total / self.count

    @property
    def covariance(self) -> np.ndarray:
        """Covariance with the divisor N - 1, (d, d)."""
        if self.count < 2:
            raise ValueError(f"a covariance needs at least 2 samples, and there are {self.count}")
        return (self.products - np.outer(self.total, self.total / self.count)) / (self.count - 1)


class ClassMoments:
    """Moments of each of several classes; a class without vectors takes no time, and no memory that is written to."""

    def __init__(self, classes: int, origin: np.ndarray) -> None:
        size = len(origin)
        self._origin = np.asarray(origin, np.float64)
        self._sums = {
            "count": np.zeros(classes),
            "total": np.zeros((classes, size)),
            "products": np.zeros((classes, size, size)),
        }

    def add(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Add vectors, (B, d), of the classes `labels`, (B,); those of no class of these do not count."""
        for label, places in places_of_classes(labels):
            if 0 <= label < len(self.counts):
                moments = self.of(label)
                moments.add(features[places])
                self.counts[label] = moments.count

    def of(self, label: int) -> Moments:
        """The moments of a class, which share their memory with these."""
        sums = self._sums
        return Moments(int(sums["count"][label]), sums["total"][label], sums["products"][label], self._origin)

    @property
    def counts(self) -> np.ndarray:
        """Number of vectors of each class, (classes,)."""
        return self._sums["count"]

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, all float64; those of several ranks with one origin add up. They are not copied."""
        return self._sums

    @staticmethod
    def of_arrays(arrays: dict[str, np.ndarray], origin: np.ndarray) -> "ClassMoments":
        """Make moments again from arrays(), or from the sum of several, and their origin; nothing is copied."""
        made = ClassMoments(0, origin)
        made._sums = {name: arrays[name] for name in made._sums}
        return made


def places_of_classes(labels: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The classes among some labels, (B,), and the places of each, ascending."""
    order = np.argsort(labels, kind="stable")
    present, first = np.unique(labels[order], return_index=True)
    yield from zip(map(int, present), np.split(order, first[1:]), strict=False)
