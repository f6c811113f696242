"""hvdgan sample --whole: fields of any size by tiles, on one rank and two, in files of every kind with coordinates.
Modules: inference.field_files, inference.whole_evaluation, inference.whole_fields"""

import json
import re
import shutil
import sys

import h5py
import numpy as np
import pytest
import tensorflow as tf
import xarray
from PIL import Image

from hvdgan.evaluate import main as evaluate
from hvdgan.inference import whole_evaluation
from hvdgan.recipe import DataSpec
from hvdgan.recipe.loading import load_recipe
from hvdgan.sample import main as sample
from hvdgan.train import main as train
from hvdgan.values import sample_values
from launching import launcher, run
from saved import untrained

FACTOR = 4
SPACE = (64, 96)


def tiles_counted(said):
    """How many tiles the progress on a terminal has."""
    return int(re.search(r" 0/(\d+) \[", said)[1])


def means(numbers):
    return numbers.reshape(-1, FACTOR).mean(axis=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of crops of 32 x 32, and files: fields of 64 x 96 with land on the left, and their coarse inputs alone."""
    folder, rng = tmp_path_factory.mktemp("fields"), np.random.default_rng(0)
    fine = rng.normal(size=(3, *SPACE)).astype(np.float32)
    coarse = fine.reshape(3, SPACE[0] // FACTOR, FACTOR, SPACE[1] // FACTOR, FACTOR).mean(axis=(2, 4))
    fine[:, :, :8] = np.nan
    y, x = np.linspace(60, 40, SPACE[0]), np.arange(1.0, 1 + SPACE[1])
    heights = rng.uniform(0, 2000, SPACE).astype(np.float32)
    fields = xarray.Dataset(
        {
            "t": (("time", "lat", "lon"), fine, {"units": "K"}),
            "coarse": (("time", "y", "x"), coarse),
            "heights": (("lat", "lon"), heights),
        },
        {
            "time": ("time", [0.0, 24.0, 48.0], {"units": "hours since 2000-01-01"}),
            "lat": ("lat", y, {"units": "degrees_north"}),
            "lon": ("lon", x),
            "y": ("y", means(y)),
            "x": ("x", means(x)),
        },
    )
    fields.to_netcdf(folder / "both.nc", engine="h5netcdf")
    fields[["coarse", "heights"]].drop_vars(["lat", "lon"]).to_netcdf(folder / "inputs.nc", engine="h5netcdf")
    words = f"--recipe downscale --data {folder}/both.nc:t --inputs coarse --constants heights --missing fill:0"
    words += " --crop 32,32"
    words += " --values standard --input-values standard --constant-values standard --global-batch-size 2 --steps 2"
    words += f" --nf 1 --blocks 1 --noise-channels 2 --learning-rate 0.01 --report never --run-dir {folder}/run"
    assert train(words.split()) == 0
    return folder


def whole(folder, out, *words):
    assert sample([str(folder / "run"), "--whole", "--samples", "4", "--members", "2", "--out", str(out), *words]) == 0
    return out


def test_tiles_and_ranks_change_no_number_and_no_seam_shows(folder, tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as on_terminal:
        on_terminal.setattr(sys.stderr, "isatty", lambda: True)
        small = np.load(whole(folder, tmp_path / "small.npy", "--tile", "16"))
    assert tiles_counted(capsys.readouterr().err) == 4 * 6
    large = np.load(whole(folder, tmp_path / "large.npy", "--tile", "1000"))
    assert small.shape == (4, *SPACE, 1) and (np.isnan(small) == np.isnan(large)).all()
    assert np.isnan(small[:, :, :8]).all() and not np.isnan(small[:, :, 8:]).any()
    np.testing.assert_allclose(small, large, rtol=0, atol=1e-5)
    command = [*launcher(2), sys.executable, "-m", "hvdgan.sample", folder / "run", "--whole", "--samples", "4"]
    done = run([*command, "--members", "2", "--tile", "16", "--out", tmp_path / "two.npy"], tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "two.npy"), small)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.npy", "small.npy", "two.npy"]
    jumps = np.abs(np.diff(small[:, :, 8:], axis=2)).mean(axis=(0, 1, 3))
    seams = range(7, len(jumps), 16)
    assert jumps[seams].mean() < 1.5 * np.delete(jumps, seams).mean()
    members = small[:2, :, 8:] - small[1::-1, :, 8:]
    assert members.std() > 1e-3 and not np.array_equal(small[0], small[2], equal_nan=True)


@pytest.mark.long
@pytest.mark.parametrize("kind", [".nc", ".zarr"])
@pytest.mark.parametrize("data", ["both.nc:t", "inputs.nc"])
def test_netcdf_and_zarr_have_the_coordinates_of_the_fine_grid(folder, tmp_path, data, kind):
    out = whole(folder, tmp_path / f"out{kind}", "--data", f"{folder}/{data}")
    made = xarray.open_dataset(out, **({} if kind == ".nc" else {"engine": "zarr", "consolidated": False}))
    assert made.t.dims[:2] == ("time", "member") and made.t.shape == (2, 2, *SPACE) and made.t.units == "K"
    assert str(made.time.values[1])[:10] == "2000-01-02"
    lat, lon = made.t.dims[2:]
    np.testing.assert_allclose(made[lat], np.linspace(60, 40, SPACE[0]), rtol=1e-9)
    np.testing.assert_allclose(made[lon], np.arange(1.0, 1 + SPACE[1]), rtol=1e-9)
    plain = h5py.File(whole(folder, tmp_path / "plain.h5", "--data", f"{folder}/{data}"))
    np.testing.assert_array_equal(plain["samples"][...].reshape(made.t.shape), made.t.values)
    assert plain["index"][...].tolist() == [0, 0, 1, 1] and plain["samples"].attrs["units"] == "K"


def test_samples_of_the_size_in_training_pass_the_graph_optimizer(folder, tmp_path, capfd):
    tf.config.optimizer.set_experimental_options({"remapping": True})  # as in a new process
    assert sample([str(folder / "run"), "--samples", "2", "--out", str(tmp_path / "x.npz")]) == 0
    assert "failed" not in capfd.readouterr().err


@pytest.mark.long
def test_ensembles_of_whole_fields_are_measured_as_they_are_drawn_on_any_ranks(folder, tmp_path, capsys):
    run_dir = shutil.copytree(folder / "run", tmp_path / "run")
    data = f"{folder}/both.nc:t"
    words = [str(run_dir), "--whole", "--data", data, "--members", "3", "--seed", "7"]
    assert evaluate([*words, "--tile", "1000"]) == 0
    said = capsys.readouterr().out
    (record,) = (json.loads(line) for line in (run_dir / "evaluation.jsonl").read_text().splitlines())
    assert {name: record[name] for name in ("samples", "real_samples", "members", "whole")} == {
        "samples": 9,
        "real_samples": 3,
        "members": 3,
        "whole": [*SPACE],
    }
    drawn = tmp_path / "drawn.npy"
    assert sample([*words, "--samples", "9", "--out", str(drawn)]) == 0
    members = np.load(drawn).reshape(3, 3, *SPACE)[..., 8:].swapaxes(0, 1)
    truth = xarray.open_dataset(folder / "both.nc", decode_times=False).t.values[..., 8:]
    pairs = np.abs(members[:, None] - members[None]).sum(axis=(0, 1)) / (2 * 3 * 2)
    expected = {"crps": (np.abs(members - truth).mean(axis=0) - pairs).mean()}
    expected["spread"] = np.sqrt(members.var(axis=0, ddof=1).mean())
    expected |= {f"rank_{rank}": ((members < truth).sum(axis=0) == rank).mean() for rank in range(4)}
    for name, value in expected.items():
        assert record[f"eval/whole_{name}"] == pytest.approx(value, rel=1e-4), name
        assert f"eval/whole_{name} " in said
    assert record["eval/whole_spectrum"] > 0 and f"eval/whole_power_{SPACE[0] // 2}_{SPACE[0]} " in said
    again = shutil.copytree(folder / "run", tmp_path / "again")
    command = [*launcher(2), sys.executable, "-m", "hvdgan.evaluate", again, *words[1:], "--tile", "1000"]
    done = run(command, tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    other = json.loads((again / "evaluation.jsonl").read_text())
    figures = [name for name in record if name.startswith("eval/")]
    assert other["ranks"] == 2 and [other[name] for name in figures] == [record[name] for name in figures]
    assert evaluate([*words, "--tile", "32"]) == 0  # the figures are there
    assert len((run_dir / "evaluation.jsonl").read_text().splitlines()) == 1
    for wrong, flag in (
        (["--whole", "--data", f"{folder}/inputs.nc"], "inputs.nc"),
        (["--whole", "--samples", "2"], "--members 8"),
        (["--whole", "--real-samples", "3"], "--real-samples"),
        (["--members", "3"], "--whole"),
    ):
        assert evaluate([str(run_dir), *wrong]) == 2
        assert flag in capsys.readouterr().err


@pytest.mark.long
def test_held_out_fields_of_the_run_are_measured_by_small_tiles_in_parts(folder, tmp_path, capsys, monkeypatch):
    words = "--whole --members 2 --json --seed 1".split()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    records = []
    for tile in ("16", "200"):
        run_dir = shutil.copytree(folder / "run", tmp_path / tile)
        assert evaluate([str(run_dir), *words, "--tile", tile]) == 0
        monkeypatch.setattr(whole_evaluation, "_PLACES", 700)  # of 6,144
        said = capsys.readouterr()
        assert tiles_counted(said.err) > 6 if tile == "16" else tiles_counted(said.err) == 6
        records.append(json.loads(said.out))
    assert records[0]["real_samples"] == records[1]["real_samples"] == 3  # too few to hold out
    for name in ("crps", "rmse", "rank_1", "power_2_4"):
        small, large = (each[f"eval/whole_{name}"] for each in records)
        assert small == pytest.approx(large, rel=1e-5)


@pytest.mark.long
def test_pictures_are_enlarged_whole_and_what_cannot_be_computed_in_parts_is_refused(tmp_path, capsys):
    run_dir, photos = tmp_path / "srgan", tmp_path / "photos"
    photos.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (72, 104, 3), np.uint8)
    Image.fromarray(pixels).save(photos / "a.png")
    of_pixels = sample_values.of_pixels(3, paired=True)
    spec = DataSpec((32, 32, 3), 9, values=of_pixels)
    options = load_recipe("srgan").Options(nf=2, blocks=1, factor=2)
    untrained(run_dir, "srgan", options, spec, data=str(photos), channels=3)
    words = [str(run_dir), "--whole", "--samples", "1"]
    for tile in ("30", "999"):
        assert sample([*words, "--tile", tile, "--out", str(tmp_path / f"{tile}.png")]) == 0
    assert Image.open(tmp_path / "30.png").size == (104, 72)
    assert (tmp_path / "30.png").read_bytes() == (tmp_path / "999.png").read_bytes()
    for recipe, said in (("pix2pix", "network generator, layer down_1"), ("completion", "draw(), generate() or")):
        pairs = recipe == "pix2pix"
        spec = DataSpec((32, 32, 3), 9, input_shape=(32, 32, 3) if pairs else None, values=of_pixels)
        shutil.rmtree(run_dir)
        np.savez(
            tmp_path / "large.npz", images=np.stack([pixels[:64, :64]] * 2), inputs=np.stack([pixels[:64, :64]] * 2)
        )
        data = f"{tmp_path}/large.npz:images"
        untrained(run_dir, recipe, load_recipe(recipe).Options(nf=2), spec, data=data, channels=3)
        assert sample([*words, "--out", str(tmp_path / "no.npy")]) == 2
        assert said in capsys.readouterr().err
