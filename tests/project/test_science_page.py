"""docs/science.md: its commands run as they are written, and its tables name maps and flags that exist."""

import re
import shlex
import shutil

import h5py
import keras
import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.data import open_source
from launching import ROOT, run

PAGE = (ROOT / "docs" / "science.md").read_text()
(COMMANDS,) = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
(MAP,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.long
@pytest.mark.timeout(1800)  # some machines need five seconds for a step in three dimensions, others 0.2
def test_from_an_hdf5_file_to_samples_and_a_network_in_physical_units(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for command in COMMANDS.splitlines():
        done = run(shlex.split(command), tmp_path, seconds=1500, forked=True)
        assert done.returncode == 0, done.stderr
    with h5py.File(tmp_path / "showers.h5") as true, h5py.File(tmp_path / "drawn.h5") as drawn:
        assert drawn["samples"].shape == (100, 16, 16, 16, 1)
        assert drawn["energy"][:] == pytest.approx(50, rel=1e-4) and drawn["theta"][:] == pytest.approx(1.57, rel=1e-4)
        units = {name: true[name].attrs["units"] for name in ("ECAL", "energy", "theta")}
        assert {name: drawn[name].attrs["units"] for name in ("energy", "theta")} == {
            name: units[name] for name in ("energy", "theta")
        }
        assert drawn["samples"].attrs["units"] == units["ECAL"]
        near = np.abs(true["energy"][:] - 50) < 10
        response = (true["ECAL"][:][near].sum(axis=(1, 2, 3)) / true["energy"][:][near]).mean()
        total = drawn["samples"][:].sum(axis=(1, 2, 3, 4)).mean() / 50
    assert (tmp_path / "drawn.png").exists()
    network = keras.models.load_model(tmp_path / "generator.keras")
    given = {each.name: np.zeros((8, *each.shape[1:]), np.float32) for each in network.inputs}
    given["conditions"] = np.array([[50.0, 1.57]] * 8, np.float32)
    exported = network.predict([given[each.name] for each in network.inputs], verbose=0).sum(axis=(1, 2, 3, 4)).mean()
    # 200 steps are too few for the profiles; the unit is right, and not that of what networks see.
    for found in (total, exported / 50):
        assert 0.5 * response < found < 2 * response


def test_the_map_of_ones_own_is_taken_and_undone(tmp_path, monkeypatch):
    (tmp_path / "my_maps.py").write_text(MAP)
    maps = np.random.default_rng(0).gamma(1.0, 20.0, (70, 8, 8)).astype(np.float32)
    np.save(tmp_path / "maps.npy", maps)
    monkeypatch.chdir(tmp_path)
    source = open_source(Config(data="maps.npy", arrays=ArrayConfig(values="my_maps:squash,unsquash")))
    seen = source.mapped(source.values).fetch_batch(np.arange(70))
    assert seen.min() >= -1 and seen.max() < 1
    assert source.values.images.inverse(seen)[..., 0] == pytest.approx(maps, rel=1e-4, abs=1e-5)
