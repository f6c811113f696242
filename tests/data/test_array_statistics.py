"""Means and deviations: the same bits on any number of ranks, over the finite samples to train on alone.

Modules: data.statistics
"""

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.shared_errors import ALONE
from hvdgan.data import BadImage, hold_out, open_source, statistics
from hvdgan.data.statistics import with_statistics
from hvdgan.values import sample_values
from thread_ranks import Threads

FIELDS = np.random.default_rng(0).normal((3, -1000), (1e-3, 50), (1203, 4, 5, 2)).astype(np.float32)


def opened(path, array, values="standard", **more):
    np.savez(path / "a.npz", images=array, **more)
    beside = {"inputs": "inputs"} if "inputs" in more else {}
    config = Config(data=str(path / "a.npz"), arrays=ArrayConfig(values=values, input_values=values, **beside))
    return open_source(config, paired="inputs" in more)


@pytest.fixture
def small_blocks(monkeypatch):
    """So that there are many of them: 25 samples each."""
    monkeypatch.setattr(statistics, "BLOCK_BYTES", 25 * 4 * 5 * 2 * 4)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("values", ["standard", "power:0.5+standard+power:2+standard"])
def test_any_number_of_ranks_has_the_same_bits(tmp_path, values):
    source = opened(tmp_path, FIELDS, values)
    alone = with_statistics(source, ALONE)
    assert not alone.images.lacks_statistics
    if values == "standard":
        (step,) = alone.images.chains[0]
        wide = FIELDS.astype(np.float64).reshape(-1, 2)
        np.testing.assert_allclose(step.means, wide.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(step.deviations, wide.std(axis=0), rtol=1e-10)
    for size in (2, 3):
        found = {}

        def work(peers, found=found):
            found[peers.rank] = with_statistics(source, peers)

        assert Threads(size).run(work) == [None] * size
        assert [*found.values()] == [alone] * size  # floats are equal to the bit


@pytest.mark.usefixtures("small_blocks")
def test_neither_held_out_samples_nor_those_that_are_not_finite_count(tmp_path):
    array = FIELDS.copy()
    held = hold_out(opened(tmp_path, array), 0.2)[1].samples
    array[held.indices] += 1e4
    array[100, 1, 1, 0], array[500, 0, 0, 1] = np.nan, np.inf
    training, _ = hold_out(opened(tmp_path, array), 0.2)
    (step,) = with_statistics(training, ALONE).images.chains[0]
    others = np.setdiff1d(np.arange(len(array)), [*held.indices, 100, 500])
    np.testing.assert_allclose(step.means, array[others].astype(np.float64).mean(axis=(0, 1, 2)), rtol=1e-12)


def known_to(source, values):
    """The maps of the source, and the number of samples that were read for their statistics."""
    taken, read = [], source.images.read
    source.images.read = lambda indices: taken.append(len(indices)) or read(indices)
    return with_statistics(source, ALONE, values), sum(taken)


def test_those_of_a_checkpoint_serve_the_same_maps_only(tmp_path):
    before = sample_values.of_json(with_statistics(opened(tmp_path, FIELDS), ALONE).to_json())
    assert known_to(opened(tmp_path, FIELDS * 2), before) == (before, 0)  # the caller compares the data
    for other in ("log1p+standard", "0=standard;1=none", "range:-9,9+standard"):
        found, count = known_to(opened(tmp_path, np.abs(FIELDS), other), before)
        assert count == len(FIELDS) and found == with_statistics(opened(tmp_path, np.abs(FIELDS), other), ALONE)


def test_a_sample_for_which_a_function_raises_an_error_does_not_count_and_is_a_bad_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "strict_maps.py").write_text(
        "def there(x):\n    if (x > 2e3).any():\n        raise ValueError('no such number')\n    return x\n\n\n"
        "def back(x):\n    return x\n"
    )
    array = np.abs(FIELDS) + 1
    array[100, 1, 1, 0] = 1e6
    source = opened(tmp_path, array, "strict_maps:there,back+standard")
    values = with_statistics(source, ALONE)
    others = np.delete(array, 100, axis=0).astype(np.float64)
    np.testing.assert_allclose(values.images.chains[0][1].means, others.mean(axis=(0, 1, 2)), rtol=1e-6)
    with pytest.raises(BadImage, match=r"a.npz:images\[100\]: there of strict_maps: ValueError: no such number"):
        source.mapped(values).fetch(100)
