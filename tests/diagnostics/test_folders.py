"""The check of the run folder."""

from hvdgan.diagnostics import folders


def test_a_run_folder_is_left_as_it_was(bare, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "kept").touch()
    for folder in ("run", "new/run"):
        assert folders.run_folder(tmp_path / folder).verdict == "ok"
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["run", "run/kept"]
    assert folders.run_folder(tmp_path / "run" / "kept").verdict == "fail"
