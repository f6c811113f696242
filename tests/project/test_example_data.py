"""The pictures of npm packages that a program of examples/data converts."""

import struct
import sys

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
