""".npy files, mapped to memory, and .npz archives: every type and order of bytes; damaged ones are named.

Modules: data.store.
"""

import io
import zipfile

import numpy as np
import pytest

from hvdgan.cli.errors import UserError
from hvdgan.data.numpy_files import NumpyFile

RAMP = np.arange(3 * 4 * 5 * 2).reshape(3, 4, 5, 2)


def test_a_name_that_does_not_exist(tmp_path):
    np.savez(tmp_path / "a.npz", x=RAMP, energy=RAMP[:, 0, 0, 0])
    np.save(tmp_path / "a.npy", RAMP)
    with pytest.raises(UserError, match=r"^--conditions: no array theta in .*a\.npz; it has x, energy$"):
        NumpyFile(str(tmp_path / "a.npz")).find("theta", "--conditions")
    with pytest.raises(UserError, match="it has one array without a name$"):
        NumpyFile(str(tmp_path / "a.npy")).find("theta", "--conditions")


def test_a_large_array_of_an_archive_is_reported_to_stay_in_memory(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("hvdgan.data.numpy_files.LARGE_BYTES", 100)
    np.savez(tmp_path / "a.npz", x=RAMP)
    NumpyFile(str(tmp_path / "a.npz")).get("x")
    assert "a.npz:x: every rank holds its 0.0 GB in memory; an .npy file is mapped" in caplog.text


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz_bytes(save=np.savez, **arrays):
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def zip_of_text():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x", "not an array")
    return file.getvalue()


DAMAGED = [
    ("object.npy", npy_bytes(np.array([{}, 1], object)), "Python objects"),
    ("object.npz", npz_bytes(x=np.array([{}, 1], object)), "Object arrays cannot be loaded"),
    ("text.npy", b"this is text", "the magic string"),
    ("text.npz", zip_of_text(), "x was not written by NumPy"),
    ("cut.npy", npy_bytes(RAMP)[:-100], ""),
    ("cut.npz", npz_bytes(x=RAMP)[:-100], ""),
]


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED, ids=[row[0] for row in DAMAGED])
def test_damaged_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"cannot be read as a NumPy array: .*{message}") as caught:
        container = NumpyFile(str(path))
        container.get(container.names()[0])
    assert str(caught.value).startswith(f"--data {path}: ") and "\n" not in str(caught.value)
