"""Makes synthetic electromagnetic showers in a calorimeter whose true profiles are known.

    python examples/data/showers.py --out showers.h5 --num 20000 --size 16 --seed 0

The file holds ECAL (N, D, H, W) float32 [GeV], the energy of the incident particle [GeV] and theta, its angle to the
plane of the layers [rad]; pi/2 is perpendicular. D is the depth. The calorimeter is tungsten, 25 radiation lengths X0
deep and 8 Moliere radii R_M high and wide, whatever the number of cells. In each shower:

1. E is log-uniform from 10 to 500 GeV, theta uniform from 60 to 120 degrees, y = E / Ec with the critical energy Ec.
2. The path s along the axis, in X0, has the density beta (beta s)^(alpha-1) exp(-beta s) / Gamma(alpha), with the
   maximum at T = (alpha - 1) / beta (Longo and Sestili 1975; PDG, equations 34.36 and 34.37). Both fluctuate from
   shower to shower: ln T and ln alpha are normal, with the means, deviations and correlation of Grindhammer and
   Peters 1993 (hep-ex/0001020, section 3.1); the mean depth grows with ln E. An alpha below 1.1 is set to 1.1.
3. The axis crosses the middle of the layers at a depth of 10 X0, and moves along W by cot(theta) per depth. A layer
   from depth t1 to t2 holds the path from t1 / sin(theta) to t2 / sin(theta).
4. Around the axis the energy of a layer has the density exp(-r / lambda) / (2 pi lambda^2), whose mean radius is 2
   lambda, with lambda = (0.15 + 0.10 s / T) R_M. At the maximum 91 % lie within 1 R_M (PDG, section 34.5: about 90
   %).
5. A cell with the mean mu receives a Poisson number of quanta of the mean mu / q; the energy of a quantum is
   exponential with the mean q = 11.25 MeV. The sum of all cells then fluctuates by sqrt(2 q / E), 15 % / sqrt(E /
   GeV).
6. Cells below 5 MeV are set to 0.
"""

import argparse
from pathlib import Path

import h5py
import numpy as np
from scipy.special import gammainc, ndtr, roots_genlaguerre

ENERGIES = (10.0, 500.0)  # GeV
ANGLES = (np.pi / 3, 2 * np.pi / 3)  # rad
CRITICAL_ENERGY = 0.00797  # GeV, tungsten
ATOMIC_NUMBER = 74.0
MOLIERE_RADIUS = 9.3 / 3.5  # X0, tungsten
DEPTH = 25.0  # X0
WIDTH = 8.0 * MOLIERE_RADIUS  # X0
CROSSING = 10.0  # depth in X0 at which the axis crosses the middle
QUANTUM = 0.15**2 / 2.0  # GeV
THRESHOLD = 0.005  # GeV
_CHUNK = 500
# A round exponential is a mixture of normal densities: exp(-r / lambda) / (2 pi lambda^2) is the mean of normal ones of
# the variance 2 lambda^2 g over a Gamma variable g of the shape 3/2. Those can be integrated over a cell exactly.
_NODES, _WEIGHTS = roots_genlaguerre(12, 0.5)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def main() -> None:
    """Write a file of showers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help=".h5 or .npz to write")
    parser.add_argument("--num", type=int, default=20_000, help="number of showers")
    parser.add_argument("--size", type=int, default=16, help="number of cells along each axis")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.out.suffix not in (".h5", ".npz"):
        parser.error(f"--out {given.out}: expected a name that ends in .h5 or .npz")
    energy, theta = particles(given.num, given.seed)
    write(given.out, showers(energy, theta, given.size, given.seed), energy, theta)
    print(f"{given.out}: {given.num:,} showers of {given.size}^3 cells")


def write(path: Path, deposits: np.ndarray, energy: np.ndarray, theta: np.ndarray) -> None:
    """Write showers as HDF5, with units, or as .npz, by the suffix of the name."""
    arrays = {"ECAL": (deposits, "GeV"), "energy": (energy, "GeV"), "theta": (theta, "rad")}
    if path.suffix == ".npz":
        np.savez(path, **{name: values for name, (values, _) in arrays.items()})
        return
    with h5py.File(path, "w") as file:
        for name, (values, unit) in arrays.items():
            options = {"chunks": (1, *values.shape[1:]), "compression": "gzip"} if values.ndim > 1 else {}
            file.create_dataset(name, data=values, **options).attrs["units"] = unit


def particles(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the energies [GeV] and angles [rad] of incident particles, (N,) float32 each."""
    random = np.random.default_rng([seed, 0])
    energy = np.exp(random.uniform(*np.log(ENERGIES), num))
    return energy.astype(np.float32), random.uniform(*ANGLES, num).astype(np.float32)


def showers(energy: np.ndarray, theta: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Draw one shower for each particle.

    Args:
        energy: energies, (N,) GeV.
        theta: angles, (N,) rad.
        size: number of cells along each axis.
        seed: seed of the fluctuations.

    Returns:
        Energies of the cells, (N, D, H, W) float32 GeV.
    """
    deposits = np.empty((len(energy), size, size, size), np.float32)
    for number, first in enumerate(range(0, len(energy), _CHUNK)):
        random = np.random.default_rng([seed, 1, number])
        part = slice(first, first + _CHUNK)
        alpha, peak = shapes(energy[part], random)
        means = expected(energy[part], theta[part], alpha, peak, size)
        counts = random.poisson(means / QUANTUM)
        hit = counts > 0
        found = np.zeros(means.shape, np.float32)
        found[hit] = random.gamma(counts[hit], QUANTUM)
        deposits[part] = np.where(found < THRESHOLD, 0.0, found)
    return deposits


def shapes(energy: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw alpha and T [X0] of each shower, (N,) each (Grindhammer and Peters, section 3.1)."""
    log_y = np.log(energy.astype(np.float64) / CRITICAL_ENERGY)
    rho = 0.705 - 0.023 * log_y
    first, second = random.standard_normal((2, len(energy)))
    second = rho * first + np.sqrt(1.0 - rho**2) * second
    peak = np.exp(np.log(log_y - 0.812) + first / (-1.4 + 1.26 * log_y))
    mean_alpha = 0.81 + (0.458 + 2.26 / ATOMIC_NUMBER) * log_y
    alpha = np.exp(np.log(mean_alpha) + second / (-0.58 + 0.86 * log_y))
    return np.maximum(alpha, 1.1), peak


def expected(energy: np.ndarray, theta: np.ndarray, alpha: np.ndarray, peak: np.ndarray, size: int) -> np.ndarray:
    """Mean energies of the cells, (N, D, H, W) GeV, before quanta and threshold.

    Args:
        energy, theta: energies [GeV] and angles [rad] of the particles, (N,).
        alpha, peak: alpha and T [X0] of the showers, (N,).
        size: number of cells along each axis.
    """
    depths = np.linspace(0.0, DEPTH, size + 1)
    paths = depths / np.sin(theta)[:, None].astype(np.float64)  # (N, D + 1), X0
    beta = (alpha - 1.0) / peak
    layers = np.diff(gammainc(alpha[:, None], beta[:, None] * paths), axis=1)  # (N, D)
    middles = (paths[:, 1:] + paths[:, :-1]) / 2.0
    scales = (0.15 + 0.10 * middles / peak[:, None]) * MOLIERE_RADIUS
    shifts = ((depths[1:] + depths[:-1]) / 2.0 - CROSSING) / np.tan(theta)[:, None]  # (N, D), X0 along W
    along_h, along_w = _shares(np.zeros_like(shifts), scales, size), _shares(shifts, scales, size)
    shares = np.einsum("ndhk,ndwk,k->ndhw", along_h, along_w, _WEIGHTS, optimize=True)
    return (energy[:, None] * layers)[..., None, None] * shares


def _shares(centres: np.ndarray, scales: np.ndarray, size: int) -> np.ndarray:
    """Shares of the cells along one axis in each normal density of the mixture, (N, D, size, K)."""
    edges = np.linspace(-WIDTH / 2.0, WIDTH / 2.0, size + 1)[:, None]
    deviations = scales[..., None, None] * np.sqrt(2.0 * _NODES)
    return np.diff(ndtr((edges - centres[..., None, None]) / deviations), axis=2)


if __name__ == "__main__":
    main()
