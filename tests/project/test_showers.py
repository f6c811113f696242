"""The synthetic showers: their profiles are those that the docstring of examples/data/showers.py states."""

import subprocess
import sys

import h5py
import numpy as np
import pytest
from scipy.stats import gamma

from launching import ROOT

sys.path.insert(0, str(ROOT / "examples" / "data"))
import showers


def drawn(energy, theta, num=400, seed=0, size=16):
    """Showers of one energy [GeV] and angle [rad]."""
    return showers.showers(np.full(num, energy, np.float32), np.full(num, theta, np.float32), size, seed)


def mean_depth(energy, theta):
    """Mean depth of the deposits in X0, by integrals over the fluctuations of the shape: T, alpha and the path."""
    log_y = np.log(energy / 0.00797)
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    first, second = np.meshgrid(nodes, nodes, indexing="ij")
    rho = 0.705 - 0.023 * log_y
    peak = (log_y - 0.812) * np.exp(first / (-1.4 + 1.26 * log_y))
    alpha = 0.81 + (0.458 + 2.26 / 74) * log_y
    alpha = np.maximum(alpha * np.exp((rho * first + np.sqrt(1 - rho**2) * second) / (-0.58 + 0.86 * log_y)), 1.1)
    scale = peak / (alpha - 1)
    inside = gamma.cdf(25 / np.sin(theta), alpha, scale=scale)
    paths = alpha * scale * gamma.cdf(25 / np.sin(theta), alpha + 1, scale=scale)
    together = weights[:, None] * weights[None]
    return float((together * paths).sum() / (together * inside).sum() * np.sin(theta))


@pytest.mark.parametrize("theta", [np.pi / 2, 1.2])
def test_the_mean_depth_is_that_of_the_gamma_profile_and_grows_with_the_logarithm_of_the_energy(theta):
    depths = []
    for energy in (20.0, 400.0):
        layers = drawn(energy, theta).sum(axis=(0, 2, 3), dtype=np.float64)
        depths.append(layers @ (np.arange(16) + 0.5) * 25 / 16 / layers.sum())
        assert depths[-1] == pytest.approx(mean_depth(energy, theta), rel=0.02)
    assert depths[1] - depths[0] > 0.7 * np.log(20) * np.sin(theta)


def test_the_sum_of_deposits_fluctuates_as_stated_and_cells_are_sparse():
    for energy in (20.0, 400.0):
        cells = drawn(energy, np.pi / 2, num=2000)
        response = cells.sum(axis=(1, 2, 3)) / energy
        assert 0.97 < response.mean() < 1
        if energy < 100:  # above, leakage fluctuates too
            assert response.std() == pytest.approx(0.15 / np.sqrt(energy), rel=0.1)
        assert not ((cells > 0) & (cells < 0.005)).any()
        assert 0.02 < (cells > 0).mean() < 0.25


def test_the_command_writes_both_kinds_of_files_with_the_same_showers(tmp_path):
    for name in ("showers.h5", "showers.npz"):
        words = ["--out", str(tmp_path / name), "--num", "30", "--size", "8", "--seed", "3"]
        subprocess.run([sys.executable, ROOT / "examples" / "data" / "showers.py", *words], check=True)
    with h5py.File(tmp_path / "showers.h5") as file, np.load(tmp_path / "showers.npz") as arrays:
        assert {name: each.attrs["units"] for name, each in file.items()} == {
            "ECAL": "GeV",
            "energy": "GeV",
            "theta": "rad",
        }
        assert file["ECAL"].shape == (30, 8, 8, 8) and file["ECAL"].dtype == np.float32
        for name in ("ECAL", "energy", "theta"):
            np.testing.assert_array_equal(file[name][()], arrays[name])
