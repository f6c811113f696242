"""The values of --data; the fingerprint of each kind of source differs."""

import shutil

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.errors import UserError
from hvdgan.data.builtin import KERAS
from hvdgan.data.opening import EXPECTED
from reading import opened


def write_image(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), value).save(path)


def test_fingerprints_tell_data_apart(tmp_path):
    folder, array = tmp_path / "folder", np.arange(4 * 8 * 8, dtype=np.uint8).reshape(4, 8, 8, 1)
    write_image(folder / "a.png")
    write_image(folder / "b.png")
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", array + 1)
    np.savez(tmp_path / "c.npz", images=array, labels=np.arange(4))
    seen = [
        opened(tmp_path / "a.npy").fingerprint,
        opened(tmp_path / "a.npy", channels=3).fingerprint,
        opened(tmp_path / "a.npy", image_size=9).fingerprint,
        opened(tmp_path / "b.npy").fingerprint,
        opened(tmp_path / "c.npz").fingerprint,
        opened("digits").fingerprint,
        opened("synthetic").fingerprint,
        opened(folder).fingerprint,
    ]
    shutil.copytree(folder, tmp_path / "copy")
    assert opened(tmp_path / "copy").fingerprint == seen[-1]
    (folder / "b.png").rename(folder / "c.png")
    seen.append(opened(folder).fingerprint)
    with open(folder / "c.png", "ab") as file:
        file.write(b" ")
    seen.append(opened(folder).fingerprint)
    assert len(set(seen)) == len(seen)


def test_words_and_paths_that_name_nothing(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"")
    expected = f"expected {EXPECTED}"
    for data, problem in [
        (tmp_path / "nowhere", "no such file or folder"),
        (tmp_path / "gone.npy", "no such file or folder"),
        ("Digits", "no such file or folder"),
        (tmp_path / "picture.png", "of no known kind"),
        ("x" * 5000, "File name too long"),
    ]:
        with pytest.raises(UserError) as caught:
            opened(data)
        assert str(caught.value) == f"--data {data}: {problem}; {expected}"


def test_a_set_that_keras_does_not_know_or_cannot_fetch(monkeypatch):
    def unreachable():
        raise OSError("no route to host")

    with pytest.raises(UserError, match=f"--data keras:faces: expected one of .*keras:{KERAS[0]}"):
        opened("keras:faces")
    monkeypatch.setattr("keras.datasets.mnist.load_data", unreachable)
    with pytest.raises(UserError, match="--data keras:mnist: Keras cannot load it: no route to host; .*KERAS_HOME"):
        opened("keras:mnist")
