"""The converter of real data sets, on packages of the same form made by hand."""

import json
import struct
import sys

import numpy as np
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.data import open_source
from launching import ROOT, run

SCRIPT = ROOT / "examples" / "data" / "npm_pictures.py"
DIGITS = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
LABELS = np.array([7, 2, 1, 0, 9], np.uint8)


def mnist_package(folder):
    data = folder / "data"
    data.mkdir(parents=True)
    for prefix, num in (("train", 3), ("t10k", 2)):
        digits, labels = (DIGITS[:3], LABELS[:3]) if num == 3 else (DIGITS[3:], LABELS[3:])
        (data / f"{prefix}-images-idx3-ubyte").write_bytes(
            struct.pack(">4B3I", 0, 0, 8, 3, num, 28, 28) + digits.tobytes()
        )
        (data / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, num) + labels.tobytes())
    return folder


def emoji_package(folder):
    pictures = folder / "img" / "google" / "64"
    pictures.mkdir(parents=True)
    for name, opacity in (("a", 255), ("b", 0), ("c", 102)):
        Image.new("RGBA", (64, 64), (200, 0, 50, opacity)).save(pictures / f"{name}.png")
    Image.new("P", (64, 64)).save(pictures / "skin.png")
    entries = [
        {"image": "a.png", "category": "Symbols", "has_img_google": True},
        {"image": "b.png", "category": "Flags", "has_img_google": True},
        {"image": "none.png", "category": "Absent", "has_img_google": False},
        {"image": "c.png", "category": "Symbols", "has_img_google": True, "skin_variations": {"1": "skin.png"}},
    ]
    (folder / "emoji.json").write_text(json.dumps(entries))
    return folder


def convert(name, tmp_path, where, given, **env):
    return run([sys.executable, SCRIPT, name, where, given, "--out", tmp_path / "out"], tmp_path, **env)


def test_digits_get_a_black_border_and_keep_pixels_and_labels(tmp_path):
    done = convert("mnist", tmp_path, "--package", mnist_package(tmp_path / "package"))
    assert done.returncode == 0, done.stderr
    for part, some in (("train", slice(3)), ("test", slice(3, 5))):
        source = open_source(Config(data=str(tmp_path / "out" / f"{part}.npz")))
        pictures = source.fetch_batch(np.arange(len(source)))
        assert pictures.shape == (len(LABELS[some]), 32, 32, 1) and pictures.dtype == np.uint8
        np.testing.assert_array_equal(pictures[:, 2:-2, 2:-2, 0], DIGITS[some])
        pictures[:, 2:-2, 2:-2] = 0
        assert not pictures.any()
        np.testing.assert_array_equal(source.labels, LABELS[some])


def test_emoji_lie_on_white_and_have_their_category(tmp_path):
    """102 of 255 is an opacity of 0.4: each channel is 0.4 times its own plus 0.6 times white."""
    done = convert("emoji", tmp_path, "--package", emoji_package(tmp_path / "package"))
    assert done.returncode == 0, done.stderr
    source = open_source(Config(data=str(tmp_path / "out" / "train.npz")))
    pictures = source.fetch_batch(np.arange(len(source)))
    assert pictures.shape == (3, 64, 64, 3)
    for picture, colour in zip(pictures, [(200, 0, 50), (255, 255, 255), (233, 153, 173)], strict=True):
        assert (picture == colour).all()
    np.testing.assert_array_equal(source.labels, [1, 0, 1])  # Flags, Symbols: the absent one's category is none
