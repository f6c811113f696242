"""The newest checkpoint of a folder is found by its step number."""

import pytest

from hvdgan.checkpoints.files import MANIFEST, find, newest, newest_first, step_of

STEPS = [9_000_000, 99_999_999, 100_000_000, 2_000_000_000]


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of steps with eight, nine and ten digits, whose names sort in another order than their steps."""
    for step in STEPS:
        path = tmp_path / "checkpoints" / f"step-{step:08d}"
        path.mkdir(parents=True)
        (path / MANIFEST).write_text("{}")
    return tmp_path / "checkpoints"


def test_the_newest_is_found_by_number_and_not_by_name(folder):
    assert [step_of(path) for path in newest_first(folder)] == STEPS[::-1]
    assert step_of(newest(folder)) == step_of(find(folder.parent)) == STEPS[-1]
    for content in ("step-99999999\n", "step-00000009\n", "", "../elsewhere\n"):  # as after a crash
        (folder / "latest").write_text(content)
        assert step_of(newest(folder)) == STEPS[-1]
    (folder / f"step-{STEPS[-1]}" / MANIFEST).unlink()  # not complete
    assert step_of(newest(folder)) == STEPS[-2]
