"""docs/science.md and the first examples of docs/data.md: their commands run as they are written and print what is
shown, and the flags for each of the eight codes train on small files."""

import re
import shlex
import shutil
from textwrap import indent

import h5py
import numpy as np
import pytest
import xarray
from PIL import Image

from hvdgan.train import main
from launching import ROOT, run
from tfrecord_files import write

PAGE = (ROOT / "docs" / "science.md").read_text()
COMMANDS, WHOLE, MEASURED = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ROWS = {
    line.split(" | ")[0].removeprefix("| "): re.findall(r"`(--[^`]+)`", line.split(" | ")[2])
    for line in PAGE.partition("| code |")[2].splitlines()[2:]
    if line.startswith("| ")
}
RANDOM = np.random.default_rng(0)
OWN = ["--recipe", "sample_digests:Alone"]


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
    return ["--recipe", "sample_digests:Pairs"]


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
    short = "--global-batch-size 2 --max-steps 1 --holdout 0 --sample-every 0 --run-dir run".split()
    assert main([*flags, *more, *short]) == 0
    assert f"of shape {shape}" in "".join(capsys.readouterr())


@pytest.mark.long
@pytest.mark.timeout(1800)  # some machines need five seconds for a step in three dimensions, others 0.2
def test_from_an_hdf5_file_to_samples_and_a_network_in_physical_units(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    printed = [said(command, tmp_path) for command in COMMANDS.splitlines()]
    assert indent("".join(printed[2:]), " " * 4) in PAGE
    with h5py.File(tmp_path / "showers.h5") as true, h5py.File(tmp_path / "drawn.h5") as drawn:
        assert drawn["energy"][:] == pytest.approx(50, rel=1e-4) and drawn["theta"][:] == pytest.approx(1.57, rel=1e-4)
        for mine, of_data in (("samples", "ECAL"), ("energy", "energy"), ("theta", "theta")):
            assert drawn[mine].attrs["units"] == true[of_data].attrs["units"]
        near = np.abs(true["energy"][:] - 50) < 10
        response = (true["ECAL"][:][near].sum(axis=(1, 2, 3)) / true["energy"][:][near]).mean()
        total = drawn["samples"][:].sum(axis=(1, 2, 3, 4)).mean() / 50
    # 200 steps are too few for the profiles; the unit is right, and not that of what networks see.
    assert 0.5 * response < total < 2 * response and (tmp_path / "drawn.png").exists()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_from_crops_to_a_map_of_a_whole_domain_with_its_coordinates(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    printed = [said(command, tmp_path) for command in WHOLE.splitlines()]
    assert indent("".join(printed[3:]), " " * 4) in PAGE
    with xarray.open_dataset(tmp_path / "map.nc") as made, xarray.open_dataset(tmp_path / "future.nc") as true:
        assert (made.lat == true.lat).all() and made.t.units == true.t.units
        coarse = made.t.mean("member").coarsen(lat=4, lon=4).mean().values
        alike = np.corrcoef(coarse.ravel(), true.t_coarse.values.ravel())[0, 1]
        rows = np.abs(made.t.diff("lat")).mean(("time", "member", "lon"))
    shown = PAGE.partition("steps it printed")[2].partition("- `crps`")[0].splitlines()
    found = said(MEASURED.strip(), tmp_path).splitlines()
    assert {line.split()[0] for line in found} == {line.split()[0] for line in shown if line}
    assert alike > 0.4 and rows[255] < 1.2 * rows.median()  # rows 255 and 256 are in other tiles


def said(command, folder):
    """What a command prints, but h5ls as h5py has it."""
    if command.startswith("h5ls "):
        with h5py.File(folder / command.split()[1]) as file:
            return "".join(f"{name:24} Dataset {{{', '.join(map(str, file[name].shape))}}}\n" for name in sorted(file))
    done = run(shlex.split(command), folder, seconds=1500, forked=True)
    logs = command.startswith(("hvdgan train", "hvdgan evaluate"))
    assert "--dry-run" in command or (done.returncode == 0 and (logs or not done.stderr)), done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_the_first_examples_of_the_page_on_data_print_what_it_shows(tmp_path):
    """But for versions, the machine, and the line breaks."""
    page = (ROOT / "docs" / "data.md").read_text().partition("## Kinds of data")[0]
    examples = re.findall(r"^```\n(.*?)^```\n\n```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "photos").mkdir()
    for number in range(302):
        Image.new("RGB", (307, 173), "red").save(tmp_path / "photos" / f"A{1 + number:03}.jpeg")
    assert len(examples) == 4
    for commands, shown in examples:
        found = "".join(said(command, tmp_path) for command in commands.splitlines())
        found, shown = (
            re.sub(r"\d+\.\d+\.\d+\w*|\S+(?=: rank)|\d+ cores?", "VARIES", " ".join(text.split()))
            for text in (found, shown)
        )
        assert found == shown
