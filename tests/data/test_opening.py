"""The values of --data; the fingerprint of each kind of source differs."""

import pytest

from hvdgan.cli.errors import UserError
from hvdgan.data.opening import EXPECTED
from reading import opened


def test_words_and_paths_that_name_nothing(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"")
    expected = f"expected {EXPECTED}"
    for data, problem in [
        (tmp_path / "nowhere", "no such file or folder"),
        (tmp_path / "gone.npy", "no such file or folder"),
        ("Digits", "no such file or folder"),
        (tmp_path / "picture.png", "of no known kind"),
    ]:
        with pytest.raises(UserError) as caught:
            opened(data)
        assert str(caught.value) == f"--data {data}: {problem}; {expected}"
