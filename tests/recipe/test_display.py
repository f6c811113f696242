"""Grids of samples: pictures as they are, fields and volumes in colours with a scale in the units of the data.
Modules: recipe.display"""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from hvdgan.recipe import DataSpec
from hvdgan.recipe.display import save_samples, shown
from hvdgan.values.sample_values import SampleValues, of_pixels
from hvdgan.values.value_map import ValueMap, parse

RNG = np.random.default_rng(0)


def spec_of(shape, text, channels=None, units=()):
    names = channels or tuple(map(str, range(shape[-1])))
    made = parse(text, "--values", names)
    return DataSpec(shape, 9, values=SampleValues(ValueMap(made.chains, names, units)))


def test_pictures_are_shown_as_uint8(tmp_path):
    spec = DataSpec((2, 3, 1), 9, values=of_pixels(1, paired=False))
    samples = np.linspace(-1.2, 1.2, 12, dtype=np.float32).reshape(2, 2, 3, 1)
    pixels = shown(samples, spec)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, np.clip(np.rint((samples + 1) * 127.5), 0, 255))
    save_samples(tmp_path / "a" / "grid.png", {"images": pixels}, spec)
    with Image.open(tmp_path / "a" / "grid.png") as grid:
        assert grid.mode == "L" and np.asarray(grid)[:2, :3].tolist() == pixels[0, ..., 0].tolist()


def test_each_channel_has_a_panel_with_its_name_unit_and_scale(monkeypatch, tmp_path):
    panels = []
    monkeypatch.setattr("hvdgan.recipe.display.save_panels", lambda path, some: panels.extend(some))
    monkeypatch.setattr("hvdgan.recipe.display.fields_panel", lambda title, *others: (title, others))
    spec = spec_of((4, 6, 2), "none", ("wind", "1"), ("m/s", ""))
    samples = RNG.normal(size=(5, 4, 6, 2)).astype(np.float32)
    real = 10 * samples
    save_samples(tmp_path / "grid.png", {"images": samples}, spec, {"images": real})
    assert [title for title, _ in panels] == ["wind [m/s]", "channel 1"]
    for place, (_, (fields, limits, _)) in enumerate(panels):
        np.testing.assert_array_equal(fields, samples[..., place])
        assert limits == (real[..., place].min(), real[..., place].max())


def test_a_volume_has_one_place_in_the_panels_of_all_its_slices(monkeypatch, tmp_path):
    axes = []

    def drawn(path, panels):
        for _, draw in panels:
            place = Figure().subplots()
            draw(place.figure, place)
            axes.append(place.images[0].get_array())

    monkeypatch.setattr("hvdgan.recipe.display.save_panels", drawn)
    samples = np.broadcast_to(np.arange(7, dtype=np.float32)[:, None, None, None, None], (7, 2, 9, 16, 1))
    save_samples(tmp_path / "grid.png", {"images": samples}, spec_of((2, 9, 16, 1), "none"))
    rows = [[list(dict.fromkeys(row.compressed())) for row in each[:: (len(each) + 1) // 3]] for each in axes]
    assert rows == [[[0, 1, 2], [3, 4, 5], [6]]] * 3


@pytest.mark.parametrize(("shape", "text"), [((3, 4, 5, 1), "range:0,2"), ((7,), "none"), ((9, 2), "none")])
def test_every_shape_makes_a_picture(tmp_path, shape, text):
    samples = RNG.uniform(0, 2, (3, *shape)).astype(np.float32)
    save_samples(tmp_path / "new" / "grid.png", {"images": samples}, spec_of(shape, text))
    with Image.open(tmp_path / "new" / "grid.png") as picture:
        assert min(picture.size) > 300 and len(np.unique(np.asarray(picture))) > 15
