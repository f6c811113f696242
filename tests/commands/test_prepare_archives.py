"""hvdgan.prepare on archives: read in place, of any size; malicious ones are refused.

Modules: data.packing.archives.
"""

import gzip
import io
import os
import sys
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from hvdgan.data.packing import archives
from hvdgan.prepare import main
from launching import run
from packed import add, bytes_of, manifest_of, names_in, prepare, shards_of, tarred, write_images, zipped


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("data") / "images", 30)


@pytest.fixture(scope="module")
def wanted(images):
    """What one process makes of them."""
    return bytes_of(prepare(images, images.parent / "by one"))


@pytest.mark.parametrize("prefix", ["", "./", "wrapped/twice/"])
@pytest.mark.usefixtures("wanted")
def test_archives_make_the_shards_of_their_folder(images, tmp_path, prefix):
    made = {
        "zip": zipped(images, tmp_path / "some.zip", prefix),
        "stored": zipped(images, tmp_path / "stored.zip", prefix, zipfile.ZIP_STORED),
        "tar": tarred(images, tmp_path / "some.tar", prefix),
        "gz": tarred(images, tmp_path / "some.tar.gz", prefix, "w:gz"),
        "xz": tarred(images, tmp_path / "some.tar.xz", prefix, "w:xz"),
    }
    for kind, archive in made.items():
        assert shards_of(prepare(archive, tmp_path / f"from {kind}")) == shards_of(images.parent / "by one"), kind


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_zip_archive_within_a_tar_archive_is_not_what_is_read(images, wanted, tmp_path, mode):
    """Python finds the end of the one near the end of the other."""
    features = io.BytesIO()
    np.savez(features, features=np.zeros(9))
    target = tarred(images, tmp_path / "some.tar")
    with tarfile.open(target, "a") as archive:
        add(archive, "features.npz", features.getvalue())
    assert zipfile.is_zipfile(target)
    if mode == "w:gz":
        target.with_suffix(".tar.gz").write_bytes(gzip.compress(target.read_bytes(), 0))
        target = target.with_suffix(".tar.gz")
    made = shards_of(prepare(target, tmp_path / "made"))
    assert made == {name: wanted[name] for name in made} and len(made) > 9


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_larger_than_memory_is_read_in_place(images, wanted, tmp_path, kind):
    """3 GB of something else before the images, in a file with a hole, and 1.5 GB of memory."""
    hole, archive = 3 * 2**30, tmp_path / f"large.{kind}"
    whole = (tarred if kind == "tar" else zipped)(images, tmp_path / "whole").read_bytes()
    with archive.open("wb") as file:
        if kind == "tar":
            info = tarfile.TarInfo("video.bin")
            info.size = hole
            file.write(info.tobuf())
        file.seek(hole, os.SEEK_CUR)
        file.write(whole)
    limit = f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({hole // 2}, {hole // 2}));"
    command = f"{limit} from hvdgan.prepare import main; sys.exit(main())"
    flags = [archive, "made", "--image-size", "8", "--fit", "crop", "--shards", "3", "--workers", "1"]
    done = run([sys.executable, "-c", command, *flags], tmp_path)
    assert done.returncode == 0, done.stderr
    made = shards_of(tmp_path / "made")
    assert made == {name: wanted[name] for name in made} and len(made) > 9


def png(value=0):
    from io import BytesIO

    file = BytesIO()
    Image.new("L", (8, 8), value).save(file, "PNG")
    return file.getvalue()


def test_what_lies_in_an_archive_is_only_read(tmp_path):
    """Names that lead elsewhere, links and devices are left out by name; nothing is written outside of DST."""
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        for name in ("a/good.png", "../up.png", "/abs/olute.png", "a/../../up.png", "a/.hidden.png", "a/notes.txt"):
            add(archive, name, png())
        for name, kind in (("a/link.png", tarfile.SYMTYPE), ("a/device.png", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        for name in ("a/good.png", "../up.png", "/abs/olute.png", "a/../../up.png", "a/.hidden.png", "a/notes.txt"):
            archive.writestr(name, png())
    before = set(tmp_path.parent.rglob("*"))
    for kind, failed in (("tar", 4), ("zip", 2)):
        made = prepare(tmp_path / f"evil.{kind}", tmp_path / f"from {kind}", "--max-bad-fraction", "1")
        assert names_in(made) == ["a/good.png", "abs/olute.png"]
        assert len(manifest_of(made)["failures"]) == failed
    assert all("from " in str(path) for path in set(tmp_path.parent.rglob("*")) - before)


def test_bombs_are_refused_by_their_size(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(archives, "MAX_BYTES", 10_000)
    monkeypatch.setattr(archives, "MIN_EXPANDED", 100_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good.png", png())
        archive.writestr("zeros.png", bytes(10_001))
    made = prepare(tmp_path / "bomb.zip", tmp_path / "made", "--max-bad-fraction", "1")
    assert manifest_of(made)["failures"] == [["zeros.png", "10,001 bytes, more than the 10,000 accepted"]]
    (tmp_path / "zeros").mkdir()
    (tmp_path / "zeros" / "a.png").write_bytes(bytes(10_000_000))
    bomb = tarred(tmp_path / "zeros", tmp_path / "bomb.tar.gz", mode="w:gz")
    assert main([str(bomb), str(tmp_path / "never"), "--image-size", "8"]) == 2
    assert "expands to more than" in capsys.readouterr().err and not (tmp_path / "never").exists()


def test_a_member_that_says_another_size_is_left_out(tmp_path):
    """The directory says 100 bytes; what is packed there is far longer."""
    with zipfile.ZipFile(tmp_path / "lies.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good.png", png())
        archive.writestr("lies.png", bytes(5_000_000))
    content = bytearray((tmp_path / "lies.zip").read_bytes())
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = content.rindex(signature) + offset
        content[place : place + 4] = (100).to_bytes(4, "little")
    (tmp_path / "lies.zip").write_bytes(content)
    made = prepare(tmp_path / "lies.zip", tmp_path / "made", "--max-bad-fraction", "1")
    assert manifest_of(made)["failures"] == [["lies.png", "damaged in the archive: size or checksum differs"]]


@pytest.mark.parametrize(
    ("place", "bytes_there", "complaint"),
    [
        (46, b"\xff\xff", "'utf-8' codec can't decode byte 0xff"),  # the name, which is flagged as UTF-8
        (46, b"\0\0", "cannot be read as a zip archive"),  # which makes it empty
        (6, b"\x63\0", "zip file version 9.9"),  # the version that is needed to unpack it
    ],
)
def test_a_directory_that_python_cannot_read_is_one_line(tmp_path, capsys, place, bytes_there, complaint):
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("ü.png", png())
    content = bytearray((tmp_path / "some.zip").read_bytes())
    place += content.index(b"PK\x01\x02")
    content[place : place + 2] = bytes_there
    (tmp_path / "some.zip").write_bytes(content)
    assert main([str(tmp_path / "some.zip"), str(tmp_path / "made"), "--image-size", "8"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"hvdgan: {tmp_path}/some.zip: cannot be read as a zip archive: ") and complaint in error
    assert error.count("\n") == 1 and not (tmp_path / "made").exists()


def test_a_damaged_archive_is_refused(images, tmp_path, capsys):
    whole = tarred(images, tmp_path / "whole.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2 // 512 * 512 - 100])
    later = whole.index(b"class 1/")
    (tmp_path / "header.tar").write_bytes(whole[:later] + b"\xff" * 300 + whole[later + 300 :])
    packed = tarred(images, tmp_path / "whole.tar.gz", mode="w:gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(packed[: len(packed) // 2])
    archive = zipped(images, tmp_path / "whole.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(archive[:-30])
    for name in ("cut.tar", "header.tar", "cut.tar.gz", "cut.zip"):
        assert main([str(tmp_path / name), str(tmp_path / "made"), "--image-size", "8"]) == 2, name
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and name.removesuffix(".gz") in error and not (tmp_path / "made").exists()
