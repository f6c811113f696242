"""The command hvdgan.complete. Modules: inference.filling, inference.whole_filling"""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from hvdgan import complete
from hvdgan.inference.any_size import AnySizeNets
from hvdgan.inference.filling import join
from hvdgan.inference.trained import load_trained
from hvdgan.recipe import DataSpec
from hvdgan.recipe.loading import load_recipe
from messages import refused
from saved import untrained


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of completion, in grey and in RGB, and of another recipe."""
    folder = tmp_path_factory.mktemp("runs")
    for name, recipe, channels in (("grey", "completion", 1), ("rgb", "completion", 3), ("dcgan", "dcgan", 1)):
        untrained(folder / name, recipe, load_recipe(recipe).Options(nf=8), DataSpec((32, 32, channels), 100))
    return folder


def photo(height, width, channels=3, seed=0):
    """Smooth, and different everywhere."""
    down, across = np.mgrid[:height, :width]
    waves = [np.sin(down / (7 + c) + seed) + np.cos(across / (9 - c)) for c in range(channels)]
    return np.rint(127.5 + 60 * np.stack(waves, axis=-1)).astype(np.uint8)


def hole(height, width, rows, columns):
    found = np.zeros((height, width), bool)
    found[rows, columns] = True
    return found


def save(path, pixels, **more):
    path.parent.mkdir(exist_ok=True)
    pixels = pixels.astype(np.uint8) * 255 if pixels.dtype == bool else pixels
    Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(path, **more)
    return path


def fill(run, image, mask, out, *more):
    """The pixels of a call that must succeed."""
    arguments = [run, "--image", image, "--mask", mask, "--out", out, *more]
    assert complete.main([str(argument) for argument in arguments]) == 0
    return np.asarray(Image.open(out)) if out.is_file() else None


@pytest.mark.parametrize(
    ("run", "height", "width", "channels", "where", "blend"),
    [
        ("rgb", 61, 97, 3, np.s_[20:37, 41:60], "poisson"),  # odd, the short side cropped
        ("rgb", 50, 31, 1, np.s_[0:9, 22:31], "feather"),  # in a corner, a grey photograph
        ("grey", 5, 7, 1, np.s_[2:4, 3:5], "none"),
    ],
)
def test_the_hole_is_filled_and_every_other_pixel_keeps_its_bits(
    runs, tmp_path, run, height, width, channels, where, blend
):
    before, inside = photo(height, width, channels), hole(height, width, *where)
    image, mask = save(tmp_path / "photo.png", before), save(tmp_path / "mask.png", inside)
    after = fill(runs / run, image, mask, tmp_path / "new" / "filled.png", "--blend", blend).reshape(before.shape)
    np.testing.assert_array_equal(after[~inside], before[~inside])
    assert (after[inside] != before[inside]).any()


def test_what_the_hole_covers_has_no_influence(runs, tmp_path):
    before, inside = photo(61, 97), hole(61, 97, np.s_[20:37], np.s_[41:60]) | hole(61, 97, np.s_[50:], np.s_[60:90])
    mask, filled = save(tmp_path / "mask.png", inside), []
    for covered in (0, 255):
        image = save(tmp_path / f"{covered}.png", np.where(inside[..., None], np.uint8(covered), before))
        filled.append(fill(runs / "rgb", image, mask, tmp_path / f"{covered}_filled.png", "--blend", "poisson"))
    np.testing.assert_array_equal(*filled)


@pytest.mark.long
def test_a_photograph_is_filled_at_its_full_size_by_tiles_of_any_size(runs, tmp_path):
    before, inside = photo(150, 210), hole(150, 210, np.s_[30:93], np.s_[80:171])
    image, mask = save(tmp_path / "photo.png", before), save(tmp_path / "mask.png", inside)

    def filled(*words):
        out = tmp_path / f"{len(words)}{words[-1:]}.png"
        return fill(runs / "rgb", image, mask, out, "--blend", "none", *words).astype(int)

    whole, tiles, shrunk = filled("--whole", "--tile", "999"), filled("--whole", "--tile", "40"), filled()
    np.testing.assert_array_equal(tiles[~inside], before[~inside])
    assert np.abs(tiles - whole).max() <= 1  # of rounding
    assert (tiles != shrunk)[inside].any() and (tiles != before)[inside].any()
    trained = load_trained(runs / "rgb")
    nets = AnySizeNets(trained.nets("averaged"))
    more = [(0, 2), (0, 2), (0, 0)]  # to multiples of 4
    images, holes = np.pad(before, more, mode="symmetric"), np.pad(inside[..., None], more)
    given = [tf.constant(each[None], tf.float32) for each in (images / 127.5 - 1, holes)]
    expected = np.asarray(nets.completion(given))[0, :150, :210]
    np.testing.assert_allclose(tiles[inside], (expected[inside] + 1) * 127.5, atol=1)


def test_completion_that_sees_the_whole_photograph_is_refused(tmp_path, capsys):
    untrained(tmp_path / "run", "holes:Pooled", load_recipe("holes:Pooled").Options(), DataSpec((32, 32, 1), 9))
    save(tmp_path / "photo.png", photo(40, 50, 1))
    save(tmp_path / "mask.png", hole(40, 50, np.s_[5:20], np.s_[9:30]))
    words = [str(tmp_path / "run"), "--whole"]
    words += [f"--{name}={tmp_path}/{name}.png" for name in ("mask", "out")] + [f"--image={tmp_path}/photo.png"]
    assert complete.main(words) == 2
    assert "network completion, layer pooled" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path, monkeypatch, runs):
    """The working folder, with pictures of every kind."""
    monkeypatch.chdir(tmp_path)
    for name in ("grey", "rgb", "dcgan"):
        (tmp_path / name).symlink_to(runs / name)
    inside = hole(40, 50, np.s_[5:20], np.s_[9:30])
    save(tmp_path / "good.png", photo(40, 50))
    save(tmp_path / "mask.png", inside)
    save(tmp_path / "small.png", inside[:30])
    save(tmp_path / "black.png", np.zeros_like(inside))
    save(tmp_path / "clear.png", np.dstack([photo(40, 50), np.full((40, 50), 9, np.uint8)]))
    for name in ("photos/a.png", "photos/b.png"):
        save(tmp_path / name, photo(40, 50))
    for name in ("masks/a.png", "masks/c.png"):
        save(tmp_path / name, inside)
    return tmp_path


@pytest.mark.parametrize("arguments", refused("complete"))
def test_a_mistake_is_one_line_and_nothing_is_written(runs, folder, messages, arguments):
    defaults = {"--image": "good.png", "--mask": "mask.png", "--out": "filled.png"}
    words = [word for flag, value in defaults.items() if flag not in arguments for word in (flag, value)]
    messages.refuses("complete", complete.main, arguments, *words, folder=folder)


@pytest.mark.parametrize(("blend", "at_the_edge", "inside"), [("none", 30, 30), ("feather", 8, 30), ("poisson", 5, 6)])
def test_a_filling_that_is_too_bright_is_brought_down_to_its_surroundings(blend, at_the_edge, inside):
    """The true pixels, 30 grey levels too bright: of a perfect joining nothing would be seen."""
    pixels, where = photo(80, 120) // 2 + 40, hole(80, 120, np.s_[20:60], np.s_[30:80])
    joined = join(pixels, pixels.astype(np.float32) + 30, where, blend).astype(int)
    np.testing.assert_array_equal(joined[~where], pixels[~where])
    error = np.abs(joined - pixels)
    for edge in (error[20:60, 30], error[20:60, 79], error[20, 30:80], error[59, 30:80]):
        assert edge.mean() <= at_the_edge
    assert error[where].max() <= inside + 2
