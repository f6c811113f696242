"""The events that pages read are those that real runs write.

Modules: pages.reading.journal, pages.reading.run_folder.
"""

import pytest

import saved
from hvdgan.pages.reading import run_folder
from hvdgan.pages.verdict import judge


@pytest.fixture(scope="module")
def exploding(tmp_path_factory):
    """A run that skips one update and reaches its end."""
    folder = tmp_path_factory.mktemp("runs") / "exploding"
    assert saved.train(folder, "--recipe", "tiny:Exploding", "--steps", "6") == 0
    return run_folder.read(folder, verify=True)


def test_a_skipped_update_is_counted_with_its_step(exploding):
    assert (exploding.journal.skipped_updates.kept, exploding.journal.skipped_updates.count) == ([2], 1)
    verdict = judge(exploding)
    assert verdict.sentence == "Finished at step 6" and verdict.history == ["skipped a non-finite update once"]


def test_verified_checkpoints_are_listed(exploding):
    assert [(each.step, each.verified, each.problem) for each in exploding.checkpoints] == [(6, True, "")]
    assert exploding.newest["stages"] == [("adversarial", 6)]


def test_a_run_that_was_asked_to_stop_names_the_reason(tmp_path):
    run = tmp_path / "run"
    assert saved.train(run, "--steps", "8", "--max-steps", "4") == 0
    (run / "stop").touch()
    assert saved.train(run, "--steps", "8") == 75
    verdict = judge(run_folder.read(run, verify=False))
    assert verdict.state == "stopped" and "stop exists" in verdict.reason and verdict.resume
    assert verdict.sentence == "Stopped at step 4 of 8, and saved"
