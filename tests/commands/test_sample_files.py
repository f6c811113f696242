"""Files of hvdgan.sample: numbers in the units of the data, with their conditions and units."""

import h5py
import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.data import open_source
from hvdgan.recipe import DataSpec
from hvdgan.sample import write_samples
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import parse

NAMES = ("t2m", "u10", "v10")
VALUES = SampleValues(
    parse("t2m=range:200,300;u10=none;v10=none", "-", NAMES, ("K", "m/s", "m/s")),
    conditions=parse("energy=range:0,100;theta=none", "-", ("energy", "theta"), ("GeV", "")),
)
SPEC = DataSpec((4, 5, 3), 9, conditions=("energy", "theta"), values=VALUES)
SAMPLES = np.random.default_rng(0).uniform(0, 900, (3, 4, 5, 3)).astype(np.float32)
INPUTS = [{"conditions": np.array([number / 2, 7], np.float32), "numbers": np.int64(5 - number)} for number in range(3)]


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_numbers_conditions_and_units_are_those_of_the_data_and_are_read_as_such(tmp_path, suffix):
    path = tmp_path / "new" / f"a.{suffix}"
    write_samples(path, SAMPLES, SPEC, INPUTS, of_data=True)
    with np.load(path) if suffix == "npz" else h5py.File(path) as file:
        assert {*file} - {f"{name}_{kind}" for name in file for kind in ("units", "channels")} == {
            "samples",
            "energy",
            "theta",
            "index",
        }
        assert file["index"][...].tolist() == [5, 4, 3]
    settings = ArrayConfig(values="none", conditions=("energy", "theta"), condition_values="none")
    source = open_source(Config(data=f"{path}:samples", arrays=settings))
    np.testing.assert_array_equal(source.fetch_batch(np.arange(3)), SAMPLES)
    np.testing.assert_allclose(source.conditions, [[50, 7], [75, 7], [100, 7]])
    assert (source.values.images.channels, source.values.images.units) == (NAMES, ("K", "m/s", "m/s"))
    assert source.values.conditions.units == ("GeV", "")
