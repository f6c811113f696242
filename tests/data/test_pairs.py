"""Classes by folder, and pairs: the input that belongs to each image, for every kind of source.

Modules: data.builtin.
"""

import io

import numpy as np
import pytest
from PIL import Image

from building import data_of, stage_step, tiny_run
from hvdgan.cli.config import Config, TFRecordConfig
from hvdgan.cli.errors import UserError
from hvdgan.data import BadImage, open_source
from hvdgan.data.builtin import outline
from hvdgan.training.monitoring.samples import Sampler
from reading import batches_of
from tfrecord_files import png
from tfrecord_files import write as write_records
from tiny import Tiny


def opened(data, *, paired=True, **changes):
    return open_source(Config(data=str(data), **{"image_size": 8, "fit": "crop", **changes}), paired=paired)


def write(path, *values, size=(8, 8)):
    """A file with one evenly coloured image, or several side by side."""
    path.parent.mkdir(parents=True, exist_ok=True)
    modes = [Image.new("RGB" if isinstance(value, tuple) else "L", size, value) for value in values]
    whole = Image.new(modes[0].mode, (size[0] * len(values), size[1]))
    for place, image in enumerate(modes):
        whole.paste(image, (place * size[0], 0))
    whole.save(path)


def values_of(source):
    """Input and image of each pair, which must be evenly coloured, by their first channels."""
    pairs = source.fetch_batch(np.arange(len(source)))
    assert (pairs == pairs[:, :1, :1]).all()
    return [(int(pair[0, 0, 0]), int(pair[0, 0, source.layout.shape[-1]])) for pair in pairs]


# classes


def test_the_first_folder_of_a_path_is_its_class(tmp_path):
    for name in ("wolf/1.png", "cat/1.png", "cat/deep/er/0.png", "Dog/9.png"):
        write(tmp_path / name, 0)
    source = opened(tmp_path, paired=False)
    assert source.class_names == ["Dog", "cat", "wolf"]
    assert source.labels.tolist() == [0, 1, 1, 2] and source.labels.dtype == np.int32
    assert source.num_classes == 3 and not source.paired


def test_an_image_outside_the_folders_leaves_no_classes(tmp_path):
    write(tmp_path / "cat" / "1.png", 0)
    write(tmp_path / "2.png", 0)
    source = opened(tmp_path, paired=False)
    assert (source.labels, source.class_names, source.num_classes) == (None, None, 0)


def test_without_pairs_a_and_b_are_classes(tmp_path):
    write(tmp_path / "A" / "1.png", 10)
    write(tmp_path / "B" / "1.png", 20)
    source = opened(tmp_path, paired=False)
    assert source.class_names == ["A", "B"] and source.record_shape == (8, 8, 3)
    assert [source.fetch(index).max() for index in range(2)] == [10, 20]


# folders of pairs


def test_partners_have_the_same_path(tmp_path):
    for number, name in enumerate(("z", "sub/a", "m")):
        write(tmp_path / "A" / f"{name}.png", number)
        write(tmp_path / "B" / f"{name}.{'bmp' if number else 'PNG'}", 100 + number)
    source = opened(tmp_path, channels=1)
    assert source.paired and source.layout.shape[-1] == 1 and source.record_shape == (8, 8, 2)
    assert values_of(source) == [(2, 102), (1, 101), (0, 100)]  # m, sub/a, z
    assert source.labels is None and source.bad_files == []


def test_the_channels_of_the_input_come_first(tmp_path):
    write(tmp_path / "A" / "1.png", (1, 2, 3))
    write(tmp_path / "B" / "1.png", (4, 5, 6))
    assert opened(tmp_path).fetch(0)[3, 4].tolist() == [1, 2, 3, 4, 5, 6]


def test_classes_of_partners_lie_within_a_and_b(tmp_path):
    for name in ("shoe/1", "bag/1"):
        write(tmp_path / "A" / f"{name}.png", 0)
        write(tmp_path / "B" / f"{name}.png", 0)
    source = opened(tmp_path)
    assert source.class_names == ["bag", "shoe"] and source.labels.tolist() == [0, 1]


def test_files_without_a_partner_are_named(tmp_path):
    for number in range(3):
        write(tmp_path / "A" / f"{number}.png", number)
        write(tmp_path / "B" / f"{number + 1}.png", number + 1)
    write(tmp_path / "A" / "1.bmp", 9)
    source = opened(tmp_path, max_bad_fraction=0.6)
    assert [pair[0] for pair in values_of(source)] == [9, 2]
    reasons = {"A/0.png": "no partner in B", "B/3.png": "no partner in A", "A/1.png": "A/1.bmp has the same name"}
    assert dict(source.bad_files) == reasons
    with pytest.raises(UserError, match=r"3 of 7 files have no partner: A/1\.png .*, A/0\.png \(no partner in B\)"):
        opened(tmp_path)


def test_a_broken_file_takes_its_partner_out(tmp_path):
    for side in "AB":
        for number in range(3):
            write(tmp_path / side / f"{number}.png", number)
    (tmp_path / "B" / "1.png").write_bytes(b"")
    with batches_of(opened(tmp_path), global_batch_size=3, max_bad_fraction=0.5) as batches:
        assert set(next(batches)["index"].numpy()) == {0, 2}
        assert batches.bad_files == [("B/1.png", "empty file")]


def test_partners_of_different_sizes_would_not_be_cropped_equally(tmp_path):
    write(tmp_path / "A" / "1.png", 1, size=(8, 16))
    write(tmp_path / "B" / "1.png", 2, size=(16, 8))
    with pytest.raises(BadImage) as caught:
        opened(tmp_path).fetch(0)
    assert caught.value.bad_file == ("A/1.png", "8 x 16 pixels, and its partner B/1.png has 16 x 8")


def test_halves_are_input_and_image(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.png", number, 100 + number)
    source = opened(tmp_path, channels=1)
    assert source.paired and values_of(source) == [(number, 100 + number) for number in range(3)]


@pytest.mark.parametrize("other", ["C/1.png", "1.png"])
def test_images_beside_a_and_b_make_all_of_them_halves(tmp_path, other):
    for name in ("A/1.png", "B/1.png", other):
        write(tmp_path / name, 1, 2)
    assert values_of(opened(tmp_path)) == [(1, 2)] * 3


@pytest.mark.parametrize(("height", "together"), [(33, True), (20, False)])
def test_input_and_image_are_cropped_and_resized_equally(tmp_path, height, together):
    pixels = np.random.default_rng(0).integers(0, 256, (height, 33, 3), np.uint8)
    for side in "AB":
        (tmp_path / "pairs" / side).mkdir(parents=True)
        if not together:
            Image.fromarray(pixels).save(tmp_path / "pairs" / side / "1.png")
    if together:
        Image.fromarray(np.concatenate([pixels, pixels], axis=1)).save(tmp_path / "pairs" / "1.png")
    pair = opened(tmp_path / "pairs").fetch(0)
    np.testing.assert_array_equal(pair[..., :3], pair[..., 3:])
    (tmp_path / "single").mkdir()
    Image.fromarray(pixels).save(tmp_path / "single" / "1.png")
    np.testing.assert_array_equal(opened(tmp_path / "single", paired=False).fetch(0), pair[..., :3])


def test_pairs_are_other_data_than_single_images(tmp_path):
    write(tmp_path / "1.png", 1, 2)
    seen = [opened(data, paired=paired).fingerprint for data in (tmp_path, "digits") for paired in (False, True)]
    for number, name in enumerate(("1.npy", "2.npy")):
        np.save(tmp_path / name, np.full((3, 8, 16), number, np.uint8))
        seen += [opened(tmp_path / name, paired=paired).fingerprint for paired in (False, True)]
    assert len(set(seen)) == len(seen)


# arrays of pairs

RAMP = np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_inputs_and_images_of_an_npz(tmp_path, save):
    save(tmp_path / "pairs.npz", images=RAMP, inputs=255 - RAMP, labels=np.arange(3))
    source = opened(tmp_path / "pairs.npz")
    assert source.layout.shape[-1] == 3 and source.labels.tolist() == [0, 1, 2]
    pairs = source.fetch_batch(np.array([2, 0]))
    np.testing.assert_array_equal(pairs, np.concatenate([255 - RAMP, RAMP], axis=-1)[[2, 0]])


def test_grey_inputs_go_with_coloured_images(tmp_path):
    np.savez(tmp_path / "pairs.npz", images=RAMP, inputs=RAMP[..., 0])
    pair = opened(tmp_path / "pairs.npz").fetch(1)
    np.testing.assert_array_equal(pair, np.concatenate([np.repeat(RAMP[1, ..., :1], 3, -1), RAMP[1]], axis=-1))


def test_encoded_images_of_records_are_looked_at_at_the_start(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    path = write_records(tmp_path / "a.tfrecord", [{"image": png(image)} for image in images])
    with pytest.raises(UserError, match=r"a\.tfrecord\[0\]: 16 x 16 pixels; .* twice as wide as high"):
        opened(path)
    wide = write_records(tmp_path / "b.tfrecord", [{"image": png(image[:8])} for image in images])
    np.testing.assert_array_equal(opened(wide).fetch(1)[..., 3:], images[1, :8, 8:])


@pytest.mark.parametrize(("shape", "fits"), [("8,16,3", True), ("3,8,16", True), ("8,8,3", False), ("16,8,1", False)])
def test_raw_records_are_twice_as_wide_as_high(tmp_path, shape, fits):
    numbers = np.prod([int(number) for number in shape.split(",")])
    path = write_records(tmp_path / "a.tfrecord", [{"image": bytes(int(numbers))}] * 2)
    if fits:
        assert opened(path, tfrecord=TFRecordConfig(shape=shape)).fetch(0).shape == (8, 8, 6)
        return
    with pytest.raises(UserError, match="or one array whose width is twice its height"):
        opened(path, tfrecord=TFRecordConfig(shape=shape))


def test_the_halves_of_an_array_are_cropped_apart(tmp_path):
    """Each half of 8 x 8 pixels is wider than the wanted 8 x 4."""
    wide = np.concatenate([RAMP, 255 - RAMP], axis=2)
    np.save(tmp_path / "wide.npy", wide)
    pair = opened(tmp_path / "wide.npy", image_size=(8, 4)).fetch(1)
    np.testing.assert_array_equal(pair, np.concatenate([wide[1, :, 2:6], wide[1, :, 10:14]], axis=-1))


def test_floats_have_their_inputs_in_an_array_of_their_own(tmp_path):
    np.save(tmp_path / "wide.npy", np.zeros((2, 8, 16), np.float32))
    with pytest.raises(UserError, match="the recipe takes pairs, and there is no array `inputs` beside the samples"):
        opened(tmp_path / "wide.npy", fit=None, image_size=None)


def damaged_npz(place, bytes_there):
    """With other bytes in its directory."""
    file = io.BytesIO()
    np.savez(file, **{"größe": RAMP})
    content = bytearray(file.getvalue())
    place += content.index(b"PK\x01\x02")
    content[place : place + 2] = bytes_there
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "arrays", "found"),
    [
        ("square.npy", RAMP, r"shape \(3, 8, 8, 3\); pairs are two arrays of equal number"),
        (
            "other.npz",
            {"inputs": RAMP[:, :6], "images": RAMP[:, :7]},
            "have 7 x 8 pixels and the inputs 6 x 8, which both keep",
        ),
        ("single.npz", {"images": RAMP}, r"shape \(3, 8, 8, 3\); pairs are two arrays"),
        ("text.npz", b"text", "cannot be read as a NumPy array"),
        ("name.npz", damaged_npz(46, b"\xff\xff"), "cannot be read as a NumPy array: 'utf-8' codec can't decode"),
        ("version.npz", damaged_npz(6, b"\x63\0"), "cannot be read as a NumPy array: zip file version 9.9"),
    ],
)
def test_arrays_that_are_no_pairs(tmp_path, name, arrays, found):
    path = tmp_path / name
    if isinstance(arrays, bytes):
        path.write_bytes(arrays)
    elif isinstance(arrays, dict):
        np.savez(path, **arrays)
    else:
        np.save(path, arrays)
    with pytest.raises(UserError, match=found) as caught:
        opened(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


# outlines


def test_an_outline_is_the_edge_of_what_is_bright():
    image = np.zeros((1, 5, 6, 1), np.uint8)
    image[0, 1:, 1:5] = 200  # reaches the lower border, and has no edge there
    image[0, 0, 0] = 127  # too dark
    expected = ["......", ".####.", ".#..#.", ".#..#.", ".#..#."]
    assert outline(image)[0, ..., 0].tolist() == [[255 * (char == "#") for char in row] for row in expected]


@pytest.mark.parametrize(("data", "channels"), [("digits", 1), ("synthetic", 3)])
def test_without_files_the_input_is_the_outline(data, channels):
    source, plain = opened(data, image_size=16), opened(data, image_size=16, paired=False)
    assert source.paired and source.record_shape == (16, 16, 2 * channels) and len(source) == len(plain)
    pairs, images = source.fetch_batch(np.array([7, 3])), plain.fetch_batch(np.array([7, 3]))
    np.testing.assert_array_equal(pairs, np.concatenate([outline(images), images], axis=-1))
    assert 0.02 < (pairs[..., 0] > 0).mean() < 0.5
    np.testing.assert_array_equal(source.fetch(7), pairs[0])
    np.testing.assert_array_equal(source.labels, plain.labels)


# on the way to a recipe


def test_batches_of_pairs_have_twice_the_channels(tmp_path):
    """One of the pairs breaks while training, and is replaced by the next as single images are."""
    for number in range(4):
        write(tmp_path / f"{number}.png", number, 100 + number)
    write(tmp_path / "2.png", 2, size=(15, 8))
    source = opened(tmp_path, channels=1)
    with batches_of(source, global_batch_size=4, max_bad_fraction=0.5) as batches:
        images = next(batches)["images"].numpy()
        assert [bad.name for bad in batches.bad_files] == ["2.png"]
    assert images.shape == (4, 8, 8, 2)
    assert sorted(images[:, 0, 0].tolist()) == [[0, 100], [1, 101], [3, 103], [3, 103]]


class Paired(Tiny):
    """Shows the inputs, and reports the means of what it was given."""

    paired = True

    def judge(self, nets, batch):
        loss, _ = super().judge(nets, batch)
        return loss, {"inputs": batch.inputs[0, 0, 0, 0], "images": batch.images[0, 0, 0, 0]}

    def sample(self, nets, batch):
        return batch.inputs


def test_a_paired_recipe_gets_inputs_and_images_apart(tmp_path):
    for number in range(16):
        write(tmp_path / f"{number:02d}.png", 51, 204)
    run = tiny_run(Paired, data=str(tmp_path), channels=1)
    metrics, _ = stage_step(run)(0, 0, data_of(run))
    assert float(metrics["judge/inputs"]) == pytest.approx(-0.6)
    assert float(metrics["judge/images"]) == pytest.approx(0.6)
    sampler = Sampler(run.recipe, run.state, run.source, 0)
    assert (sampler() == 51).all()
    assert sampler.real.shape == (16, 8, 16, 1)
    assert (sampler.real[:, :, :8] == 51).all() and (sampler.real[:, :, 8:] == 204).all()
