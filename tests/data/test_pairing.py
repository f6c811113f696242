"""Data that holds no pairs is refused before training, for every kind of source."""

import numpy as np
import pytest
from PIL import Image

from hvdgan import prepare, sample
from hvdgan.cli.config import Config, TFRecordConfig
from hvdgan.cli.errors import UserError
from hvdgan.data import BadImage, open_source
from hvdgan.train import main as train
from packed import write_images
from tfrecord_files import png, write

RNG = np.random.default_rng(0)


def save(path, width, height, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (height, width, 3), np.uint8)).save(path, **options)


def opened(data, **changes):
    return open_source(Config(data=str(data), **{"image_size": 8, **changes}), paired=True)


def unpaired(folder, size=(16, 16)):
    """CycleGAN's folders: no image of the one belongs to one of the other."""
    for side, count in (("trainA", 5), ("trainB", 3)):
        for number in range(count):
            save(folder / side / f"{side}{number}.png", *size)
    return folder


def test_the_folders_of_unpaired_data_are_refused(tmp_path):
    with pytest.raises(UserError) as caught:
        opened(unpaired(tmp_path / "horses"))
    said = str(caught.value)
    assert said.startswith(f"--data {tmp_path / 'horses'}: trainA/trainA0.png has 16 x 16 pixels")
    assert "twice as wide as high" in said and "unpaired data" in said and "\n" not in said


@pytest.mark.parametrize("size", [(16, 16), (16, 12), (8, 16), (18, 8)])
def test_single_images_are_refused_whatever_part_may_be_broken(tmp_path, size):
    for number in range(3):
        save(tmp_path / f"{number}.png", *size)
    with pytest.raises(UserError, match=rf"0\.png has {size[0]} x {size[1]} pixels"):
        opened(tmp_path, max_bad_fraction=1.0)


def test_pix2pix_on_single_images_is_refused_by_a_dry_run(tmp_path, monkeypatch, capsys):
    write_images(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    flags = "--recipe pix2pix --data photos --image-size 32 --global-batch-size 2 --nf 2 --steps 1 --dry-run"
    assert train(flags.split()) == 2
    said = capsys.readouterr().err
    assert "--data photos: class 0/000.png has 12 x 10 pixels" in said and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_one_odd_file_among_pairs_is_named_when_it_is_decoded(tmp_path):
    """It keeps its index, so that runs from before go on in their order."""
    for number in range(5):
        save(tmp_path / f"{number}.png", 16, 16 if number == 3 else 8)
    source = opened(tmp_path)
    assert len(source) == 5
    with pytest.raises(BadImage) as caught:
        source.fetch(3)
    reason = "16 x 16 pixels; an input and its image side by side are twice as wide as high"
    assert caught.value.bad_file == ("3.png", reason)


def test_pictures_that_a_camera_has_turned_count_as_they_are_seen(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    save(tmp_path / "pairs" / "1.jpg", 8, 16, exif=turned)
    assert opened(tmp_path / "pairs").fetch(0).shape == (8, 8, 6)
    save(tmp_path / "single" / "1.jpg", 16, 8, exif=turned)
    with pytest.raises(UserError, match=r"1\.jpg has 8 x 16 pixels"):
        opened(tmp_path / "single")


def test_broken_files_do_not_hide_that_the_others_are_no_pairs(tmp_path):
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    save(tmp_path / "9.png", 16, 16)
    with pytest.raises(UserError, match=r"9\.png has 16 x 16 pixels"):
        opened(tmp_path, max_bad_fraction=0.95)


def test_a_and_b_of_unpaired_data_are_called_so(tmp_path):
    for side in "AB":
        for number in range(4):
            save(tmp_path / side / f"{side}{number}.png", 8, 8)
    with pytest.raises(UserError) as caught:
        opened(tmp_path)
    said = str(caught.value)
    assert "8 of 8 files have no partner: A/A0.png (no partner in B)" in said and "unpaired data" in said
    assert "cannot be read" not in said and "\n" not in said


def test_prepare_refuses_single_images_before_it_converts_one(tmp_path, monkeypatch, capsys):
    source = unpaired(tmp_path / "horses")
    monkeypatch.setattr(prepare, "pack", None)
    assert prepare.main([str(source), str(tmp_path / "made"), "--image-size", "8", "--pairs", "--workers", "1"]) == 2
    said = capsys.readouterr().err
    assert "trainA/trainA0.png has 16 x 16 pixels" in said and said.count("\n") == 1
    assert not (tmp_path / "made").exists()


def test_encoded_images_of_records_are_looked_at_too(tmp_path):
    images = RNG.integers(0, 256, (3, 16, 16, 3), np.uint8)
    path = write(tmp_path / "a.tfrecord", [{"image": png(image)} for image in images])
    with pytest.raises(UserError, match=r"a\.tfrecord\[0\]: 16 x 16 pixels; .* twice as wide as high"):
        opened(path)
    wide = write(tmp_path / "b.tfrecord", [{"image": png(image[:8])} for image in images])
    np.testing.assert_array_equal(opened(wide).fetch(1)[..., 3:], images[1, :8, 8:])


@pytest.mark.parametrize(("shape", "fits"), [("8,16,3", True), ("3,8,16", True), ("8,8,3", False), ("16,8,1", False)])
def test_raw_records_are_twice_as_wide_as_high(tmp_path, shape, fits):
    numbers = np.prod([int(number) for number in shape.split(",")])
    path = write(tmp_path / "a.tfrecord", [{"image": bytes(int(numbers))}] * 2)
    if fits:
        assert opened(path, tfrecord=TFRecordConfig(shape=shape)).fetch(0).shape == (8, 8, 6)
        return
    with pytest.raises(UserError, match="or one array whose width is twice its height"):
        opened(path, tfrecord=TFRecordConfig(shape=shape))


def test_sampling_from_single_images_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = "--recipe pix2pix --data synthetic --image-size 32 --global-batch-size 2 --nf 2 --steps 1 --run-dir run"
    assert train(flags.split()) == 0, capsys.readouterr().err
    unpaired(tmp_path / "horses")
    capsys.readouterr()
    assert sample.main("run --data horses --out grid.png --num 2 --batch-size 2".split()) == 2
    assert "--data horses: trainA/trainA0.png has 16 x 16 pixels" in capsys.readouterr().err
