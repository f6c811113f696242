"""Inception score, from sums that add up over batches and ranks."""

import numpy as np

_SPLITS = 10


class ClassScore:
    """Sums over the class probabilities of samples, in splits; with the Inception network the score is the IS.

    Sample number n of N belongs to split floor(n * splits / N), so that the splits do not depend on the ranks.

    Reference: Salimans et al. 2016, section 4.
    """

    def __init__(self, classes: int, total: int, splits: int = _SPLITS) -> None:
        self._total = total
        self._counts = np.zeros(splits)
        self._negative_entropies = np.zeros(splits)
        self._probabilities = np.zeros((splits, classes))

    def add(self, probabilities: np.ndarray, numbers: np.ndarray) -> None:
        """Add samples."""
        probabilities, numbers = np.asarray(probabilities, np.float64), np.asarray(numbers, np.int64)
        splits = numbers * len(self._counts) // self._total
        np.add.at(self._counts, splits, 1.0)
        np.add.at(self._negative_entropies, splits, _times_logarithm(probabilities).sum(axis=1))
        np.add.at(self._probabilities, splits, probabilities)

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, all float64; those of several ranks add up. They are not copied."""
        return {
            "counts": self._counts,
            "negative_entropies": self._negative_entropies,
            "probabilities": self._probabilities,
        }

    def value(self) -> tuple[float, float]:
        """Mean and deviation of the score over the splits that have samples; from 1 to the number of classes."""
        filled = self._counts > 0
        counts = self._counts[filled]
        marginals = self._probabilities[filled] / counts[:, None]
        divergences = self._negative_entropies[filled] / counts - _times_logarithm(marginals).sum(axis=1)
        scores = np.exp(divergences)
        return float(scores.mean()), float(scores.std())


def _times_logarithm(numbers: np.ndarray) -> np.ndarray:
    """p log p, which is 0 at 0."""
    return numbers * np.log(np.where(numbers > 0, numbers, 1.0))
