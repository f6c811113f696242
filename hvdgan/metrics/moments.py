"""Number, mean and covariance of features, from sums that add up over batches and ranks."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class Moments:
    """Sums over feature vectors of length d, float64.

    Args:
        count: number of vectors.
        total: sum of the vectors, (d,).
        products: sum of the outer products of each vector with itself, (d, d).
    """

    count: int
    total: np.ndarray
    products: np.ndarray

    @staticmethod
    def none(dimensions: int) -> "Moments":
        """The sums over no vectors of this length."""
        return Moments(0, np.zeros(dimensions), np.zeros((dimensions, dimensions)))

    def add(self, features: np.ndarray) -> None:
        """Add vectors, (B, d), in place."""
        features = np.asarray(features, np.float64)
        self.count += len(features)
        self.total += features.sum(axis=0)
        self.products += features.T @ features

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, all float64; those of several ranks add up. They are not copied."""
        return {"count": np.array(self.count, np.float64), "total": self.total, "products": self.products}

    @staticmethod
    def of_arrays(arrays: dict[str, np.ndarray]) -> "Moments":
        """Make moments again from arrays(), or from the sum of several."""
        total, products = (np.array(arrays[name], np.float64) for name in ("total", "products"))
        return Moments(int(arrays["count"]), total, products)

    @property
    def mean(self) -> np.ndarray:
        """Mean of the vectors, (d,).

        Raises:
            ValueError: there are no vectors.
        """
        if not self.count:
            raise ValueError("the mean of no samples")
        return self.total / self.count

    @property
    def covariance(self) -> np.ndarray:
        """Covariance with the divisor N - 1, (d, d).

        Raises:
            ValueError: there are fewer than two vectors.
        """
        if self.count < 2:
            raise ValueError(f"a covariance needs at least 2 samples, and there are {self.count}")
        return (self.products - np.outer(self.total, self.total / self.count)) / (self.count - 1)
