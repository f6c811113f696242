"""Missing numbers: filled for networks, with the mask as a constant, and missing again in samples."""

import numpy as np
import pytest

from hvdgan.data import BadImage, open_source
from hvdgan.data.statistics import with_statistics
from hvdgan.errors import UserError
from hvdgan.errors.shared_errors import ALONE
from hvdgan.sample import main as sample
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig
from hvdgan.train import main as train
from hvdgan.values.sample_values import Missing, parse_missing

LAND = np.zeros((16, 16, 1), bool)
LAND[:4, :5] = True


@pytest.fixture
def sst(tmp_path, monkeypatch):
    """Sea surface temperatures: NaN on land, and one under a cloud."""
    monkeypatch.chdir(tmp_path)
    fields = np.random.default_rng(0).normal(290, 3, (40, 16, 16, 1)).astype(np.float32)
    fields[:, LAND] = np.nan
    fields[7, 9, 9] = np.nan
    np.savez("sst.npz", images=fields)
    return fields


def opened(**settings):
    return open_source(Config(data="sst.npz", arrays=ArrayConfig(**{"values": "standard", **settings})))


def test_networks_see_the_declared_number_and_the_mask_is_a_constant(sst):
    source = opened(missing="fill:0")
    values = with_statistics(source, ALONE)
    known = sst[np.isfinite(sst)].astype(np.float64)
    (step,) = values.images.chains[0]
    assert step.means[0] == pytest.approx(known.mean()) and step.deviations[0] == pytest.approx(known.std())
    seen = source.mapped(values)
    records = seen.fetch_batch(np.arange(40))["images"]
    expected = np.where(np.isnan(sst), 0, (sst - step.means[0]) / step.deviations[0])
    np.testing.assert_allclose(records, expected, atol=1e-5)
    np.testing.assert_array_equal(seen.constants, 1.0 - LAND)  # of the cloud it does not tell


def test_a_place_that_lacks_one_of_two_channels_counts_as_missing():
    mask = np.zeros((2, 3, 2), bool)
    mask[0, 1, 1] = True
    np.testing.assert_array_equal(Missing(0.0, mask).field[..., 0], [[1, 0, 1], [1, 1, 1]])


def test_a_number_that_the_map_does_not_take_is_not_filled(sst):
    sst[3, 9, 9] = -5
    np.savez("sst.npz", images=sst)
    source = opened(values="log10", missing="fill:0")
    with pytest.raises(BadImage, match=r"images\[3\]: channel 0 at \(9, 9\) is -5, which its map log10 turns into nan"):
        source.mapped(source.values).fetch(3)


def test_a_run_without_the_flag_names_it_too(sst, capsys):
    assert train("--recipe tiny:Tiny --data sst.npz --values none --global-batch-size 4 --run-dir run".split()) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "sst.npz:images[0]" in error and "20 of 256 numbers are NaN" in error and "--missing fill:0" in error


@pytest.mark.parametrize("text", ["0", "fill:nan", "skip:0"])
def test_another_value_is_refused(text):
    with pytest.raises(UserError, match=f"--missing {text}: expected fill:NUMBER"):
        parse_missing(text)


def test_a_run_draws_samples_with_missing_numbers_at_the_same_places(sst, tmp_path):
    words = "--recipe tiny:Tiny --data sst.npz --values standard --missing fill:0 --global-batch-size 4".split()
    assert train([*words, "--steps", "3", "--run-dir", "run"]) == 0
    assert sample(["run", "--samples", "3", "--out", "s.npy"]) == 0
    drawn = np.load("s.npy")
    np.testing.assert_array_equal(np.isnan(drawn), np.broadcast_to(LAND, drawn.shape))
    assert 250 < np.nanmean(drawn) < 330
