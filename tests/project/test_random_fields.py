"""The synthetic fields have the spectrum, the correlation and the inputs that examples/data/random_fields.py states."""

import sys

import numpy as np
import pytest

from launching import ROOT

sys.path.insert(0, str(ROOT / "examples" / "data"))
import random_fields

SIZE, NUM = 32, 400


@pytest.fixture(scope="module")
def heights():
    return random_fields.orography(SIZE)


def measured(images):
    """Mean power of each mode over samples and channels, by a sum over pixels instead of an FFT."""
    waves = np.exp(-2j * np.pi * np.outer(np.arange(SIZE), np.arange(SIZE)) / SIZE)
    modes = np.einsum("ky,nyxc,lx->nklc", waves, images, waves, optimize=True) / SIZE**2
    return (np.abs(modes) ** 2).mean(axis=(0, 3))


def radial(powers):
    """Sums of the powers of the wavenumbers 1, 2, ..., by a loop, and how many modes each sum has."""
    sums, counts = np.zeros(SIZE), np.zeros(SIZE)
    for row in range(SIZE):
        for column in range(SIZE):
            signed = [place if place <= SIZE // 2 else place - SIZE for place in (row, column)]
            wave = round(float(np.hypot(*signed)))
            sums[wave] += powers[row, column]
            counts[wave] += 1
    return sums[1 : SIZE // 2 + 1], counts[1 : SIZE // 2 + 1]


def assert_within_sampling_error(images, expected):
    """The power of a mode of one sample varies by its mean, and modes come in pairs of the same power."""
    found, counts = radial(measured(images))
    wanted, _ = radial(expected)
    error = 1 / np.sqrt(NUM * images.shape[-1] * counts / 2)
    assert np.all(np.abs(found / wanted - 1) < 5 * error), found / wanted


@pytest.mark.parametrize("slope", [2.0, 3.0])
def test_the_spectrum_is_the_stated_power_of_the_wavenumber(heights, slope):
    images = random_fields.fields(NUM, heights, channels=1, slope=slope, modulation=0)
    powers = np.zeros((SIZE, SIZE))
    for row in range(SIZE):
        for column in range(SIZE):
            signed = [place if place <= SIZE // 2 else place - SIZE for place in (row, column)]
            powers[row, column] = np.hypot(*signed) ** -slope if row or column else 0
    assert_within_sampling_error(images, powers / powers.sum())
    assert images.dtype == np.float32
    np.testing.assert_allclose(images.mean(axis=(1, 2)), 0, atol=1e-6)


def test_the_orography_modulates_the_variance_and_the_expected_spectrum_says_how(heights):
    images = random_fields.fields(NUM, heights, channels=1)
    assert_within_sampling_error(images, random_fields.expected_spectrum(heights))
    raised = 1 + random_fields.MODULATION * heights / 2000
    deviations = raised / np.sqrt((raised**2).mean())
    np.testing.assert_allclose(images.std(axis=(0, 3)), deviations, rtol=0.25)
    assert np.corrcoef(images.std(axis=(0, 3)).ravel(), deviations.ravel())[0, 1] > 0.9
    assert heights.min() == 0 and heights.max() == 2000 and heights.dtype == np.float32


def test_the_command_writes_the_arrays(tmp_path, monkeypatch, capsys):
    words = ["random_fields.py", "--num", "3", "--size", "16", "--factor", "2", "--seed", "5", "--out"]
    contents = []
    for name in ("first.npz", "again.npz"):
        monkeypatch.setattr(sys, "argv", [*words, str(tmp_path / name)])
        random_fields.main()
        with np.load(tmp_path / name) as file:
            contents.append(dict(file))
    first, again = contents
    assert {name: array.shape for name, array in first.items()} == {
        "images": (3, 16, 16, 2),
        "inputs": (3, 8, 8, 2),
        "orography": (16, 16),
    }
    assert all(np.array_equal(first[name], again[name]) for name in first)
    np.testing.assert_array_equal(first["inputs"], random_fields.coarsened(first["images"], 2))
    monkeypatch.setattr(sys, "argv", [*words, str(tmp_path / "no.npz"), "--factor", "3"])
    with pytest.raises(SystemExit):
        random_fields.main()
    assert "--factor 3: does not divide --size 16" in capsys.readouterr().err
