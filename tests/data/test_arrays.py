"""Further arrays of the samples, by name: of another size, as maps of classes, as vectors and as single numbers."""

import re
import shlex
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
from PIL import Image

from hvdgan.data import open_source
from hvdgan.data.bad_files import BadImage
from hvdgan.data.statistics import with_statistics
from hvdgan.errors import UserError
from hvdgan.errors.shared_errors import ALONE
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig
from hvdgan.train import main
from hvdgan.training.step import used
from launching import ROOT
from packed import pack, write_images

RNG = np.random.default_rng(0)
COUNT = 12
ARRAYS = {
    "images": RNG.uniform(-1, 1, (COUNT, 8, 6, 2)).astype(np.float32),
    "map": RNG.integers(0, 4, (COUNT, 4, 3), np.uint8),
    "mask": RNG.random((COUNT, 8, 6)) < 0.5,
    "spectrum": RNG.normal(5, 3, (COUNT, 7, 5)).astype(np.float32),
    "energy": RNG.integers(100, 900, COUNT),
}
SETTINGS = {
    "arrays": ("map", "mask", "spectrum", "energy"),
    "values": "none",
    "axes": "HWC",
    "values_of": "map=onehot:4;spectrum=standard;energy=range:0,1000",
    "axes_of": "spectrum=WC",
}
FLAGS = [
    word for name, each in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", each) if name != "arrays"
] + ["--arrays", "map,mask,spectrum,energy"]
NONE = {"arrays": (), "values_of": None, "axes_of": None}
ORDER = np.array([7, 0, 11, 7])


def npz(arrays):
    np.savez("a.npz", **arrays)
    return "a.npz"


def hdf5(arrays):
    with h5py.File("a.h5", "w") as file:
        for name, each in arrays.items():
            file[name] = each
    return "a.h5:images"


def hdf5_files(arrays):
    for number, some in enumerate((slice(0, 5), slice(5, None))):
        with h5py.File(f"part{number}.h5", "w") as file:
            for name, each in arrays.items():
                file[name] = each[some]
    return "part*.h5:images"


def zarr(arrays):
    dims = {name: ("n", *(f"{name}{axis}" for axis in range(each.ndim - 1))) for name, each in arrays.items()}
    fields = {name: (dims[name], each.astype("u1") if each.dtype == bool else each) for name, each in arrays.items()}
    xarray.Dataset(fields).to_zarr("a.zarr", consolidated=False)
    return "a.zarr:images"


class Items:
    """Items as dicts, which counts how often each is read."""

    arrays: dict
    read: list[int]

    def __len__(self):
        return len(self.arrays["images"])

    def __getitem__(self, index):
        Items.read.append(index)
        return {name: each[index] for name, each in self.arrays.items()}


def own(arrays):
    Items.arrays, Items.read = arrays, []
    return f"{__name__}:Items"


def packed(arrays):
    return str(pack(npz(arrays), "packed", *FLAGS))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def opened(data, **changes):
    return open_source(Config(data=data, arrays=ArrayConfig(**{**SETTINGS, **changes})))


def seen(data, **changes):
    source = opened(data, **changes)
    return source.mapped(with_statistics(source, ALONE))


@pytest.mark.parametrize("write", [npz, hdf5, hdf5_files, zarr, own, packed])
def test_each_kind_of_data_gives_the_arrays_of_the_same_samples(write):
    data = write(ARRAYS)
    source = seen(data) if write is not packed else seen(data, **NONE, values=None, axes=None)
    if write is own:
        Items.read.clear()
    found = source.fetch_batch(ORDER)
    if write is own:
        assert Items.read == ORDER.tolist()  # once for all arrays of an item
    spectrum = (ARRAYS["spectrum"] - ARRAYS["spectrum"].mean((0, 1))) / ARRAYS["spectrum"].std((0, 1))
    expected = {
        "images": ARRAYS["images"],
        "arrays/map": np.eye(4)[ARRAYS["map"]],
        "arrays/mask": ARRAYS["mask"][..., None],
        "arrays/spectrum": spectrum,
        "arrays/energy": ARRAYS["energy"][:, None] / 500 - 1,
    }
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], each[ORDER], rtol=1e-4, atol=1e-5)
    assert {name: each.shape for name, each in source.blank(4).items()} == {n: e.shape for n, e in found.items()}


def test_the_fingerprint_covers_numbers_names_and_axes_of_each_array():
    same, changed = opened(npz(ARRAYS)), {**ARRAYS, "mask": ~ARRAYS["mask"]}
    others = [opened(npz(changed)), opened(npz(ARRAYS), axes_of="spectrum=CW")]
    others += [opened(npz(ARRAYS), arrays=("map", "spectrum", "energy")), opened(npz(ARRAYS), **NONE)]
    others += [opened(npz({**ARRAYS, "cover": ARRAYS["mask"]}), arrays=("map", "cover", "spectrum", "energy"))]
    assert opened(npz(ARRAYS)).fingerprint == same.fingerprint
    assert len({each.fingerprint for each in (same, *others)}) == 6


@pytest.mark.parametrize(
    ("name", "number", "said"),
    [
        ("spectrum", np.nan, r"images\[3\]: a.npz:spectrum: 1 of 35 numbers are NaN"),
        ("map", 9, r"images\[3\]: a.npz:map: channel 0 at \(0, 0\) is 9, which its map onehot:4 turns into nan"),
    ],
)
def test_a_sample_with_a_number_that_no_map_takes_is_left_out_by_the_name_of_its_array(name, number, said):
    wrong = ARRAYS[name].copy()
    wrong[3].flat[0] = number
    source = seen(npz({**ARRAYS, name: wrong}))
    with pytest.raises(BadImage, match=said):
        source.fetch(3)
    assert source.fetch(4)["arrays/map"].sum() == 12


MISTAKES = [
    ({"mask": ARRAYS["mask"][:9]}, {}, "--arrays: a.npz:mask has 9 entries; expected 12"),
    (
        {},
        {"arrays": ("masks",), "values_of": None, "axes_of": None},
        "--arrays: no array masks in a.npz; it has images, map, mask, ",
    ),
    ({}, {"values_of": "spectrum=standard"}, "--arrays a.npz:map: numbers from 0 to 3 in 12 samples looked at, "),
    ({}, {"values_of": "maps=none"}, "--values-of maps=none: "),
    (
        {"spectrum": np.zeros((12, 40, 3))},
        {"axes_of": None},
        "--arrays a.npz:spectrum: array of shape (12, 40, 3): seq",
    ),
    ({}, {"values_of": "map=onehot"}, "--values-of map=onehot: "),
    ({}, {"values_of": "map=onehot:4;spectrum=onehot:3"}, "--values-of spectrum=onehot:3: "),
    ({}, {"values": "onehot:2"}, "--values onehot:2: "),
    ({"map": ARRAYS["map"].astype("U1")}, {}, "--data a.npz:map: numbers of type <U1; "),
]


@pytest.mark.parametrize(("arrays", "settings", "said"), MISTAKES)
def test_mistakes_are_one_line_that_names_the_array(arrays, settings, said):
    with pytest.raises(UserError) as caught:
        opened(npz({**ARRAYS, **arrays}), **settings)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


MINE = "--recipe tiny_arrays:Maps --data a.npz --arrays"
REFUSED = {
    "--recipe dcgan --data photos --image-size 8 --fit crop --arrays map": "--arrays map: photos holds no arrays",
    "--recipe dcgan --data digits --axes-of map=HW": "--axes-of map=HW: digits holds no arrays beside its samples; ",
    "--recipe dcgan --data a.npz --values-of map=none": "--values-of map=none: ",
    "--recipe cyclegan --data a.npz --arrays map": "--arrays map: is for recipes without domains; ",
    f"{MINE} mask --crop 5,4 --holdout 0": "--crop 5,4: a sample is (2, 2) times its array mask; ",
    f"{MINE} volume --crop 4,4": "--crop 4,4: a sample (8, 6) is no multiple of its array volume (7, 5, 3); ",
    f"{MINE} volume --flip": "--flip: mirrors array volume along the axes of the samples, ",
    f"{MINE} mask": "recipe Maps (",  # which asks for other arrays
}


@pytest.mark.parametrize("words", REFUSED)
def test_commands_refuse_arrays_in_one_line(words, capsys):
    write_images(Path("photos"), count=4)
    half = {"mask": ARRAYS["mask"][:, ::2, ::2], "volume": np.zeros((COUNT, 7, 5, 3, 1))}
    npz({"images": ARRAYS["images"], **half})
    assert main([*words.split(), "--global-batch-size", "2", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"hvdgan: {REFUSED[words]}") and said.count("\n") == 1


def test_the_example_of_the_page_prints_what_it_shows(monkeypatch, capsys):
    page = (ROOT / "docs" / "data.md").read_text().partition("## More than one array")[2].partition("\n## ")[0]
    data, recipe = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    exec(data, {})
    Path("my_scenes.py").write_text(recipe)
    monkeypatch.syspath_prepend(".")
    (command,) = re.findall(r"^hvdgan train (.*)$", page, re.MULTILINE)
    assert main(shlex.split(command)) == 0
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert shown in capsys.readouterr().out
    sys.modules.pop("my_scenes", None)


def test_numbers_outside_of_a_declared_range_are_a_remark():
    (line,) = opened(npz(ARRAYS), values_of="map=none;spectrum=none;energy=range:0,500").remarks
    assert line.startswith(
        "--values-of energy: in 12 samples looked at, numbers of 0 lie outside of the declared range"
    )


def test_an_array_may_have_the_name_of_another_part_of_a_batch():
    data = {"images": 0, "index": 0, "numbers": 0, "arrays/index": 0, "B/images": 0, "B/index": 0}
    assert [*used(data)] == ["images", "numbers", "arrays/index", "B/images"]


def test_pictures_of_classes_are_not_brought_to_one_size():
    """The mean of two classes is none."""
    own({"images": ARRAYS["images"], "map": [Image.new("L", (4 + number % 2, 4)) for number in range(COUNT)]})
    with pytest.raises(UserError, match="map has pictures of several sizes; give arrays of one size"):
        open_source(Config(data=f"{__name__}:Items", image_size=8, arrays=ArrayConfig(arrays=("map",), axes="HWC")))
