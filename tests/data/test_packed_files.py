"""Packed samples are those of their source: numbers, names, labels, conditions, hold-out; damage is named by sample.
Modules: data.packed_files"""

import json
import shutil

import h5py
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.data import hold_out, open_source
from hvdgan.data.packed_files import INDEX
from hvdgan.errors import RunError, UserError
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig, TFRecordConfig
from packed import BESIDE, RNG, damage, fields, index_of, pack, prepare, write_images
from reading import all_of
from tfrecord_files import write

SMALL = {"image_size": 8, "fit": "crop"}


def opened(data, *, paired=False, **changes):
    return open_source(Config(data=str(data), **changes), paired=paired, unmapped=True, in_order=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("data") / "images", 20)


@pytest.fixture(scope="module")
def made(folder):
    return prepare(folder, folder.parent / "made")


# what is packed is what a run opens: makers of the data, flags of prepare, and the same for a run


def photos_with_table(path):
    folder = write_images(path / "photos")
    names = sorted(str(each.relative_to(folder)) for each in folder.rglob("*.*"))
    rows = [f"{number / 3},{name},{-number / 7}" for number, name in enumerate(names)]
    (path / "c.csv").write_text("\n".join(["energy,file,theta", *reversed(rows)]) + "\n")
    arrays = ArrayConfig(condition_table=path / "c.csv")
    return folder, f"--image-size 8 --fit crop --condition-table {path / 'c.csv'}", {**SMALL, "arrays": arrays}


def float_records(path):
    """Compressed as a whole, as public codes keep their floats."""
    examples = [{"x": RNG.normal(size=(4, 3, 2)).astype(np.float32).tobytes()} for _ in range(6)]
    named = TFRecordConfig(image="x", shape="4,3,2", dtype="float32")
    flags = "--tfrecord-image x --tfrecord-shape 4,3,2 --tfrecord-dtype float32"
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    return write(path / "a.tfrecord", examples, options=options), flags, {"tfrecord": named}


def everything(path):
    arrays = ArrayConfig(inputs="coarse", conditions=("energy", "angle"), constants="ground")
    return fields(path), f"{' '.join(BESIDE)} --compression gzip", {"arrays": arrays}


def sea(path):
    fields = RNG.normal(size=(9, 4, 5)).astype(np.float32)
    fields[:, :2, 1:3] = np.nan
    np.save(path / "a.npy", fields)
    return path / "a.npy", "--missing fill:0 --axes HW", {"arrays": ArrayConfig(missing="fill:0", axes="HW")}


@pytest.mark.parametrize("kind", [photos_with_table, float_records, everything, sea])
def test_what_is_packed_is_what_a_run_opens(tmp_path, monkeypatch, kind):
    """Without any flag of the run."""
    monkeypatch.chdir(tmp_path)
    data, flags, settings = kind(tmp_path)
    paired = "--pairs" in flags
    made, original = pack(data, tmp_path / "made", *flags.split()), opened(data, paired=paired, **settings)
    source = opened(made, paired=paired)
    np.testing.assert_array_equal(all_of(source), all_of(original))
    masks = [None if each.missing is None else each.missing.to_json() for each in (source, original)]
    assert masks[0] == masks[1] and (kind is not sea or "mask" in masks[0])
    assert source.layout == original.layout and source.is_pictures == original.is_pictures
    for part in ("images", "inputs", "constants", "conditions"):
        mine, its = source.values.parts()[part], original.values.parts()[part]
        assert mine == its or mine.channels == its.channels
    assert source.stored_dtype == original.stored_dtype.newbyteorder("=") and source.class_names == original.class_names
    for name in ("labels", "conditions", "constants"):
        np.testing.assert_array_equal(getattr(source, name), getattr(original, name))
    held = [hold_out(each, 0.5)[1].samples.indices.tolist() for each in (source, original)]
    assert held[0] == held[1]


def test_maps_are_those_of_prepare_unless_a_run_gives_its_own(tmp_path):
    np.save(tmp_path / "a.npy", RNG.random((6, 4, 4)) * 9)
    made = pack(tmp_path / "a.npy", tmp_path / "made", "--values", "range:0,9")
    assert str(open_source(Config(data=str(made))).values.images) == "range:0,9"
    given = open_source(Config(data=str(made), arrays=ArrayConfig(values="standard")))
    assert str(given.values.images) == "standard"
    without = pack(tmp_path / "a.npy", tmp_path / "b")
    with pytest.raises(UserError, match="numbers from .* declare their map"):
        open_source(Config(data=str(without)))


def edited(folder, target, **changes):
    """A copy whose index says something else."""
    shutil.copytree(folder, target)
    (target / INDEX).write_text(json.dumps({**index_of(folder), **changes}))
    return target


def test_an_index_that_is_not_valid_or_names_files_elsewhere_is_refused_in_one_line(made, tmp_path):
    name, facts = next(iter(index_of(made)["files"].items()))
    shutil.copy(made / name, tmp_path / "packed-00000-of-00001.h5")
    cases = [
        *({"files": {each: facts}} for each in ("../packed-00000-of-00001.h5", str(made / name), f"x/../{name}")),
        *({"files": each} for each in ([name], {name: {"count": "4", "sha256": ""}}, {name: {"count": 4}})),
        *({key: None} for key in ("settings", "files", "conditions", "pictures")),
        {"settings": {**index_of(made)["settings"], "values": ["none"]}},
    ]
    for number, changes in enumerate(cases):
        with pytest.raises(UserError) as caught:
            opened(edited(made, tmp_path / str(number), **changes))
        assert INDEX in str(caught.value) and "\n" not in str(caught.value), changes
    with pytest.raises(UserError, match="not finished; repeat the command of hvdgan.prepare"):
        opened(edited(made, tmp_path / "unfinished", complete=False))
    linked = edited(made, tmp_path / "linked")
    (linked / name).unlink()
    (linked / name).symlink_to(tmp_path / "packed-00000-of-00001.h5")
    with pytest.raises(UserError, match="lies elsewhere"):
        opened(linked)
    (tmp_path / "alias").symlink_to(made)
    assert len(opened(tmp_path / "alias")) == 20


def link(file, name, other):
    file[name] = h5py.ExternalLink(other, name)


def virtual(file, name, other):
    with h5py.File(other) as source:
        layout = h5py.VirtualLayout(source[name].shape, source[name].dtype)
        layout[...] = h5py.VirtualSource(other, name, source[name].shape)
    file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize(
    ("leading", "part"), [(link, "images"), (virtual, "images"), (virtual, "labels"), (link, "names")]
)
def test_a_packed_file_that_leads_to_another_file_is_refused(made, tmp_path, leading, part):
    copy, other = edited(made, tmp_path / "copy"), tmp_path / "other.h5"
    path = copy / "packed-00000-of-00003.h5"
    shutil.copy(path, other)
    with h5py.File(path, "a") as file:
        del file[part]
        leading(file, part, str(other))
    with pytest.raises(UserError) as caught:
        source = opened(copy)
        source.key(0), source.digest(0)
    assert "\n" not in str(caught.value)


def test_settings_that_are_not_those_of_the_folder_are_refused(tmp_path, made):
    packed = pack(fields(tmp_path), tmp_path / "made", *BESIDE)
    for settings, complaint in (
        ({"inputs": "fine"}, "--inputs fine: .* was packed with --inputs coarse; leave the flag out"),
        ({"conditions": ("mass",)}, "--conditions mass: .* was packed with energy, angle_0, angle_1"),
    ):
        with pytest.raises(UserError, match=f"^{complaint}"):
            opened(packed, paired=True, arrays=ArrayConfig(**settings))
    with pytest.raises(UserError, match=r"holds single samples, .* --pairs"):
        opened(made, paired=True)


def test_damage_is_named_by_file_and_sample(made, tmp_path):
    copy = shutil.copytree(made, tmp_path / "copy")
    for number in range(6):
        damage(copy / "packed-00001-of-00003.h5", number=number)
    with pytest.raises(RunError, match=r"packed-00001-of-00003.h5:images\[0\] cannot be read: .*class 0/012.png"):
        opened(copy, max_bad_fraction=1.0)
