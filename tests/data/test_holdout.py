"""Which images are held out; a later start reads the choice from the run folder.

Modules: data.base.scan_cache.
"""

import io
import os

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE
from hvdgan.data import Source, cached, hold_out, open_source
from hvdgan.data.base.scan_cache import ScanCache
from hvdgan.data.formats.shard_reader import ShardReader
from hvdgan.data.formats.tf_example import example
from hvdgan.data.formats.tfrecord import framed
from hvdgan.train import main
from packed import prepare


def digits(fraction, image_size=8):
    source = open_source(Config(image_size=image_size))
    return source, *hold_out(source, fraction)


def folder(path, names):
    path.mkdir()
    for number, name in enumerate(names):
        (path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number % 256, np.uint8)).save(path / name)
    return open_source(Config(data=str(path), image_size=8))


def test_every_image_is_on_one_side_with_its_label():
    source, training, held = digits(0.2)
    assert len(training) + len(held) == len(source) and 0.15 < len(held) / len(source) < 0.25
    for part in (training, held):
        images = part.fetch_batch(np.arange(len(part)))
        everything = source.fetch_batch(np.arange(len(source)))
        places = [int(np.flatnonzero((everything == image).all(axis=(1, 2, 3)))[0]) for image in images[:20]]
        np.testing.assert_array_equal(source.labels[places], part.labels[:20])
        np.testing.assert_array_equal(part.fetch(3), images[3])
    assert training.total == held.total == len(source)
    assert set(held.labels) == set(range(10)) and held.num_classes == 10
    seen = {image.tobytes() for image in training.fetch_batch(np.arange(len(training)))}
    assert not seen & {image.tobytes() for image in held.fetch_batch(np.arange(len(held)))}


def test_the_choice_is_the_same_for_ever_and_at_any_size():
    """On another machine, under a later version: these are the first digits held out."""
    for size in (8, 32):
        _, _, held = digits(0.05, size)
        assert len(held) == 100
        assert held.labels[:12].tolist() == [3, 1, 7, 2, 5, 4, 5, 6, 8, 7, 7, 0]


def test_files_are_chosen_by_name_wherever_they_lie_and_adding_some_moves_none(tmp_path):
    names = [f"{letter}/{number}.png" for letter in "ab" for number in range(60)]
    more = [*names, *(f"c/{number}.png" for number in range(60))]
    held = [held_names(folder(tmp_path / "here", names)), held_names(folder(tmp_path / "there", more))]
    assert held[0] and held[0] == {name for name in held[1] if not name.startswith(b"c/")}


def held_names(source):
    held = hold_out(source, 0.2)[1]
    return {held.key(index) for index in range(len(held))}


def test_nothing_held_out_is_the_source_itself():
    source, training, held = digits(0.0)
    assert training is source and held is None


@pytest.mark.parametrize("fraction", [1e-9, 0.999999999])
def test_an_empty_side_is_refused(fraction):
    with pytest.raises(UserError, match="--holdout .* of 1797 images of digits would be held out"):
        digits(fraction)


@pytest.fixture
def digests(monkeypatch):
    """The images whose digest was asked for."""
    asked = []
    for kind in (Source, ShardReader):
        monkeypatch.setattr(kind, "digest", lambda self, index, of=kind.digest: asked.append(index) or of(self, index))
    return asked


COUNT = 1200


def write_array(path, seed=0):
    np.save(path / "some.npy", np.random.default_rng(seed).integers(0, 256, (COUNT, 8, 8, 3), np.uint8))
    return path / "some.npy", False


def write_pairs(path):
    np.save(path / "pairs.npy", np.random.default_rng(0).integers(0, 256, (COUNT, 8, 16, 3), np.uint8))
    return path / "pairs.npy", True


def write_folder(path):
    image = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    (path / "images").mkdir()
    for number in range(COUNT):
        image.save(path / "images" / f"{number}.bmp")
    return path / "images", False


def write_shards(path):
    return prepare(write_folder(path)[0], path / "shards"), False


def write_records(path):
    encoded = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(encoded, "png")
    (path / "some.tfrecord").write_bytes(framed(example({"image": encoded.getvalue()})) * COUNT)
    return path / "some.tfrecord", False


def held_with(kept_in, data, paired=False, fraction=0.1, cache="none", peers=ALONE):
    """What is held out at a start that keeps what it finds."""
    kept = ScanCache(kept_in)
    source = cached(open_source(Config(data=str(data), image_size=8), paired=paired), cache, kept_in)
    held = hold_out(source, fraction, peers, kept)[1]
    kept.write()
    return held.indices.tolist(), held.places.tolist(), held.some(7).indices.tolist()


@pytest.mark.parametrize("write", [write_array, write_pairs, write_folder, write_shards, write_records])
@pytest.mark.parametrize("cache", ["none", "memory"])
def test_the_second_start_hashes_nothing(tmp_path, digests, write, cache):
    data, paired = write(tmp_path)
    first = held_with(tmp_path / "kept", data, paired, cache=cache)
    assert set(digests) == set(range(COUNT))
    digests.clear()
    assert held_with(tmp_path / "kept", data, paired, cache=cache) == first
    more = held_with(tmp_path / "kept", data, paired, fraction=0.3)[0]
    assert set(first[0]) < set(more) and not digests


def touch(path):
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def change(path):
    """Other images, by as many bytes."""
    size = path.stat().st_size
    write_array(path.parent, seed=1)
    touch(path)
    assert path.stat().st_size == size


def change_one(path):
    """One that the fingerprint does not look at."""
    with path.open("r+b") as file:
        file.seek(-300, os.SEEK_END)
        file.write(bytes(100))
    touch(path)


@pytest.mark.parametrize("changed", [touch, change, change_one])
def test_an_array_that_was_changed_is_hashed_again(tmp_path, digests, changed):
    data, _ = write_array(tmp_path)
    held_with(tmp_path / "kept", data)
    changed(data)
    digests.clear()
    again = held_with(tmp_path / "kept", data)
    assert set(digests) == set(range(COUNT)) and again == held_with(None, data)


def test_shards_whose_names_were_changed_are_hashed_again(tmp_path, digests):
    data, _ = write_shards(tmp_path)
    held_with(tmp_path / "kept", data)
    touch(sorted(data.glob("*.json"))[0])
    digests.clear()
    held_with(tmp_path / "kept", data)
    assert set(digests) == set(range(COUNT))


def test_what_is_kept_and_damaged_counts_as_none(tmp_path, digests):
    data, _ = write_array(tmp_path)
    first = held_with(tmp_path / "kept", data)
    (kept,) = (tmp_path / "kept").iterdir()
    content = bytearray(kept.read_bytes())
    content[-9] ^= 1
    kept.write_bytes(content)
    digests.clear()
    assert held_with(tmp_path / "kept", data) == first and set(digests) == set(range(COUNT))


def test_of_data_without_files_nothing_is_kept(tmp_path, digests):
    for _ in range(2):
        digests.clear()
        held_with(tmp_path / "kept", "digits")
        assert len(set(digests)) == 1797
    assert not (tmp_path / "kept").exists()


def test_a_run_keeps_them(tmp_path, digests):
    data, _ = write_array(tmp_path)
    words = f"--recipe measured:Bright --data {data} --image-size 8 --global-batch-size 4".split()
    for steps in (1, 2):
        digests.clear()
        assert main([*words, "--steps", str(steps), "--run-dir", str(tmp_path / "run")]) == 0
        assert len(set(digests)) == (COUNT if steps == 1 else 0)
