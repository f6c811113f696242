"""Packed shards have the labels of the original images, also with broken files among them."""

import json

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.data import open_source
from packed import manifest_of, prepare, tarred, write_images, zipped


def opened(data, paired=False):
    return open_source(
        Config(data=str(data), image_size=8, channels=3, fit="crop", max_bad_fraction=1.0), paired=paired
    )


def labelled(source):
    """Each image's class by its name; what cannot be decoded is not asked for."""
    labels = [None] * len(source) if source.labels is None else source.labels.tolist()
    return {source.key(index).decode(): label for index, label in enumerate(labels)}


def page(path):
    """What a server sends in place of an image that it has not got."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"<html>404</html>")


def cut(path):
    """An image whose header passes and whose pixels are missing: it has a class, and is left out."""
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:2000])


# what is put among the images of two classes, and the classes that there are then
STRAY = {
    "a page beside the classes": ([(page, "cover.jpg")], ["class 0", "class 1"]),
    "a folder of a page": ([(page, "broken/a.jpg")], ["class 0", "class 1"]),
    "pages before all classes": ([(page, "a/1.jpg"), (page, "a/2.jpg"), (page, "z.png")], ["class 0", "class 1"]),
    "a page among good ones": ([(page, "class 0/000 first.png")], ["class 0", "class 1"]),
    "a folder of a cut image": ([(cut, "cut/a.png")], ["class 0", "class 1", "cut"]),
    "a cut image beside the classes": ([(cut, "a.png")], None),
    "a good image beside the classes": ([(lambda path: Image.new("L", (8, 8)).save(path), "a.png")], None),
}


@pytest.mark.parametrize("pack", [None, zipped, tarred], ids=["folder", "zip", "tar"])
@pytest.mark.parametrize("case", STRAY)
def test_classes_are_those_of_training(tmp_path, pack, case):
    stray, classes = STRAY[case]
    folder = write_images(tmp_path / "images")
    for make, name in stray:
        make(folder / name)
    original = opened(folder)
    made = prepare(pack(folder, tmp_path / "a") if pack else folder, tmp_path / "made", "--max-bad-fraction", "1")
    assert original.class_names == manifest_of(made)["class_names"] == classes
    wanted, found = labelled(original), labelled(opened(made))
    assert found == {name: label for name, label in wanted.items() if name in found}
    assert len(found) == 10 + ("good" in case and "image" in case)
    bad = {name for name, *_ in json.loads((made / "manifest.json").read_text())["failures"]}
    assert bad == {name for make, name in stray if make in (page, cut)}


def test_classes_of_partners_are_those_of_training(tmp_path):
    """A pair with one broken half makes no class."""
    for side in "AB":
        write_images(tmp_path / "pairs" / side)
    for name in ("A/broken/1.png", "B/broken/1.png", "A/cover.png", "B/cover.png"):
        path = tmp_path / "pairs" / name
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8)).save(path)
    page(tmp_path / "pairs" / "B" / "broken" / "1.png")
    page(tmp_path / "pairs" / "A" / "cover.png")
    made = prepare(tmp_path / "pairs", tmp_path / "made", "--pairs", "--max-bad-fraction", "1")
    original, shards = opened(tmp_path / "pairs", paired=True), opened(made, paired=True)
    assert original.class_names == shards.class_names == ["class 0", "class 1"]
    assert labelled(original) == labelled(shards) and len(shards) == 10
