""".npy files, mapped to memory, .npz archives, and folders of .npy: names, bad files, and a file that changes.

Modules: data.store.
"""

import io

import numpy as np
import pytest

from arrays_on_disk import arrays
from hvdgan.cli.errors import UserError
from hvdgan.data.bad_files import BadImage
from hvdgan.data.numpy_files import open_numpy

RAMP = np.arange(3 * 4 * 5 * 2).reshape(3, 4, 5, 2)


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz_bytes(save=np.savez, **arrays):
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


DAMAGED = [
    ("object.npy", npy_bytes(np.array([{}, 1], object)), "Python objects"),
    ("object.npz", npz_bytes(x=np.array([{}, 1], object)), "Object arrays cannot be loaded"),
    ("cut.npy", npy_bytes(RAMP)[:-100], ""),
]


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED, ids=[row[0] for row in DAMAGED])
def test_damaged_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"cannot be read as a NumPy array: .*{message}") as caught:
        container = open_numpy(str(path))
        container.get(container.names()[0])
    assert str(caught.value).startswith(f"--data {path}: ") and "\n" not in str(caught.value)


# a folder with one sample in each file

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


def spoil(folder):
    """Three of the twelve files; the reason by name."""
    np.save(folder / "muon" / "00.npy", SAMPLES[0, :3])
    (folder / "electron" / "01.npy").write_bytes((folder / "electron" / "01.npy").read_bytes()[:-8])
    (folder / "electron" / "03.npy").write_bytes(b"text")
    return {
        "muon/00.npy": "shape (3, 6, 2), type float32; expected (4, 6, 2) and float32",
        "electron/01.npy": "no whole .npy file: ",
        "electron/03.npy": "no whole .npy file: ",
    }


def test_bad_files_are_found_when_they_are_read(folder):
    reasons = spoil(folder)
    source = arrays(folder)
    assert len(source) == 12 and source.labels.tolist() == [0] * 6 + [1] * 6
    for index, number in enumerate(ORDER):
        if (name := source.named(index)) in reasons:
            with pytest.raises(BadImage) as caught:
                source.fetch(index)
            assert caught.value.bad_file.name == name and caught.value.bad_file.reason.startswith(reasons[name])
        else:
            np.testing.assert_array_equal(source.fetch(index), SAMPLES[number])
    for path in folder.rglob("[0-9]*.npy"):
        path.write_bytes(b"text")
    with pytest.raises(UserError, match="none of the .npy files looked at can be used, such as .*npy: no whole .npy"):
        arrays(folder)
