"""Means and deviations: the same bits on any number of ranks, over the finite samples to train on alone.
Modules: data.statistics"""

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.shared_errors import ALONE
from hvdgan.data import hold_out, open_source, statistics
from hvdgan.data.statistics import with_statistics
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
