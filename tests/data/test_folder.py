"""A folder of images: the order of its files, links, names, and broken files.

Modules: data.base.scan_cache.
"""

import os
import shutil

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.data import open_source
from reading import opened
from thread_ranks import Threads


def write_image(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), value).save(path)


def test_a_folder_is_searched_in_the_order_of_its_paths(tmp_path):
    names = ["b.PNG", "a/z.jpg", "a b/ü.bmp", "A.Gif", "a/deep/er/x.jpeg", "c.webp"]
    for name in names:
        write_image(tmp_path / name, value=10 * sorted(names).index(name))
    for ignored in ["notes.txt", "no_suffix", ".hidden.png", ".cache/in.png", "png"]:
        write_image(tmp_path / "any.png")
        (tmp_path / ignored).parent.mkdir(exist_ok=True)
        shutil.move(tmp_path / "any.png", tmp_path / ignored)
    source = opened(tmp_path, channels=1)
    assert (len(source), source.bad_files, source.labels) == (6, [], None)
    np.testing.assert_allclose([source.fetch(index).mean() for index in range(6)], np.arange(0, 60, 10), atol=2)


def write_array(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.full((8, 8, 1), value, np.uint8))


@pytest.mark.parametrize(("write", "suffix"), [(write_image, "bmp"), (write_array, "npy")])
def test_the_stamp_tells_when_a_file_was_written_over_and_the_fingerprint_when_it_has_another_name(
    tmp_path, write, suffix
):
    """A copy elsewhere is the same data; with the same times, what is kept about the data holds for it, too."""
    data, stamps, copy = tmp_path / "data", [], tmp_path / "copy"
    for number in range(70):
        write(data / f"{number:02}.{suffix}")
    before = opened(data, channels=1)
    assert before.stamp() == opened(data, channels=1).stamp() == opened(shutil.copytree(data, copy), channels=1).stamp()
    config = Config(data=str(data), image_size=8, channels=1)
    errors = Threads(2).run(lambda peers: stamps.append(open_source(config, peers=peers).stamp()))
    assert errors == [None, None] and stamps == [before.stamp()] * 2
    changed = data / f"34.{suffix}"  # not one of the 64 arrays that a fingerprint looks at
    write(changed, value=7)
    os.utime(changed, ns=(0, changed.stat().st_mtime_ns + 1))  # the clock of files may be coarse
    after = opened(data, channels=1)
    assert after.stamp() != before.stamp() and after.fingerprint == before.fingerprint
    os.utime(copy / f"07.{suffix}")
    again = opened(copy, channels=1)
    assert again.stamp() != before.stamp() and again.fingerprint == before.fingerprint


def test_linked_folders_are_followed_once_and_never_round_in_circles(tmp_path):
    data = tmp_path / "data"
    write_image(data / "own" / "a.png", 1)
    write_image(tmp_path / "elsewhere" / "b.png", 2)
    (data / "link").symlink_to(tmp_path / "elsewhere")
    (data / "second link").symlink_to(tmp_path / "elsewhere")
    (data / "own" / "up").symlink_to(data)
    (tmp_path / "elsewhere" / "self").symlink_to(".")
    source = opened(data, channels=1)
    assert [source.fetch(index).mean() for index in range(len(source))] == [2, 1]  # link/b.png, own/a.png


def test_names_that_are_no_utf_8(tmp_path):
    folder = os.fsencode(tmp_path)
    for name, content in ((b"\xff.png", b"broken"), (b"line\nbreak.png", b"broken too")):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    write_image(tmp_path / "good.png", 7)
    os.rename(tmp_path / "good.png", os.path.join(folder, b"good\xfe.png"))
    source = opened(tmp_path, max_bad_fraction=1.0)
    assert [bad.name for bad in source.bad_files] == ["line\\nbreak.png", "\\udcff.png"]
    assert source.fetch(0).max() == 7 and len(source.fingerprint) == 64


def test_broken_files_are_listed_and_skipped(tmp_path):
    for index in range(8):
        write_image(tmp_path / f"{index}.png", index)
    (tmp_path / "3.png").write_bytes(b"")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "text.jpg").write_text("text")
    source = opened(tmp_path, channels=1, max_bad_fraction=2 / 9)
    assert source.bad_files == [("3.png", "empty file"), ("sub/text.jpg", "not a PNG, JPEG, WebP, BMP or GIF image")]
    assert [source.fetch(index).max() for index in range(len(source))] == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize(("bad", "allowed"), [(29, True), (30, False)])
def test_the_fraction_of_broken_files_is_exact(tmp_path, bad, allowed):
    for index in range(100):
        (tmp_path / f"{index:02d}.png").write_bytes(b"")
    for index in range(bad, 100):
        write_image(tmp_path / f"{index:02d}.png")
    if allowed:
        assert len(opened(tmp_path, max_bad_fraction=0.29)) == 71
        return
    with pytest.raises(UserError) as caught:
        opened(tmp_path, max_bad_fraction=0.29)
    message = str(caught.value)
    assert message.startswith(f"--data {tmp_path}: 30 of 100 images cannot be read: 00.png (empty file), 01.png")
    assert "and 25 more" in message and "--max-bad-fraction (now 0.29)" in message and "\n" not in message


def test_a_folder_whose_images_are_all_broken(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"none of 1 images can be read; the first: a\.png: empty file"):
        opened(tmp_path, max_bad_fraction=1.0)


def test_a_folder_without_images(tmp_path):
    (tmp_path / "readme.txt").write_text("nothing here")
    with pytest.raises(UserError, match=r"no images .* \*\.png, \*\.jpg, \*\.jpeg, \*\.webp, \*\.bmp, \*\.gif"):
        opened(tmp_path)
