"""Data of the user's own: anything with len() and [i], and the examples of docs/data.md with the packages they name."""

import re
import subprocess
import sys
import sysconfig

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import RunError, UserError
from hvdgan.data import BadImage, open_source
from launching import ROOT, run
from reading import batches_of
from thread_ranks import Threads

MODULE = '''
import threading

import numpy as np

THREADS = set()


class Fields:
    """40 fields of 8 x 8, in the range [0, 1], with a class and two conditions each."""

    def __init__(self, count=40, broken=None, scale=1.0):
        self.fields = scale * np.random.default_rng(0).random((count, 8, 8), np.float32)
        self.broken = broken

    def __len__(self):
        return len(self.fields)

    def __getitem__(self, index):
        THREADS.add(threading.get_ident())
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


class Faulty(Pictures):
    def __init__(self, how):
        self.how = how

    def __getitem__(self, index):
        if index == 5 and self.how != "shape":
            raise {"error": ValueError, "disk": OSError}[self.how]("broken")
        return np.zeros((8 - (index == 5 and self.how == "shape"), 8), np.float32)


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
    np.testing.assert_array_equal(source.fetch_batch(np.array([7, 3, 3])), expected[[7, 3, 3], ..., None])
    np.testing.assert_array_equal(source.labels, np.arange(20) % 4)
    np.testing.assert_array_equal(source.conditions, np.outer(np.arange(20), [1, 0.5]))
    assert source.values.images.chains[0][0].name == "range"


def test_an_object_gives_pictures_and_a_function_chooses_one():
    for source in (opened("pictures"), opened("chosen", "part=first")):
        assert source.is_pictures and source.class_names == ["even", "odd"] and source.labels[1] == 1
        assert source.fetch(3)[0, 0].tolist() == [30, 30, 30]


def test_an_item_that_raises_an_error_or_has_another_shape_is_a_bad_one():
    for how, words in (("error", "ValueError: broken"), ("shape", r"\(7, 8\)")):
        source = opened("Faulty", f"how={how}", values="none")
        with pytest.raises(BadImage, match=rf"my_data:Faulty\[5\]: .*{words}"):
            source.fetch(5)
        assert source.fetch(2).shape == (8, 8, 1)
    with pytest.raises(UserError, match="my_data:Fields.5.: KeyError.*the labels of every item"):
        opened("Fields", "broken=5")
    with pytest.raises(RunError, match=r"my_data:Faulty\[5\]: OSError: broken"):  # a disk that fails breaks no item
        opened("Faulty", "how=disk", values="none")


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


def test_one_thread_reads_if_one_is_asked_for():
    source = opened("Fields")
    sys.modules["my_data"].THREADS.clear()
    with batches_of(source, global_batch_size=4, threads=1) as batches:
        assert len([next(batches) for _ in range(5)]) == 5 and len(sys.modules["my_data"].THREADS) == 1


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
print(len(source), *source.fetch_batch(np.arange(2)).shape, source.num_classes, source.conditions is not None)
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
