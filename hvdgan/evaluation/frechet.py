"""Fréchet distance between two Gaussian distributions."""

import numpy as np


def frechet_distance(
    mean: np.ndarray, covariance: np.ndarray, other_mean: np.ndarray, other_covariance: np.ndarray
) -> float:
    """Squared 2-Wasserstein distance of two Gaussians; of Inception features it is the FID.

    It is |m - m'|^2 + tr(S) + tr(S') - 2 tr((S S')^(1/2)). The eigenvalues of S S' are those of the symmetric matrix
    S^(1/2) S' S^(1/2), so the root of a product, which need not be symmetric, is never computed.

    Reference: Dowson and Landau 1982, equation 16; Heusel et al. 2017, equation 6.
    """
    mean, covariance, other_mean, other_covariance = (
        np.asarray(each, np.float64) for each in (mean, covariance, other_mean, other_covariance)
    )
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    shared = np.linalg.eigvalsh(root @ other_covariance @ root)
    spread = np.trace(covariance) + np.trace(other_covariance) - 2.0 * np.sqrt(np.maximum(shared, 0.0)).sum()
    # Rounding alone can make the distance of equal distributions negative.
    return max(0.0, float(np.sum((mean - other_mean) ** 2) + spread))
