"""Data of the user's own: anything with len() and [i], and the examples of docs/data.md with the packages they name."""

import importlib
import random
import re
import subprocess
import sys
import sysconfig
import threading

import numpy as np
import pytest
from PIL import Image

from hvdgan.data import BadImage, open_source
from hvdgan.errors import RunError, UserError
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig
from launching import ROOT, run
from thread_ranks import Threads

MODULE = '''
import numpy as np


class Fields:
    """40 fields of 8 x 8, in the range [0, 1], with a class and two conditions each."""

    def __init__(self, count=40, broken=None, scale=1.0):
        self.fields = scale * np.random.default_rng(0).random((count, 8, 8), np.float32)
        self.broken = broken

    def __len__(self):
        return len(self.fields)

    def __getitem__(self, index):
        if index == self.broken:
            raise KeyError("no such field")
        return {"images": self.fields[index], "labels": index % 4, "conditions": [float(index), 0.5 * index]}


class Pictures:
    labels = [0, 1] * 10
    class_names = ["even", "odd"]

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.full((8, 8, 3), 10 * index, np.uint8)


def chosen(part):
    return {"first": pictures, "no": 3}[part]


pictures = Pictures()
'''


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "my_data.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_data", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_data", None)


def opened(name, *options, paired=False, **arrays):
    config = Config(data=f"my_data:{name}", data_options=options, arrays=ArrayConfig(**arrays))
    return open_source(config, paired=paired)


def test_a_class_gives_fields_with_labels_and_conditions():
    source = opened("Fields", "count=20")
    assert (len(source), source.layout.shape, source.num_classes, source.is_pictures) == (20, (8, 8, 1), 4, False)
    expected = np.random.default_rng(0).random((20, 8, 8), np.float32)
    np.testing.assert_array_equal(source.fetch_batch(np.array([7, 3, 3]))["images"], expected[[7, 3, 3], ..., None])
    np.testing.assert_array_equal(source.labels, np.arange(20) % 4)
    np.testing.assert_array_equal(source.conditions, np.outer(np.arange(20), [1, 0.5]))
    assert source.values.images.chains[0][0].name == "range"


def test_an_object_gives_pictures_and_a_function_chooses_one():
    for source in (opened("pictures"), opened("chosen", "part=first")):
        assert source.is_pictures and source.class_names == ["even", "odd"] and source.labels[1] == 1
        assert source.fetch(3)["images"][0, 0].tolist() == [30, 30, 30]


def test_any_number_of_ranks_has_the_same_data_and_shares_what_is_read_at_the_start():
    alone = opened("Fields")
    config = Config(data="my_data:Fields")
    found = {}

    def work(peers):
        found[peers.rank] = open_source(config, peers=peers)

    assert Threads(3).run(work) == [None] * 3
    for source in found.values():
        assert source.fingerprint == alone.fingerprint
        np.testing.assert_array_equal(source.labels, alone.labels)
        np.testing.assert_array_equal(source.conditions, alone.conditions)
    others = (opened("Fields", *options).fingerprint for options in ([], ["count=39"], ["scale=0.5"]))
    assert len({*others}) == 3


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Fields", ["count"], "--data-options count: expected KEY=VALUE"),
        ("pictures", ["part=first"], "--data-options part=first: my_data:pictures is an object"),
        ("chosen", ["part=no"], r"my_data:chosen: int has no len\(\) and \[i\]"),
    ],
)
def test_what_is_no_data_is_refused_in_one_line(name, options, words):
    with pytest.raises(UserError, match=words) as caught:
        opened(name, *options)
    assert "\n" not in str(caught.value)


def items(monkeypatch, item, count=24, **attributes):
    """Data whose items a function makes of their numbers, as --data my_data:Items."""
    functions = {"__len__": lambda self: count, "__getitem__": lambda self, index: item(index)}
    monkeypatch.setattr("my_data.Items", type("Items", (), {**functions, **attributes}), raising=False)


@pytest.fixture
def imported(module, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("my_data")


def faulty(how):
    """A function that makes items, of which the sixth cannot be used."""

    def item(index):
        if index == 5 and how != "shape":
            raise {"error": ValueError, "disk": OSError}[how]("broken")
        return np.zeros((8 - (index == 5 and how == "shape"), 8), np.float32)

    return item


def test_an_item_that_raises_an_error_or_has_another_shape_is_a_bad_one(imported, monkeypatch):
    for how, words in (("error", "ValueError: broken"), ("shape", r"\(7, 8\)")):
        items(monkeypatch, faulty(how))
        source = opened("Items", values="none")
        with pytest.raises(BadImage, match=rf"my_data:Items\[5\]: .*{words}"):
            source.fetch(5)
        assert source.fetch(2)["images"].shape == (8, 8, 1)
    with pytest.raises(UserError, match="my_data:Fields.5.: KeyError.*the conditions of every item"):
        opened("Fields", "broken=5")
    items(monkeypatch, faulty("disk"))
    with pytest.raises(RunError, match=r"my_data:Items\[5\]: OSError: broken"):  # a disk that fails breaks no item
        opened("Items", values="none")


def field(index):
    return np.random.default_rng(index).uniform(-1, 1, (8, 8)).astype(np.float32)


def colours(index, *size):
    return Image.fromarray(np.random.default_rng(index).integers(0, 256, (*(size or (8, 12)), 3), np.uint8))


@pytest.mark.parametrize(
    "item",
    [
        lambda index: {"image": field(index), "label": index % 3},
        lambda index: {"img": field(index), "label": np.float64(index % 3), "caption": "a", "boxes": {"n": 1}},
        lambda index: (field(index), index % 3),
        lambda index: [field(index), np.array(index % 3)],
        lambda index: (field(index).astype(np.float64 if index % 5 else np.float32), index % 3),
        lambda index: {"images": field(index), "labels": ["b", "c", "dd"][index % 3]},
        lambda index: {"images": field(index).tolist(), "labels": [b"b", b"c", b"dd"][index % 3]},
    ],
)
def test_items_are_taken_as_other_libraries_give_them(imported, monkeypatch, item):
    items(monkeypatch, item)
    source = opened("Items")
    np.testing.assert_array_equal(
        source.fetch_batch(np.array([5, 0]))["images"][..., 0], np.stack([field(5), field(0)])
    )
    assert source.labels.tolist() == [0, 1, 2] * 8 and not source.remarks
    assert source.class_names == (["b", "c", "dd"] if isinstance(item(0), dict) and "labels" in item(0) else None)


def test_arrays_of_one_shape_in_a_tuple_are_one_array_and_an_array_alone_has_no_label(imported, monkeypatch):
    items(monkeypatch, lambda index: (field(index), field(index + 1)))
    np.testing.assert_array_equal(opened("Items", axes="CHW").fetch(3)["images"], np.stack([field(3), field(4)], -1))
    items(monkeypatch, lambda index: (field(index)[0], field(index)[1]))
    np.testing.assert_array_equal(opened("Items", axes="HW").fetch(3)["images"][..., 0], field(3)[:2])


@pytest.mark.parametrize(
    "label", [None, {"boxes": 1}, np.arange(40), 0.5, colours(0)], ids=lambda each: type(each).__name__
)
def test_a_label_that_is_no_class_forbids_nothing(imported, monkeypatch, label):
    items(monkeypatch, lambda index: (field(index), label))
    source = opened("Items")
    np.testing.assert_array_equal(source.fetch(3)["images"][..., 0], field(3))
    assert source.num_classes == 0 and "labels" in source.remarks[0] and "\n" not in source.remarks[0]


def test_attributes_may_be_texts_with_known_names_and_labels_may_be_conditions(imported, monkeypatch):
    items(monkeypatch, field, labels=["b", "a", "b"] * 8, class_names=["b", "a", "c"])
    source = opened("Items")
    assert (source.labels.tolist(), source.class_names) == ([0, 1, 0] * 8, ["b", "a", "c"])
    items(monkeypatch, lambda index: (field(index), 0.5 * index))
    source = opened("Items", conditions=("labels",))
    assert source.conditions[:, 0].tolist() == [0.5 * index for index in range(24)] and source.labels is None


def test_pictures_are_decoded_as_those_of_files(imported, monkeypatch, tmp_path):
    """A palette, grey among colours, transparency; of 16 bits; turned by EXIF; of several sizes."""
    turned = Image.Exif()
    turned[0x0112] = 6
    kinds = [lambda x: x.quantize(8), lambda x: x.convert("L"), lambda x: x, lambda x: x.convert("LA"), transparent]
    items(monkeypatch, lambda index: kinds[index % 5](colours(index)))
    (tmp_path / "files").mkdir()
    for index in range(24):
        kinds[index % 5](colours(index)).save(tmp_path / "files" / f"{index:02}.png")
    expected = open_source(Config(data="files", image_size=(8, 12))).fetch_batch(np.arange(24))["images"]
    source = opened("Items")
    assert source.is_pictures and source.layout.shape == (8, 12, 3)
    np.testing.assert_array_equal(source.fetch_batch(np.arange(24))["images"], expected)
    items(monkeypatch, lambda index: Image.fromarray(np.full((8, 8), 2570 * index, np.uint16)))
    assert opened("Items").fetch(7)["images"].tolist() == np.full((8, 8, 1), 70).tolist()
    assert opened("Items", values="range:0,65535").fetch(7)["images"][0, 0, 0] == 17990  # numbers, if a map says so
    items(monkeypatch, lambda index: with_exif(colours(index), turned))
    np.testing.assert_array_equal(opened("Items").fetch(3)["images"], np.rot90(np.asarray(colours(3)), -1))
    items(monkeypatch, lambda index: colours(index, 8 + index, 16))
    with pytest.raises(UserError, match="of several sizes.*--image-size"):
        opened("Items")
    sized = open_source(Config(data="my_data:Items", image_size=8, fit="crop"))
    assert sized.fetch_batch(np.arange(24))["images"].shape == (24, 8, 8, 3)


def transparent(picture):
    picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    return picture


def with_exif(picture, exif):
    picture.info["exif"] = exif.tobytes()
    return picture


def test_masked_numbers_are_missing(imported, monkeypatch):
    """Of floats NaN; of integers a bad sample; in labels they are named."""
    land = np.eye(8, dtype=bool)

    def masked(array, mask):
        return np.ma.masked_array(np.where(mask, array.dtype.type(99), array), mask)

    expected = np.where(land, np.float32(np.nan), field(3))
    items(monkeypatch, lambda index: masked(field(index), land))
    np.testing.assert_array_equal(opened("Items", values="none").fetch(3)["images"][..., 0], expected)
    filled = opened("Items", values="none", missing="fill:0")
    seen = filled.mapped(filled.values)
    np.testing.assert_array_equal(seen.fetch(3)["images"][..., 0], np.nan_to_num(expected))
    np.testing.assert_array_equal(seen.constants[..., 0], ~land)
    items(monkeypatch, lambda index: masked(np.full((8, 8), index), land & (index == 5)))
    source = opened("Items", values="none")
    with pytest.raises(BadImage, match=r"my_data:Items\[5\]: 8 of 64 numbers are masked"):
        source.fetch(5)
    assert source.fetch(6)["images"].max() == 6
    items(monkeypatch, field, labels=np.ma.masked_array(np.arange(24) % 2, np.arange(24) == 3))
    source = opened("Items")
    assert source.labels is None and "1 of 24 numbers are masked" in source.remarks[0]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (lambda index: None if index == 0 else field(index), "item 0 is None; expected an array"),
        (lambda index: [[1.0, 2.0], [3.0]], "images of item 0.*list"),
        (lambda index: (field(index), field(index)[:4], 1), "images of item 0.*tuple"),
        (lambda index: {"image": {"bytes": b""}, "label": 1}, "images of item 0.*dict"),
        (lambda index: {"a": field(index), "b": field(index)}, "found the arrays a, b; .* images in data of your own"),
        (lambda index: (field(index), 1) if index > 9 else field(index), "item 12 has labels, and item 0 has none"),
    ],
)
def test_items_that_cannot_be_taken_are_named_in_one_line(imported, monkeypatch, item, words):
    items(monkeypatch, item)
    with pytest.raises(UserError, match=words) as caught:
        opened("Items")
    assert "my_data:Items" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "item",
    [
        lambda index: field(index) + np.random.default_rng().normal(),
        lambda index: field(index) + random.random(),
        lambda index: {"image": colours(index), "label": random.random()},
        lambda index: field(index) + threading.get_ident(),
        lambda index: field(index) + (threading.current_thread().name == "rank 1"),  # on this rank alone
    ],
)
def test_items_that_differ_when_they_are_read_again_end_every_rank(imported, monkeypatch, item):
    items(monkeypatch, item)
    errors = Threads(2).run(lambda peers: open_source(Config(data="my_data:Items"), peers=peers))
    for error in errors:
        assert isinstance(error, UserError)
        assert re.search("--data my_data:Items: item \\d+ differs when it is read again", str(error))


PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8").partition("## Data of your own")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"`pip install ([^`]+)`\).*?`(--data (\w+):[^`]+)`\n\n```python\n(.*?)```", PAGE, re.DOTALL)
PARTS = re.compile(r"^# (\w+)$", re.MULTILINE)
MAKERS = """
import numpy as np

rng = np.random.default_rng(0)
# my_faces
import datasets
from PIL import Image

kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
images = [Image.fromarray(rng.integers(0, 255, (70, 80, 3), dtype=np.uint8)) for _ in range(12)]
datasets.Dataset.from_dict({"image": images, "label": [0, 1, 2] * 4}, features=kinds).save_to_disk("faces")
# my_digits
import torch

torch.save({"images": torch.rand(12, 8, 8), "labels": torch.arange(12) % 3}, "digits.pt")
# my_fields
from array_record.python.array_record_module import ArrayRecordWriter

writer = ArrayRecordWriter("fields.array_record", "group_size:1")
for _ in range(12):
    writer.write(rng.random((8, 8), np.float32).tobytes())
writer.close()
# my_pictures
import tensorflow as tf
import tensorflow_datasets as tfds

rows = {"image": rng.integers(0, 255, (12, 8, 8, 1), dtype=np.uint8), "label": np.arange(12) % 3}
kinds = {"image": tfds.features.Image(shape=(8, 8, 1)), "label": tfds.features.ClassLabel(num_classes=3)}
tfds.dataset_builders.store_as_tfds_dataset(
    name="mine", version="1.0.0", data_dir="tfds", file_format="array_record", disable_shuffling=True,
    split_datasets={"train": tf.data.Dataset.from_tensor_slices(rows)}, features=tfds.features.FeaturesDict(kinds),
)
# my_scans
import pathlib

import nibabel

pathlib.Path("scans").mkdir()
for number in range(12):
    nibabel.save(nibabel.Nifti1Image(rng.random((8, 8, 8), np.float32), np.eye(4)), f"scans/{number}.nii.gz")
# my_showers
import uproot

with uproot.recreate("showers.root") as file:
    file["events"] = {"cells": rng.random((12, 64), np.float32), "energy": rng.random(12)}
"""
LOOK = """
import sys

import numpy as np

from hvdgan.data import open_source
from hvdgan.training.command import parse

source = open_source(parse(sys.argv[1:]).config)
print(len(source), *source.fetch_batch(np.arange(2))["images"].shape, source.num_classes, source.conditions is not None)
"""
SEEN = {
    "my_faces": "12 2 64 64 3 3 False",
    "my_digits": "12 2 8 8 1 3 False",
    "my_fields": "12 2 8 8 1 0 False",
    "my_pictures": "12 2 8 8 1 3 False",
    "my_scans": "12 2 8 8 8 1 0 False",
    "my_showers": "12 2 8 8 1 0 True",
}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_examples_open_what_they_are_for(tmp_path):
    assert [module for _, _, module, _ in EXAMPLES] == [*SEEN]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    (site,) = tmp_path.glob("venv/lib/python3*/site-packages")
    (site / "ours.pth").write_text(sysconfig.get_path("purelib"))
    pins = [word for name in ("", "-2.21") for word in ("-c", ROOT / "launch" / f"constraints{name}.txt")]
    wanted = " ".join(packages for packages, *_ in EXAMPLES).split()
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *pins, *wanted], check=True, timeout=600)
    (head, *parts) = PARTS.split(MAKERS)
    for (_, words, module, code), maker in zip(EXAMPLES, parts[1::2], strict=True):
        (tmp_path / f"{module}.py").write_text(code)
        made = run([python, "-c", head + maker], tmp_path)
        assert made.returncode == 0, made.stderr
        done = run([python, "-c", LOOK, *words.split()], tmp_path)
        assert done.returncode == 0 and done.stdout.splitlines()[-1] == SEEN[module], done.stdout + done.stderr
