""".npy files, mapped to memory, .npz archives, and folders of .npy: names, bad files, and a file that changes.
Modules: data.store"""

import os

import numpy as np
import pytest

from arrays_on_disk import arrays
from hvdgan.cli.errors import UserError
from hvdgan.data.bad_files import BadImage
from hvdgan.data.numpy_files import open_numpy


@pytest.mark.parametrize(
    ("name", "message"),
    [("object.npy", "Python objects"), ("object.npz", "Object arrays cannot be loaded"), ("cut.npy", "")],
)
def test_damaged_files_are_named(tmp_path, name, message):
    path = tmp_path / name
    save = np.savez if name.endswith("npz") else np.save
    save(path, np.array([{}, 1], object) if name.startswith("object") else np.arange(100))
    if name == "cut.npy":
        os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(UserError, match=f"cannot be read as a NumPy array: .*{message}") as caught:
        container = open_numpy(str(path))
        container.get(container.names()[0])
    assert str(caught.value).startswith(f"--data {path}: ") and "\n" not in str(caught.value)


SAMPLES = np.random.default_rng(0).standard_normal((12, 4, 6, 2)).astype(np.float32)


def test_bad_files_are_found_when_they_are_read(tmp_path):
    """Of two classes of six files each; hidden files and others are no samples."""
    for number, sample in enumerate(SAMPLES):
        path = tmp_path / ("muon", "electron")[number % 2] / f"{number:02}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, sample)
    np.save(tmp_path / "muon" / ".hidden.npy", SAMPLES)
    (tmp_path / "muon" / "notes.txt").write_text("no array")
    np.save(tmp_path / "muon" / "00.npy", SAMPLES[0, :3])
    os.truncate(tmp_path / "electron" / "01.npy", 300)
    (tmp_path / "electron" / "03.npy").write_bytes(b"text")
    reasons = {
        "muon/00.npy": "shape (3, 6, 2), type float32; expected (4, 6, 2) and float32",
        "electron/01.npy": "no whole .npy file: ",
        "electron/03.npy": "no whole .npy file: ",
    }
    source = arrays(tmp_path)
    assert len(source) == 12 and source.labels.tolist() == [0] * 6 + [1] * 6
    for index, number in enumerate([*range(1, 12, 2), *range(0, 12, 2)]):  # the electrons' folder comes first
        if (name := source.named(index)) in reasons:
            with pytest.raises(BadImage) as caught:
                source.fetch(index)
            assert caught.value.bad_file.name == name and caught.value.bad_file.reason.startswith(reasons[name])
        else:
            np.testing.assert_array_equal(source.fetch(index), SAMPLES[number])
    for path in tmp_path.rglob("[0-9]*.npy"):
        path.write_bytes(b"text")
    with pytest.raises(UserError, match="none of the .npy files looked at can be used, such as .*npy: no whole .npy"):
        arrays(tmp_path)
