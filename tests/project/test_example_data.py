"""The programs of examples/data: what they write is of the form, and has the profiles, that they state."""

import struct
import subprocess
import sys

import h5py
import numpy as np

from hvdgan.cli.config import Config
from hvdgan.data import open_source
from launching import ROOT, run

SCRIPT = ROOT / "examples" / "data" / "npm_pictures.py"
DIGITS = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
LABELS = np.array([7, 2, 1, 0, 9], np.uint8)
PARTS = {"train": slice(3), "t10k": slice(3, 5)}


def mnist_package(folder):
    data = folder / "data"
    data.mkdir(parents=True)
    for prefix, num in (("train", 3), ("t10k", 2)):
        some, heads = (
            PARTS[prefix],
            (struct.pack(">4B3I", 0, 0, 8, 3, num, 28, 28), struct.pack(">4BI", 0, 0, 8, 1, num)),
        )
        (data / f"{prefix}-images-idx3-ubyte").write_bytes(heads[0] + DIGITS[some].tobytes())
        (data / f"{prefix}-labels-idx1-ubyte").write_bytes(heads[1] + LABELS[some].tobytes())
    return folder


def test_digits_get_a_black_border_and_keep_pixels_and_labels(tmp_path):
    package = mnist_package(tmp_path / "package")
    done = run([sys.executable, SCRIPT, "mnist", "--package", package, "--out", "out"], tmp_path)
    assert done.returncode == 0, done.stderr
    for part, some in (("train", PARTS["train"]), ("test", PARTS["t10k"])):
        source = open_source(Config(data=str(tmp_path / "out" / f"{part}.npz")))
        pictures = source.fetch_batch(np.arange(len(source)))
        assert pictures.shape == (len(LABELS[some]), 32, 32, 1) and pictures.dtype == np.uint8
        np.testing.assert_array_equal(pictures[:, 2:-2, 2:-2, 0], DIGITS[some])
        pictures[:, 2:-2, 2:-2] = 0
        assert not pictures.any()
        np.testing.assert_array_equal(source.labels, LABELS[some])


def test_showers_writes_both_kinds_of_files_with_the_same_showers(tmp_path):
    for name in ("showers.h5", "showers.npz"):
        words = ["--out", str(tmp_path / name), "--num", "30", "--size", "8", "--seed", "3"]
        subprocess.run([sys.executable, ROOT / "examples" / "data" / "showers.py", *words], check=True)
    with h5py.File(tmp_path / "showers.h5") as file, np.load(tmp_path / "showers.npz") as arrays:
        units = {name: each.attrs["units"] for name, each in file.items()}
        assert units == {"ECAL": "GeV", "energy": "GeV", "theta": "rad"}
        assert file["ECAL"].shape == (30, 8, 8, 8) and file["ECAL"].dtype == np.float32
        for name in ("ECAL", "energy", "theta"):
            np.testing.assert_array_equal(file[name][()], arrays[name])
