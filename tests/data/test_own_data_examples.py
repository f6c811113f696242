"""The examples of docs/data.md for data of the user's own, with the packages that they name. Modules: data.own_data"""

import re
import subprocess
import sys
import sysconfig

import pytest

from launching import ROOT, run

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
