"""docs/science.md: its commands run as they are written, and the flags for each of the eight codes on small files."""

import re
import shlex
import shutil

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray
from keras import layers

from hvdgan.data import open_source
from hvdgan.recipe import Recipe, Stage, Update, losses
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig
from hvdgan.train import main
from launching import ROOT, run
from saved import steps
from tfrecord_files import write

PAGE = (ROOT / "docs" / "science.md").read_text()
(COMMANDS,) = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
(MAP,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ROWS = {
    line.split(" | ")[0].removeprefix("| "): re.findall(r"`(--[^`]+)`", line.split(" | ")[2])
    for line in PAGE.partition("| code |")[2].splitlines()[2:]
    if line.startswith("| ")
}
RANDOM = np.random.default_rng(0)
OWN = ["--recipe", "test_science_page:Own"]


class Own(Recipe):
    def networks(self):
        return {"net": keras.Sequential([keras.Input(self.data.shape), layers.Dense(self.data.shape[-1])])}

    def optimizers(self):
        return {"net": keras.optimizers.Adam(1e-3)}

    def stages(self):
        return [Stage("fit", 2, [Update("fit", owns=["net"], loss=self.fit)])]

    def fit(self, nets, batch):
        given = {"conditions": batch.conditions, "inputs": batch.inputs}
        facts = {name: tf.reduce_mean(values) for name, values in given.items() if values is not None}
        return losses.squared_error(batch.images, nets.net(batch.images)), facts

    def draw(self, random):
        return {"latents": random.normal("latents", self.data.shape)}

    def sample(self, nets, batch):
        return nets.net(batch.latents)


class Pairs(Own):
    paired = True


def gan3d(folder):
    """Several files of (N, 51, 51, 25) energies."""
    (folder / "data").mkdir()
    for number in range(2):
        cells = RANDOM.gamma(0.2, 0.5, (8, 51, 51, 25)).astype(np.float32)
        with h5py.File(folder / "data" / f"{number}.h5", "w") as file:
            file.create_dataset("ECAL", data=cells, compression="gzip")
            file["energy"], file["theta"] = RANDOM.uniform(2, 500, 8), RANDOM.uniform(1, 2, 8)
    return ["--nf", "2", "--latent-size", "4"]


def saragan(folder):
    """One CT volume a file, 5 x 16 x 16, of a mean and a deviation near 1024."""
    (folder / "volumes").mkdir()
    for number in range(12):
        volume = RANDOM.normal(1024, 300, (5, 16, 16)).clip(0, 2048).astype(np.float32)
        np.save(folder / "volumes" / f"{number:04}.npy", volume)
    return OWN


def cosmogan(folder):
    """One array of maps, with a table of sigma_8 in their order."""
    np.save(folder / "maps.npy", RANDOM.gamma(1.0, 20.0, (12, 128, 128)).astype(np.float32))
    (folder / "sigma8.csv").write_text("sigma8\n" + "".join(f"{0.7 + number / 100}\n" for number in range(12)))
    (folder / "my_maps.py").write_text(MAP)
    return OWN


def sup3r(folder):
    """Variables of the fine fields and a coarse one, and the height of the ground, in one file."""
    dims, low = ("time", "south_north", "west_east"), ("time", "low_south_north", "low_west_east")
    fine = {name: RANDOM.normal(3, 4, (12, 80, 96)).astype(np.float32) for name in ("u10", "v10")}
    fields = {name: (dims, each, {"units": "m s-1"}) for name, each in fine.items()}
    fields["coarse"] = (low, fine["u10"].reshape(12, 20, 4, 24, 4).mean((2, 4)), {"units": "m s-1"})
    fields["topography"] = (dims[1:], RANDOM.uniform(0, 1, (80, 96)).astype(np.float32), {"units": "m"})
    times = {"time": ("time", np.arange(12), {"units": "hours since 2020-01-01"})}
    xarray.Dataset(fields, coords=times).to_netcdf(folder / "fine.nc", engine="h5netcdf")
    return ["--nf", "2", "--blocks", "1"]


def cgan(folder):
    """Lists of floats, 20 x 20 x 9 and 200 x 200 x 1."""
    (folder / "data").mkdir()
    for number in range(2):
        given, made = RANDOM.normal(size=(3, 20 * 20 * 9)).tolist(), RANDOM.gamma(0.5, 2.0, (3, 200 * 200)).tolist()
        rows = [{"generator_input": a, "generator_output": b} for a, b in zip(given, made, strict=True)]
        write(folder / "data" / f"{number}.tfrecords", rows)
    return ["--recipe", "test_science_page:Pairs"]


def calochallenge(folder):
    """Vectors of 368 voxels and (N, 1) incident energies, float64 as published."""
    with h5py.File(folder / "dataset_1.hdf5", "w") as file:
        file.create_dataset("showers", data=RANDOM.gamma(0.3, 100.0, (20, 368)), compression="gzip")
        file["incident_energies"] = 2.0 ** RANDOM.integers(8, 23, (20, 1))
    return OWN


def sagips(folder):
    """A table of events of two observables."""
    np.save(folder / "events.npy", RANDOM.normal(2, 5, (40, 2)))
    return OWN


FORMS = {
    "3DGAN": (gan3d, (51, 51, 25, 1)),
    "saraGAN": (saragan, (5, 16, 16, 1)),
    "cosmoGAN": (cosmogan, (128, 128, 1)),
    "sup3r": (sup3r, (80, 96, 2)),
    "public-downscaling-cgan": (cgan, (200, 200, 1)),
    "FastCaloGAN": (calochallenge, (368,)),
    "SAGIPS": (sagips, (2,)),
}


def test_each_row_has_a_form_or_is_like_another():
    rows = {name for row in ROWS for name in FORMS if row.startswith(name)}
    (other,) = [row for row in ROWS if not any(row.startswith(name) for name in FORMS)]
    assert len(ROWS) == 8 and rows == set(FORMS) and other.startswith("downscaling_benchmark")


@pytest.mark.long
@pytest.mark.parametrize("name", FORMS)
def test_the_flags_of_a_row_train_on_data_of_its_form(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    make, shape = FORMS[name]
    more = make(tmp_path)
    (flags,) = [found for row, found in ROWS.items() if row.startswith(name)]
    flags = [word for each in flags for word in shlex.split(each)]
    command = [*flags, *more, "--global-batch-size", "2", "--max-steps", "1", "--holdout", "0"]
    assert main([*command, "--sample-every", "0", "--run-dir", "run"]) == 0
    said = "".join(capsys.readouterr())
    assert f"of shape {shape}" in said, said
    assert steps(tmp_path / "run") == [1]


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
        for mine, of_data in (("samples", "ECAL"), ("energy", "energy"), ("theta", "theta")):
            assert drawn[mine].attrs["units"] == true[of_data].attrs["units"]
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
