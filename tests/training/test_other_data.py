"""Other data than a run was trained on, as --data of hvdgan.sample and hvdgan.evaluate names them."""

import dataclasses
from pathlib import Path

import h5py
import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.data import open_source
from hvdgan.inference.inputs import open_data
from hvdgan.training.run import spec_of

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained_on(data, paired=False, **arrays):
    """The settings of a run, and the facts about its data."""
    config = Config(data=data, arrays=ArrayConfig(**{"values": "none", **arrays}))
    return config, spec_of(open_source(config, paired=paired))


def write(name, channels=(), **others):
    with h5py.File(name, "w") as file:
        for key, array in {"images": RNG.random((5, 4, 6, 2), np.float32), **others}.items():
            file[key] = array
        if channels:
            file["images"].attrs["channels"] = channels


# conditions of a table


@pytest.fixture
def table():
    """A run on five samples with conditions in their order, and five samples of other data."""
    write("mine.h5")
    write("others.h5")
    Path("t.csv").write_text("energy,theta\n" + "".join(f"{number},{10 * number}\n" for number in range(5)))
    return trained_on("mine.h5", condition_table=Path("t.csv"), condition_values="none")


def test_other_data_do_not_get_the_rows_of_a_table_in_order(table):
    with pytest.raises(UserError) as refused:
        open_data(*table, "others.h5")
    said = str(refused.value)
    assert "no array energy in others.h5" in said and "\n" not in said
    assert said.endswith(
        "the rows of --condition-table t.csv are in the order of mine.h5, so other data must hold energy, theta, or "
        "the table a column `file` with their paths"
    )


def test_other_data_may_hold_the_conditions_themselves(table):
    write("with.h5", energy=np.arange(5.0), theta=np.arange(5.0) ** 2)
    assert open_data(*table, "with.h5").conditions.tolist() == [[n, n * n] for n in range(5)]


@pytest.mark.parametrize("name", [None, "mine.h5"])
def test_the_data_of_the_run_keep_the_rows_of_its_table(table, name):
    assert open_data(*table, name).conditions.tolist() == [[n, 10 * n] for n in range(5)]


def test_a_table_by_file_name_holds_for_other_data(folder):
    for name in ("mine", "others"):
        (folder / name).mkdir()
        np.save(folder / name / f"{name}.npy", RNG.random((4, 6), np.float32))
    (folder / "t.csv").write_text("file,energy\nmine.npy,1\nothers.npy,2\n")
    run = trained_on("mine", condition_table=folder / "t.csv", condition_values="none")
    assert open_data(*run, "others").conditions.tolist() == [[2]]


# names of channels


def test_channels_in_another_order_are_refused():
    write("mine.h5", ["u10", "v10"])
    write("others.h5", ["v10", "u10"])
    with pytest.raises(UserError) as refused:
        open_data(*trained_on("mine.h5"), "others.h5")
    assert str(refused.value) == (
        "--data others.h5: the channels of the images are v10, u10, and the run was trained on u10, v10; name these, "
        "in this order"
    )


def test_variables_of_a_netcdf_in_another_order_are_refused():
    xarray = pytest.importorskip("xarray")
    for name in ("mine.nc", "others.nc"):
        fields = {each: (("time", "y", "x"), RNG.random((5, 4, 6), np.float32)) for each in ("u10", "v10")}
        xarray.Dataset(fields).to_netcdf(name, engine="h5netcdf")
    run = trained_on("mine.nc:u10,v10")
    with pytest.raises(UserError, match="channels of the images are v10, u10"):
        open_data(*run, "others.nc:v10,u10")
    assert open_data(*run, "others.nc:u10,v10").values.images.channels == ("u10", "v10")


def test_the_channels_of_inputs_are_compared_too():
    for name, channels in (("mine.h5", ["t2m", "rh"]), ("others.h5", ["rh", "t2m"])):
        write(name, inputs=RNG.random((5, 2, 3, 2), np.float32))
        with h5py.File(name, "a") as file:
            file["inputs"].attrs["channels"] = channels
    run = trained_on("mine.h5", paired=True, input_values="none")
    with pytest.raises(UserError, match="channels of the inputs are rh, t2m, and the run was trained on t2m, rh"):
        open_data(*run, "others.h5")


@pytest.mark.parametrize("named", ["mine.h5", "others.h5"])
def test_channels_without_names_are_not_compared(named):
    for name in ("mine.h5", "others.h5"):
        write(name, ["u10", "v10"] if name == named else ())
    assert len(open_data(*trained_on("mine.h5"), "others.h5")) == 5


# conditions and constants


def test_conditions_of_another_number_are_refused():
    write("mine.h5", angle=np.ones((5, 2)))
    write("others.h5", angle=np.ones(5))
    with pytest.raises(UserError) as refused:
        open_data(*trained_on("mine.h5", conditions=("angle",), condition_values="none"), "others.h5")
    assert str(refused.value) == (
        "--data others.h5: the conditions are angle, and the run was trained with angle_0, angle_1; name these, in "
        "this order"
    )


def test_constants_of_another_number_are_refused():
    write("mine.h5", ground=np.ones((4, 6)))
    write("others.h5", ground=np.ones((4, 6, 2)))
    with pytest.raises(UserError, match=r"^--data others\.h5: 2 constant fields, and the run was trained with 1; give"):
        open_data(*trained_on("mine.h5", constants="ground", constant_values="none"), "others.h5")


# data of runs from before unclear axes and numbers that hardly differ were refused


def older(run):
    """The settings of a run without the flags that its data need now."""
    config, spec = run
    arrays = dataclasses.replace(config.arrays, axes=None, input_axes=None, values=None, input_values=None)
    return dataclasses.replace(config, arrays=arrays), spec


@pytest.mark.parametrize("name", [None, "mine.npy"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 6, 6, 20), "HWC"), ((5, 8, 8, 8), "HWC"), ((5, 8, 8, 8, 8), "DHWC"), ((5, 6), "C")]
)
def test_the_data_of_an_older_run_open_as_in_training(name, shape, axes):
    np.save("mine.npy", 0.5 + RNG.random(shape) / 100)
    run = trained_on("mine.npy", axes=axes, values="range:0,1")
    source = open_data(*older(run), name)
    assert source.layout.shape == shape[1:] and source.fingerprint == open_source(run[0]).fingerprint


@pytest.mark.parametrize("unclear", ["images", "inputs", "both"])
def test_the_pairs_of_an_older_run_open_as_in_training(unclear):
    shapes = {name: (5, 6, 6, 20 if unclear in (name, "both") else 3) for name in ("images", "inputs")}
    np.savez("mine.npz", **{name: RNG.random(shape) / 100 for name, shape in shapes.items()})
    run = trained_on("mine.npz", paired=True, axes="HWC", input_axes="HWC", input_values="range:0,1")
    layout = open_data(*older(run), None).layout
    assert (layout.shape, layout.input_shape) == (shapes["images"][1:], shapes["inputs"][1:])


def test_an_older_run_on_a_netcdf_with_a_late_time_opens_as_in_training():
    xarray = pytest.importorskip("xarray")
    fields = {"t2m": (("station", "time", "x"), RNG.random((5, 4, 6), np.float32))}
    xarray.Dataset(fields).to_netcdf("mine.nc", engine="h5netcdf")
    run = trained_on("mine.nc", axes="HWC")
    assert open_data(*older(run), None).layout.shape == (4, 6, 1)


def test_data_that_have_changed_since_are_refused():
    np.save("mine.npy", RNG.random((5, 6, 6, 20)))
    run = trained_on("mine.npy", axes="HWC")
    np.save("mine.npy", RNG.random((5, 6, 20, 20)))
    with pytest.raises(UserError, match=r"samples of shape \(6, 20, 20\) .*; the run was trained on \(6, 6, 20\)"):
        open_data(*older(run), None)
