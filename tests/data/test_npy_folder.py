"""A folder of .npy files: classes, names, bad files, and what happens when one changes.

Modules: data.arrays.conditions, data.arrays.stored.
"""

import numpy as np
import pytest
from PIL import Image

from arrays_on_disk import arrays, seen
from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError, UserError
from hvdgan.data import holdout, open_source
from hvdgan.data.base.source import BadImage
from hvdgan.data.pictures import find
from thread_ranks import Threads

SAMPLES = np.random.default_rng(0).standard_normal((12, 4, 6, 2)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    """Two classes of six files each; hidden files and others are no samples."""
    for number, sample in enumerate(SAMPLES):
        path = tmp_path / "data" / ("muon", "electron")[number % 2] / f"{number:02}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, sample)
    np.save(tmp_path / "data" / "muon" / ".hidden.npy", SAMPLES)
    (tmp_path / "data" / "muon" / "notes.txt").write_text("no array")
    return tmp_path / "data"


ORDER = [*range(1, 12, 2), *range(0, 12, 2)]
"""the electrons' folder comes first"""


def test_classes_names_and_numbers(folder):
    source = arrays(folder)
    np.testing.assert_array_equal(source.fetch_batch(np.arange(12)), SAMPLES[ORDER])
    assert source.labels.tolist() == [0] * 6 + [1] * 6 and source.class_names == ["electron", "muon"]
    assert source.key(6) == b"muon/00.npy" and source.named(6) == "muon/00.npy" and not source.batched
    moved = folder / "muon" / "99.npy"
    fingerprint = source.fingerprint
    (folder / "muon" / "10.npy").rename(moved)
    assert arrays(folder).fingerprint != fingerprint


def test_conditions_come_from_a_table_by_name_and_holdout_follows_names(folder, tmp_path):
    rows = [f"{'muon' if number % 2 == 0 else 'electron'}/{number:02}.npy,{number * 10}" for number in range(12)]
    (tmp_path / "table.csv").write_text("\n".join(["file,energy", *reversed(rows)]))
    source = arrays(folder, condition_table=tmp_path / "table.csv", condition_values="none")
    assert source.conditions[:, 0].tolist() == [number * 10 for number in ORDER]
    before = holdout.hold_out(source, 0.4)[1]
    (folder / "muon" / "00.npy").unlink()
    after = holdout.hold_out(arrays(folder), 0.4)[1]
    names = [{each.key(place) for place in range(len(each))} - {b"muon/00.npy"} for each in (before, after)]
    assert names[0] == names[1]


def spoil(folder):
    """Six of the twelve files; the reason by name."""
    np.save(folder / "muon" / "00.npy", SAMPLES[0, :3])
    np.save(folder / "muon" / "02.npy", SAMPLES[0].astype(np.float64))
    np.save(folder / "muon" / "04.npy", np.array([{}], object), allow_pickle=True)
    (folder / "electron" / "01.npy").write_bytes((folder / "electron" / "01.npy").read_bytes()[:-8])
    (folder / "electron" / "03.npy").write_bytes(b"text")
    np.save(folder / "electron" / "05.npy", SAMPLES[:0])
    return {
        "muon/00.npy": "shape (3, 6, 2), type float32",
        "muon/02.npy": "shape (4, 6, 2), type float64",
        "muon/04.npy": "it holds Python objects (pickle), which are not read",
        "electron/01.npy": "312 bytes; expected 320",
        "electron/03.npy": "no .npy file:",
        "electron/05.npy": "shape (0, 4, 6, 2): it holds no numbers",
    }


@pytest.mark.parametrize("size", [1, 3])
def test_bad_files_are_left_out_by_name_up_to_the_fraction(folder, size):
    reasons = spoil(folder)
    sources = []
    errors = Threads(size).run(lambda peers: sources.append(arrays(folder, peers=peers, max_bad_fraction=0.5)))
    assert errors == [None] * size
    for source in sources:
        assert (len(source), source.total) == (6, 12)
        assert {name: reason.startswith(reasons[name]) for name, reason in source.bad_files} == dict.fromkeys(
            reasons, True
        )
        np.testing.assert_array_equal(source.fetch_batch(np.arange(6)), SAMPLES[[7, 9, 11, 6, 8, 10]])
        assert source.labels.tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(UserError, match=r"6 of 12 .npy files are not arrays of shape \(4, 6, 2\) .*01.npy \(312 bytes"):
        arrays(folder, max_bad_fraction=0.49)


def test_a_number_that_is_not_finite_is_named_by_its_file(folder):
    np.save(folder / "muon" / "04.npy", np.where(SAMPLES[4] > 1, np.nan, SAMPLES[4]))
    with pytest.raises(BadImage, match="muon/04.npy: .* numbers are NaN"):
        seen(arrays(folder)).fetch_batch(np.array([7, 8, 9]))


@pytest.mark.parametrize("change", ["size", "header", "gone"])
def test_a_file_that_changes_ends_the_run(folder, change):
    source, path = arrays(folder), folder / "muon" / "04.npy"
    if change == "size":
        np.save(path, SAMPLES[4, :2])
    elif change == "header":
        np.save(path, SAMPLES[4].view(np.int32))
    else:
        path.unlink()
    with pytest.raises(RunError, match="muon/04.npy has changed since the run began"):
        source.fetch_batch(np.array([7, 8]))


def test_images_beside_arrays_are_refused(folder):
    Image.new("L", (8, 8)).save(folder / "muon" / "000.png")
    with pytest.raises(UserError) as caught:
        arrays(folder)
    assert str(caught.value) == (
        f"--data {folder}: holds images and arrays, such as muon/000.png and electron/01.npy; move one kind elsewhere"
    )


def test_a_rank_that_does_not_see_a_file_says_so(folder, monkeypatch):
    listing = find(str(folder), (".npy",))
    listing.files += ["muon/97.npy", "muon/98.npy"]  # the last one is rank 1's to look at
    monkeypatch.setattr("hvdgan.data.sources.array_containers.find", lambda *_: listing)
    errors = Threads(2).run(lambda peers: arrays(folder, peers=peers, max_bad_fraction=0.5))
    assert [type(error) for error in errors] == [RunError] * 2
    assert all("rank 1 on" in str(error) and "does not see muon/98.npy" in str(error) for error in errors)


def test_8_bit_pictures_in_npy_files_are_pictures(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 255, (5, 8, 8, 3), np.uint8)
    for number, picture in enumerate(pictures):
        np.save(tmp_path / f"{number}.npy", picture)
    source = open_source(Config(data=str(tmp_path)))
    assert source.is_pictures and source.key(3) == b"3.npy" and source.image_size == 8
    np.testing.assert_array_equal(source.fetch_batch(np.arange(5)), pictures)
