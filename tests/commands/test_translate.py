"""The command hvdgan.translate, on untrained networks."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from hvdgan import translate
from hvdgan.inference.trained import load_trained
from hvdgan.recipe import DataSpec
from hvdgan.recipes.cyclegan import CycleGANOptions
from saved import untrained
from small import small, spec

SIZES = {"photo.jpg": (13, 7), "deep/down/ünicode 1.png": (32, 24), "one.bmp": (1, 1), "grey.PNG": (40, 33)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of cyclegan in colour, of pix2pix in grey, and of a recipe that translates nothing."""
    folder = tmp_path_factory.mktemp("runs")
    colour = DataSpec((32, 32, 3), 100)
    domains = dataclasses.replace(colour, domains=dict.fromkeys(("A", "B"), colour))
    untrained(folder / "cyclegan", "cyclegan", CycleGANOptions(nf=2, blocks=1, pool=0), domains, scale=0.2)
    for name in ("pix2pix", "dcgan"):
        untrained(folder / name, name, small(name)[1], spec(name))
    return folder


@pytest.fixture
def pictures(tmp_path):
    random = np.random.default_rng(0)
    for name, (width, height) in SIZES.items():
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels[..., 0] if "grey" in name else pixels).save(path)
    (tmp_path / "pictures" / "notes.txt").write_text("no picture")
    return tmp_path / "pictures"


def run(*arguments):
    return translate.main([str(argument) for argument in arguments])


@pytest.mark.parametrize("name", ["cyclegan", "pix2pix"])
def test_each_file_keeps_its_name_and_size(runs, pictures, tmp_path, capsys, name):
    out = tmp_path / "out"
    assert run(runs / name, "--data", pictures, "--out", out) == 0
    assert {path.relative_to(out).as_posix() for path in out.rglob("*.*")} == {
        name.rpartition(".")[0] + ".png" for name in SIZES
    }
    for file, size in SIZES.items():
        with Image.open(out / (file.rpartition(".")[0] + ".png")) as image:
            assert image.size == size and image.mode == ("RGB" if name == "cyclegan" else "L")
    said = capsys.readouterr().out
    assert ("4 pictures were resized to 32 x 32 pixels" in said) == (name == "pix2pix") and "4 translated by" in said


def test_a_picture_gets_what_the_network_of_its_domain_gives_whatever_else_is_there(runs, pictures, tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    alone = tmp_path / "alone"
    alone.mkdir()
    for folder in (alone, pictures):
        Image.fromarray(pixels).save(folder / "a.png")
    for domain, other in (("A", "B"), ("B", "A")):
        nets = load_trained(runs / "cyclegan").nets("averaged")
        made = getattr(nets, f"generator_{other}")(pixels[None] / np.float32(127.5) - 1)[0]
        expected = np.clip(np.rint((made + 1.0) * 127.5), 0, 255)
        for folder in (alone, pictures):
            out = tmp_path / f"{folder.name} {domain}"
            assert run(runs / "cyclegan", "--data", folder, "--out", out, "--domain", domain) == 0
            assert np.abs(np.asarray(Image.open(out / "a.png"), float) - expected).max() <= 1


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("cyclegan", ["--domain", "C"], "--domain C: expected one of A, B"),
        ("pix2pix", ["--domain", "A"], "--domain A: the recipe has no domains"),
        ("dcgan", [], "whose recipe, dcgan, has no translate()"),
        ("cyclegan", ["--data", "twice"], "two pictures would become a.png"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(runs, pictures, tmp_path, monkeypatch, capsys, name, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice").mkdir()
    for file in ("a.png", "a.jpg"):
        Image.new("RGB", (4, 4)).save(tmp_path / "twice" / file)
    data = [] if "--data" in words else ["--data", pictures]
    assert run(runs / name, *data, "--out", "out", *words) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1 and not (tmp_path / "out").exists()
