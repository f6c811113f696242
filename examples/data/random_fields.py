"""Writes synthetic physical fields whose power spectrum is known, to train and judge super-resolution.

    python examples/data/random_fields.py --out fields.npz --num 5000 --size 64 --factor 4 --seed 0

The file holds the float32 arrays `images` (N, H, H, C), `inputs` (N, H / factor, H / factor, C), `orography` (H, H).
With `--channels 1 --out fields.nc` it is NetCDF: the variables `t` (time, lat, lon), `t_coarse` and `orography`, with
coordinates that are made up.

A Gaussian random field g is periodic, of mean 0 and variance 1. Its Fourier modes are independent, and their power is

    P(k) = A |k|^-slope  for k != 0,  P(0) = 0,

where k = (k_y, k_x) counts waves per domain, and A is chosen so that the powers of all H^2 modes sum to 1. The C
channels of a sample have this spectrum each, and any two of them have the correlation `correlation` in every mode. The
orography h is one Gaussian random field with P(k) ~ |k|^-4, moved and scaled to heights from 0 to 2000 m. It modulates
the variance of all samples, which are

    images(x) = m(x) g(x),  m(x) = a (1 + modulation h(x) / 2000 m),

with `a` such that the mean of m^2 over the domain is 1. So the expected spectrum of the images is P convolved with the
spectrum of m, which expected_spectrum() computes. The inputs are the means of blocks of factor x factor pixels.
"""

import argparse
from pathlib import Path

import numpy as np

SLOPE = 3.0
CORRELATION = 0.5
MODULATION = 2.0
HIGHEST = 2000.0
"""height of the orography's summit in metres"""
_OROGRAPHY_SLOPE = 4.0
_OROGRAPHY = 2**32
"""number of the orography's random numbers; those of the samples are 0, 1, 2, ..."""


def main() -> None:
    """Write the file that the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help=".npz or .nc to write")
    parser.add_argument("--num", type=int, default=5000, help="number of samples")
    parser.add_argument("--first", type=int, default=0, help="number of the first sample; others are other fields")
    parser.add_argument("--size", type=int, default=64, help="height and width of a field (pixels)")
    parser.add_argument("--factor", type=int, default=4, help="height and width of the blocks of the inputs (pixels)")
    parser.add_argument("--channels", type=int, default=2, help="number of fields in a sample")
    parser.add_argument("--slope", type=float, default=SLOPE, help="exponent of the power spectrum")
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples and of the orography")
    given = parser.parse_args()
    if given.size % given.factor:
        parser.error(f"--factor {given.factor}: does not divide --size {given.size}")
    if given.out.suffix == ".nc" and given.channels > 1:
        parser.error("--out .nc: expected --channels 1")
    heights = orography(given.size, given.seed)
    images = fields(given.num, heights, channels=given.channels, slope=given.slope, seed=given.seed, first=given.first)
    save = save_netcdf if given.out.suffix == ".nc" else np.savez
    save(given.out, images=images, inputs=coarsened(images, given.factor), orography=heights)
    print(f"{given.out}: images {images.shape}, inputs {given.size // given.factor} pixels high and wide")


def save_netcdf(path: Path, images: np.ndarray, inputs: np.ndarray, orography: np.ndarray) -> None:
    """Write fields of one channel once a day, on a grid of a hundredth of a degree."""
    import xarray  # only for these files

    places = np.arange(len(orography)) / 100
    coarse = places.reshape(inputs.shape[1], -1).mean(axis=1)
    variables = {
        "t": (("time", "lat", "lon"), images[..., 0], {"units": "K"}),
        "t_coarse": (("time", "lat_coarse", "lon_coarse"), inputs[..., 0], {"units": "K"}),
        "orography": (("lat", "lon"), orography, {"units": "m"}),
    }
    coordinates = {
        "time": ("time", np.arange(len(images)), {"units": "days since 2000-01-01"}),
        "lat": ("lat", 50 - places, {"units": "degrees_north"}),
        "lon": ("lon", 5 + places, {"units": "degrees_east"}),
        "lat_coarse": ("lat_coarse", 50 - coarse, {"units": "degrees_north"}),
        "lon_coarse": ("lon_coarse", 5 + coarse, {"units": "degrees_east"}),
    }
    xarray.Dataset(variables, coordinates).to_netcdf(path, engine="h5netcdf")


def fields(
    num: int,
    heights: np.ndarray,
    *,
    channels: int = 2,
    slope: float = SLOPE,
    correlation: float = CORRELATION,
    modulation: float = MODULATION,
    seed: int = 0,
    first: int = 0,
) -> np.ndarray:
    """Make modulated Gaussian random fields; sample n of a seed does not depend on the number of samples.

    Args:
        num: number of samples, N.
        heights: orography (H, H) in metres.
        channels: number of fields in a sample, C.
        slope: exponent of the power spectrum.
        correlation: correlation of any two channels, 0 to 1.
        modulation: relative growth of the deviation from sea level to the summit; 0: none.
        seed: seed of the samples.
        first: number of the first sample.

    Returns:
        (N, H, H, C) float32.
    """
    amplitudes = np.sqrt(power_law(len(heights), slope)) * len(heights)
    mixing = np.linalg.cholesky(np.full((channels, channels), correlation) + (1 - correlation) * np.eye(channels))
    factors = multiplier(heights, modulation)[..., None]
    made = np.empty((num, *heights.shape, channels), np.float32)
    for place in range(num):
        made[place] = factors * (_gaussian(amplitudes, channels, [seed, first + place]) @ mixing.T)
    return made


def orography(size: int, seed: int = 0) -> np.ndarray:
    """Make heights from 0 to 2000 m, (size, size) float32."""
    amplitudes = np.sqrt(power_law(size, _OROGRAPHY_SLOPE)) * size
    rough = _gaussian(amplitudes, 1, [seed, _OROGRAPHY])[..., 0]
    return (HIGHEST * (rough - rough.min()) / np.ptp(rough)).astype(np.float32)


def multiplier(heights: np.ndarray, modulation: float = MODULATION) -> np.ndarray:
    """The factor m of the fields, (H, H), from the orography in metres; its mean square is 1."""
    raised = 1.0 + modulation * heights.astype(np.float64) / HIGHEST
    return raised / np.sqrt(np.mean(raised**2))


def coarsened(images: np.ndarray, factor: int) -> np.ndarray:
    """The means of blocks of factor x factor pixels: (N, H, W, C) to (N, H / factor, W / factor, C)."""
    num, height, width, channels = images.shape
    blocks = images.reshape(num, height // factor, factor, width // factor, factor, channels)
    return blocks.mean(axis=(2, 4), dtype=np.float64).astype(np.float32)


def power_law(size: int, slope: float = SLOPE) -> np.ndarray:
    """P(k) of all modes in the order of numpy.fft.fft2, (size, size); the powers sum to 1, the variance."""
    waves = wavenumbers(size)
    powers = np.zeros_like(waves)
    powers[waves > 0] = waves[waves > 0] ** -slope
    return powers / powers.sum()


def expected_spectrum(heights: np.ndarray, slope: float = SLOPE, modulation: float = MODULATION) -> np.ndarray:
    """Expected power of each mode of the images, (H, H): P(k) convolved with the spectrum of the factor m."""
    of_factor = spectrum(multiplier(heights, modulation)[None, ..., None])[0, ..., 0]
    return np.fft.ifft2(np.fft.fft2(power_law(len(heights), slope)) * np.fft.fft2(of_factor)).real


def spectrum(images: np.ndarray) -> np.ndarray:
    """Power of each mode, (N, H, H, C) to the same shape; the powers of a field sum to its mean square."""
    return np.abs(np.fft.fft2(images, axes=(1, 2)) / images.shape[1] ** 2) ** 2


def radial(powers: np.ndarray) -> np.ndarray:
    """Mean power of the modes of each wavenumber 1, 2, ..., H / 2, rounded: (N, H, H, C) to (N, H / 2, C)."""
    size = powers.shape[1]
    bins = np.rint(wavenumbers(size)).astype(int)
    return np.stack([powers[:, bins == wave].mean(axis=1) for wave in range(1, size // 2 + 1)], axis=1)


def wavenumbers(size: int) -> np.ndarray:
    """|k| of all modes in waves per domain, in the order of numpy.fft.fft2, (size, size)."""
    waves = np.fft.fftfreq(size, 1 / size)
    return np.hypot(waves[:, None], waves[None])


def _gaussian(amplitudes: np.ndarray, channels: int, seed: list[int]) -> np.ndarray:
    """Independent Gaussian random fields (H, H, channels): white noise, filtered by the amplitude of each mode."""
    noise = np.random.default_rng(seed).standard_normal((*amplitudes.shape, channels))
    filtered = np.fft.ifft2(np.fft.fft2(noise, axes=(0, 1)) * amplitudes[..., None], axes=(0, 1))
    return np.ascontiguousarray(filtered.real)


if __name__ == "__main__":
    main()
