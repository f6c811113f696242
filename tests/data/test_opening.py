"""The values of --data; the fingerprint of each kind of source differs."""

import numpy as np
import pytest

from hvdgan.cli.errors import UserError
from hvdgan.data.opening import EXPECTED
from reading import opened


def test_fingerprints_tell_data_apart(tmp_path):
    """test_pictures.py and test_samples.py have those of folders and arrays."""
    array = np.arange(4 * 8 * 8, dtype=np.uint8).reshape(4, 8, 8, 1)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "c.npz", images=array, labels=np.arange(4))
    given = [(tmp_path / "a.npy", {}), (tmp_path / "a.npy", {"channels": 3}), (tmp_path / "a.npy", {"image_size": 9})]
    given += [(tmp_path / "c.npz", {}), ("digits", {}), ("synthetic", {}), ("digits", {"image_size": 16})]
    assert len({opened(data, **changes).fingerprint for data, changes in given}) == len(given)


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
