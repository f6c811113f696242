"""A folder or a zip archive of pictures: names and their order, partners, broken files, what is passed over.
Modules: data.store, data.bad_files"""

import shutil
import struct
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from hvdgan.data import BadImage, open_source, pictures
from hvdgan.errors import UserError
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig
from hvdgan.train import main as train
from packed import write_images, zipped
from reading import all_of, batches_of, opened
from thread_ranks import Threads

RNG = np.random.default_rng(0)


def write_image(path, value=0, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).save(path)


def noise(path, width, height, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (height, width, 3), np.uint8)).save(path, **options)


def test_the_log_says_what_is_passed_over(tmp_path, monkeypatch, capsys):
    """Also the grids that a run has written below its data: it sees the same pictures when it is resumed."""
    monkeypatch.chdir(tmp_path)
    for number in range(6):
        write_image(tmp_path / "photos" / f"{number}.png")
    for name in ("notes.txt", "photos/more.TXT", "photos/film.mp4", "photos/README", ".hidden"):
        (tmp_path / name).touch()
    flags = "--recipe tiny:Tiny --data . --image-size 8 --global-batch-size 2 --sample-every 1 --run-dir runs/one"
    files = "passed over 4 file(s): 2 .txt, 1 without suffix, 1 .mp4"
    assert train([*flags.split(), "--steps", "4", "--max-steps", "2"]) == 0
    assert f"--data .: {files}" in (tmp_path / "runs/one/log.txt").read_text()
    assert train([*flags.split(), "--steps", "4"]) == 0
    assert list((tmp_path / "runs/one/samples").glob("*.png"))
    assert f"--data .: {files}; 1 run folder(s), such as runs/one/\n" in (tmp_path / "runs/one/log.txt").read_text()
    with pytest.raises(UserError, match=r"found no images in it; .*; passed over 1 run folder\(s\), such as \.$"):
        opened("runs/one")


def test_what_unpacks_to_more_than_is_accepted_is_a_broken_file_whatever_the_archive_says(tmp_path, monkeypatch):
    """No more of it is unpacked than is accepted."""
    monkeypatch.setattr(pictures, "MOST_BYTES", 2**20)
    with zipfile.ZipFile(tmp_path / "p.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a", "c"):
            write_image(tmp_path / f"{name}.png")
            archive.write(tmp_path / f"{name}.png", f"{name}.png")
        archive.writestr("b.png", bytes(2**27))
        archive.writestr("d.png", bytes(2**27))
        archive.getinfo("d.png").file_size = 100  # its entry in the list of the archive says so
    source = open_source(Config(data=str(tmp_path / "p.zip"), image_size=8, channels=1))
    tracemalloc.start()
    try:
        for index, fits in enumerate((True, False, True, False)):
            if fits:
                assert source.fetch(index)["images"].shape == (8, 8, 1)
            else:
                with pytest.raises(BadImage, match=f"{'abcd'[index]}.png"):
                    source.fetch(index)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_a_zip_archive_is_the_same_data_as_its_folder(tmp_path):
    folder = write_images(tmp_path / "photos")
    for ignored in ("class 0/.hidden.png", "__MACOSX/class 0/._000.png"):
        (folder / ignored).parent.mkdir(parents=True, exist_ok=True)
        (folder / ignored).write_bytes(b"no picture")
    (folder / "notes.txt").touch()
    source, original = opened(zipped(folder, tmp_path / "p.zip", "photos/")), opened(folder)
    np.testing.assert_array_equal(all_of(source), all_of(original))
    with ThreadPoolExecutor(8) as pool:  # several threads read it at once
        assert all((found == all_of(original)).all() for found in pool.map(all_of, [source] * 20))
    np.testing.assert_array_equal(source.labels, original.labels)
    assert source.class_names == original.class_names == ["class 0", "class 1"]
    assert [source.key(index) for index in range(10)] == [original.key(index) for index in range(10)]
    assert source.fingerprint == original.fingerprint
    assert source.remarks == [f"--data {tmp_path / 'p.zip'}: passed over 1 file(s): 1 .txt"]


def test_damage_in_an_archive_is_one_broken_picture(tmp_path):
    for number in range(4):
        noise(tmp_path / "p" / f"{number}.png", 8, 8)
    archive = zipped(tmp_path / "p", tmp_path / "p.zip", method=zipfile.ZIP_STORED)
    content = bytearray(archive.read_bytes())
    content[content.index(b"IDAT") + 30] ^= 1
    archive.write_bytes(content)
    source = opened(archive)
    with pytest.raises(BadImage, match=r"^0\.png: Bad CRC-32"):
        source.fetch(0)
    assert source.fetch(1)["images"].shape == (8, 8, 3)
    archive.write_bytes(b"no archive")
    errors = Threads(2).run(lambda peers: open_source(Config(data=str(archive), image_size=8), peers=peers))
    said = f"--data {archive}: cannot be read as a zip archive: File is not a zip file"
    assert [str(error) for error in errors] == [said] * 2


def test_a_dry_run_reads_the_first_batch_and_names_what_is_broken(tmp_path, monkeypatch, capsys):
    for number in range(8):
        noise(tmp_path / "p" / f"{number}.png", 8, 8)
    (tmp_path / "p" / "3.png").write_bytes((tmp_path / "p" / "3.png").read_bytes()[:80])
    monkeypatch.chdir(tmp_path)
    flags = "--recipe tiny:Tiny --data p --image-size 8 --global-batch-size 8 --dry-run".split()
    assert train(flags) == 1
    assert "--data p: 1 of 8 samples cannot be read: 3.png" in capsys.readouterr().err
    assert train([*flags, "--max-bad-fraction", "0.2"]) == 0
    assert "replaced by others: 3.png" in capsys.readouterr().out


def test_the_folders_of_unpaired_data_are_refused_by_a_dry_run(tmp_path, monkeypatch, capsys):
    for side, count in (("trainA", 5), ("trainB", 3)):
        for number in range(count):
            noise(tmp_path / "horses" / side / f"{side}{number}.png", 16, 16)
    monkeypatch.chdir(tmp_path)
    flags = "--recipe pix2pix --data horses --image-size 32 --global-batch-size 2 --nf 2 --steps 1 --dry-run"
    assert train(flags.split()) == 2
    said = capsys.readouterr().err
    assert "--data horses: trainA/trainA0.png has 16 x 16 pixels" in said and said.count("\n") == 1
    assert "twice as wide as high" in said and "unpaired data" in said
    assert not (tmp_path / "runs").exists()


def values_of(source):
    """Input and image of each pair, which must be evenly coloured, by their first channels."""
    parts = source.fetch_batch(np.arange(len(source)))
    inputs, images = parts["inputs"], parts["images"]
    assert (inputs == inputs[:, :1, :1]).all() and (images == images[:, :1, :1]).all()
    return list(zip(inputs[:, 0, 0, 0].tolist(), images[:, 0, 0, 0].tolist(), strict=True))


def test_partners_have_the_same_path_and_a_and_b_are_else_classes(tmp_path):
    for number, name in enumerate(("z", "sub/a", "m")):
        write_image(tmp_path / "A" / f"{name}.png", 20 * number)
        write_image(tmp_path / "B" / f"{name}.{'bmp' if number else 'PNG'}", 100 + 20 * number)
    source = opened(tmp_path, paired=True, channels=1)
    assert source.paired and source.layout.shape == source.layout.input_shape == (8, 8, 1)
    assert values_of(source) == [(40, 140), (20, 120), (0, 100)]  # m, sub/a, z
    assert source.labels is None and source.bad_files == []
    single = opened(tmp_path)
    assert single.class_names == ["A", "B"]
    assert [single.fetch(index)["images"].max() for index in range(3, 6)] == [140, 120, 100]


def test_files_without_a_partner_are_named(tmp_path):
    for number in range(3):
        write_image(tmp_path / "A" / f"{number}.png", 20 * number)
        write_image(tmp_path / "B" / f"{number + 1}.png", 20 * number + 20)
    write_image(tmp_path / "A" / "1.bmp", 90)
    source = opened(tmp_path, paired=True, max_bad_fraction=0.6)
    assert [pair[0] for pair in values_of(source)] == [90, 40]
    reasons = {"A/0.png": "no partner in B", "B/3.png": "no partner in A", "A/1.png": "A/1.bmp has the same name"}
    assert dict(source.bad_files) == reasons
    with pytest.raises(UserError, match=r"3 of 7 files have no partner: A/1\.png .*, A/0\.png \(no partner in B\)"):
        opened(tmp_path, paired=True)


def test_a_broken_file_takes_its_partner_out_and_so_does_one_of_another_size(tmp_path):
    """Which would not be cropped equally."""
    for side in "AB":
        for number in range(4):
            size = (8, 16) if (side, number) == ("A", 3) else (16, 8)
            write_image(tmp_path / side / f"{number}.png", 40 * number, size)
    (tmp_path / "B" / "1.png").write_bytes(b"")
    with batches_of(opened(tmp_path, paired=True), global_batch_size=4, max_bad_fraction=0.5) as batches:
        assert set(next(batches)["index"].numpy()) == {0, 2}
        sizes = "8 x 16 pixels, and its partner B/3.png has 16 x 8"
        assert sorted(batches.bad_files) == [("A/3.png", sizes), ("B/1.png", "empty file")]


@pytest.mark.parametrize(("kind", "most"), [(np.uint8, 1), (np.uint16, 4095)], ids=["masks", "x-rays"])
def test_pictures_that_use_little_of_the_range_are_refused_with_the_flag(tmp_path, kind, most):
    """As PNG, as inputs of pairs, and as an array, which the flag admits."""
    numbers = RNG.integers(0, most, (4, 8, 8), kind, endpoint=True)
    for number, each in enumerate(numbers):
        for folder in ("one", "two/A"):
            (tmp_path / folder).mkdir(exist_ok=True, parents=True)
            Image.fromarray(each).save(tmp_path / folder / f"{number}.png")
        noise(tmp_path / "two/B" / f"{number}.png", 8, 8)
    for data, paired, words in (
        ("one", False, r"images without a pixel above \d+ of 255.* --values range:"),
        ("two", True, r"inputs without .* --input-values range:"),
    ):
        with pytest.raises(UserError, match=words):
            opened(tmp_path / data, channels=1, paired=paired)
    np.save(tmp_path / "a.npy", numbers)
    with pytest.raises(UserError, match="--values range:"):
        open_source(Config(data=f"{tmp_path}/a.npy"))
    taken = open_source(Config(data=f"{tmp_path}/a.npy", arrays=ArrayConfig(values=f"range:0,{most}")))
    assert taken.fetch(0)["images"].max() > 0
    for pixels in (0, 7, [0, 255], [50, 57]):  # flat and pale pictures, and masks of black and white
        np.save(tmp_path / "b.npy", np.resize(np.uint8(pixels), (6, 8, 8)))
        assert len(open_source(Config(data=f"{tmp_path}/b.npy"))) == 6


LEFT_BEHIND = ["Thumbs.db", "a/desktop.ini", "a/.DS_Store", "a/._0.png", "__MACOSX/a/0.png", "@eaDir/0.png/thumb.jpg"]
LEFT_BEHIND += ["a/@eaDir/0.jpg", ".@__thumb/0.png", "~$0.png", ".nfs000", "$RECYCLE.BIN/0.png", "lost+found/0.png"]
LEFT_BEHIND += [".Trash-1000/0.png", "#recycle/0.png", "System Volume Information/0.png", ".snapshot/x/0.png"]


def test_what_systems_and_drives_leave_is_no_picture_and_no_class(tmp_path):
    for name in ("a/0.png", "b/0.png"):
        noise(tmp_path / "photos" / name, 8, 8)
    for name in LEFT_BEHIND:
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "photos/a/0.png", tmp_path / "photos" / name)
    for data in (tmp_path / "photos", zipped(tmp_path / "photos", tmp_path / "a.zip")):
        source = opened(data)
        assert [source.key(index) for index in range(len(source))] == [b"a/0.png", b"b/0.png"]
        assert source.class_names == ["a", "b"] and not source.remarks


def tiff(path, kind, bands=5):
    """A TIFF of 8 x 8 pixels without compression, of which the first three bands are red, green and blue."""
    pixels = RNG.integers(0, 256, (8, 8, bands)).astype(kind)
    bits = struct.pack(f"<{bands}H", *[8 * pixels.itemsize] * bands)
    tags = [(256, 3, 1, 8), (257, 3, 1, 8), (258, 3, bands, 8), (259, 3, 1, 1), (262, 3, 1, 2)]
    tags += [(273, 4, 1, 8 + len(bits)), (277, 3, 1, bands), (278, 3, 1, 8), (279, 4, 1, pixels.nbytes)]
    tags += [(284, 3, 1, 1), (338, 3, 2, 0)]
    entries = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    path.write_bytes(b"II*\0" + struct.pack("<I", 8 + len(bits) + pixels.nbytes) + bits + pixels.tobytes() + entries)


@pytest.mark.parametrize(("kind", "words"), [("u1", "a TIFF of 5 bands"), ("u2", "a TIFF whose bands")])
def test_a_tiff_of_many_bands_is_named_as_one(tmp_path, kind, words):
    tiff(tmp_path / "a.tif", kind)
    with pytest.raises(UserError, match=f"a.tif .{words}.*such as .npy"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1, 2, 2], "class 0 has no sample; labels count from 0"),
        ([0, 0, 5], "class 1 has no sample, nor have 3 others"),
        ([0, -1, 1], "a label is -1, so the data have no classes"),
        ([1, 0, 1], ""),
    ],
)
def test_classes_without_samples_are_said(tmp_path, labels, words):
    np.savez(tmp_path / "a.npz", images=RNG.integers(0, 256, (3, 8, 8, 3)).astype(np.uint8), labels=labels)
    assert [words in line for line in open_source(Config(data=f"{tmp_path}/a.npz")).remarks] == [True] * bool(words)


def test_backslashes_in_an_archive_without_slashes_are_folders(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("top\\a\\0.png", "top\\b\\1.png"):
            noise(tmp_path / "one.png", 8, 8)
            archive.write(tmp_path / "one.png", name)
    source = opened(tmp_path / "a.zip")
    assert source.class_names == ["a", "b"] and source.labels.tolist() == [0, 1]
    last = np.asarray(Image.open(tmp_path / "one.png"))
    np.testing.assert_array_equal(source.fetch(1)["images"], last)
