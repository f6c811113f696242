"""Samples of another program, as --images of hvdgan.evaluate names them: their size, their axes and their numbers.

Modules: inference.inputs.
"""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.data import open_source
from hvdgan.inference.inputs import open_data, open_samples
from hvdgan.recipe.batch import unpack
from hvdgan.training.run import spec_of
from packed import prepare
from packed_arrays import pack
from tfrecord_files import png, write

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained_on(data, **arrays):
    """The settings of a run, and the facts about its data."""
    config = Config(data=data, arrays=ArrayConfig(**arrays))
    return config, spec_of(open_source(config))


def seen(run, images):
    """What networks see of samples."""
    source, spec = open_samples(*run, images)
    return unpack(tf.constant(source.fetch_batch(np.arange(len(source)))), spec).images.numpy()


def refused(run, images):
    with pytest.raises(UserError) as caught:
        open_samples(*run, images)
    return str(caught.value)


# --crop


def test_arrays_have_the_size_of_the_crop_or_of_the_data():
    np.save("fields.npy", RNG.random((9, 8, 9, 2)))
    run = trained_on("fields.npy", values="none", crop=(4, 5))
    made, whole = RNG.random((6, 4, 5, 2), np.float32), RNG.random((6, 8, 9, 2), np.float32)
    np.save("made.npy", made)
    np.save("whole.npy", whole)
    np.testing.assert_array_equal(seen(run, "made.npy"), made)
    np.testing.assert_array_equal(seen(run, "whole.npy"), whole[:, 2:6, 2:7])
    np.save("other.npy", RNG.random((6, 5, 5, 2)))
    assert refused(run, "other.npy") == (
        "--images other.npy: samples of shape (5, 5, 2) with inputs None; the run was trained on (4, 5, 2) or "
        "(8, 9, 2) with inputs None"
    )


def written(kind, pictures):
    """Pictures in files of a kind; returns their name for --images."""
    height, width = pictures.shape[1:3]
    name = f"{kind}-{height}-{width}"
    if kind == "array":
        np.save(f"{name}.npy", pictures)
        return f"{name}.npy"
    if kind == "records":
        return str(write(Path(f"{name}.tfrecord"), [{"image": png(each)} for each in pictures]))
    Path(name).mkdir()
    for number, each in enumerate(pictures):
        Image.fromarray(each).save(f"{name}/{number:03}.png")
    if kind == "folder":
        return name
    return str(prepare(Path(name), Path("packed", name), "--image-size", f"{height},{width}"))


def pixels(images):
    """The pictures of what networks see, in an order that does not depend on the files."""
    return sorted(np.rint((each + 1) * 127.5).astype(np.uint8).tobytes() for each in images)


@pytest.fixture(params=[(8, 8), (8, 16)], ids=["square", "wide"])
def crop(request):
    return request.param


@pytest.fixture
def cropped(crop):
    """A run on pictures of 16 x 16 pixels, of which it sees a part."""
    np.save("faces.npy", RNG.integers(0, 256, (9, 16, 16, 3), np.uint8))
    return trained_on("faces.npy", crop=crop)


@pytest.mark.parametrize("kind", ["array", "folder", "packed", "records"])
def test_pictures_have_the_size_of_the_crop_or_of_the_data(cropped, crop, kind):
    """The size of the files decides: pictures of the data's size are not resized."""
    Path("packed").mkdir()
    made, whole = (RNG.integers(0, 256, (6, *size, 3), np.uint8) for size in (crop, (16, 16)))
    centre = whole[:, 4:12, 4:12] if crop == (8, 8) else whole[:, 4:12]
    assert pixels(seen(cropped, written(kind, made))) == sorted(each.tobytes() for each in made)
    assert pixels(seen(cropped, written(kind, whole))) == sorted(each.tobytes() for each in centre)


def test_pictures_of_both_sizes_are_refused():
    np.save("faces.npy", RNG.integers(0, 256, (9, 16, 16, 3), np.uint8))
    Path("mixed").mkdir()
    for number in range(6):
        Image.new("RGB", (16, 16) if number % 2 else (8, 8), number).save(f"mixed/{number}.png")
    assert refused(trained_on("faces.npy", crop=(8, 8)), "mixed") == (
        "--images mixed: pictures of 16 x 16, 8 x 8 pixels; expected one size, 8 x 8 as the networks make them, or "
        "16 x 16, of which --crop takes the centre"
    )


# the maps and axes of a run apply to its own files


@pytest.fixture
def packed_fields(folder):
    """A run on four fields in packed shards, which need no --axes."""
    np.save("fields.npy", RNG.random((9, 4, 5, 4)))
    return trained_on(str(pack("fields.npy", folder / "shards", "--axes", "HWC")), values="range:0,10")


def test_four_channels_need_no_axes(packed_fields):
    samples = RNG.uniform(0, 12, (6, 4, 5, 4)).astype(np.float32)
    np.save("gan.npy", samples)
    np.testing.assert_allclose(seen(packed_fields, "gan.npy"), samples / 5 - 1, atol=1e-6)
    assert open_data(*packed_fields, "gan.npy").layout.shape == (4, 5, 4)
    np.save("wide.npy", RNG.random((6, 4, 6, 4)))
    assert refused(packed_fields, "wide.npy").startswith("--images wide.npy: samples of shape (4, 6, 4)")


def test_shards_need_not_be_packed_from_the_axes_of_the_run(folder):
    np.save("fields.npy", RNG.random((9, 3, 4, 5)))
    run = trained_on("fields.npy", values="none", axes="CHW")
    samples = RNG.random((6, 4, 5, 3), np.float32)
    np.save("gan.npy", samples)
    shards = str(pack("gan.npy", folder / "shards", "--axes", "HWC"))
    np.testing.assert_array_equal(seen(run, shards), samples)


def test_numbers_beyond_those_of_the_data_need_no_map():
    np.save("fields.npy", RNG.random((9, 4, 5, 1)))
    run = trained_on("fields.npy")
    np.save("gan.npy", np.linspace(-0.02, 1.02, 120, dtype=np.float32).reshape(6, 4, 5, 1))
    assert seen(run, "gan.npy").max() == pytest.approx(1.04)


def test_integers_need_no_map():
    np.save("counts.npy", RNG.integers(0, 900, (9, 4, 5, 1), np.int16))
    run = trained_on("counts.npy", values="range:0,900")
    samples = RNG.integers(0, 900, (6, 4, 5, 1), np.int32)
    np.save("gan.npy", samples)
    np.testing.assert_allclose(seen(run, "gan.npy"), samples / 450 - 1, atol=1e-6)


def test_a_map_for_each_channel_does_not_need_their_names():
    xarray = pytest.importorskip("xarray")
    fields = {each: (("time", "y", "x"), RNG.random((9, 4, 5), np.float32)) for each in ("t2m", "u10", "v10", "rain")}
    xarray.Dataset(fields).to_netcdf("weather.nc", engine="h5netcdf")
    run = trained_on("weather.nc:t2m,u10,v10,rain", values="rain=log1p;t2m=none;u10=none;v10=range:0,2")
    samples = RNG.uniform(0, 5, (6, 4, 5, 4)).astype(np.float32)
    np.save("gan.npy", samples)
    expected = np.concatenate([samples[..., :2], samples[..., 2:3] - 1, np.log1p(samples[..., 3:])], axis=-1)
    np.testing.assert_allclose(seen(run, "gan.npy"), expected, rtol=1e-6)


def test_arrays_are_no_pictures():
    """Floats within [0, 1] were mapped as if they were pixels from 0 to 255."""
    np.save("floats.npy", RNG.random((9, 8, 8, 1)))
    np.save("pixels.npy", RNG.integers(0, 256, (9, 8, 8, 1), np.uint8))
    pictures, arrays = trained_on("pixels.npy"), trained_on("floats.npy")
    assert refused(pictures, "floats.npy") == (
        "--images floats.npy: arrays, and the run was trained on 8-bit pictures; give such data"
    )
    assert refused(arrays, "pixels.npy") == (
        "--images pixels.npy: 8-bit pictures, and the run was trained on arrays; give such data"
    )
