"""Following a run: which checkpoint is next, beside other evaluators. What watches real runs: tests/commands."""

import json

import pytest

from hvdgan.checkpoints.files import FORMAT_VERSION, MANIFEST, step_of
from hvdgan.distributed.ranks import Ranks
from hvdgan.inference import following


class Known:
    """What is known of the evaluations, by the steps of their checkpoints."""

    def __init__(self, claimed=()):
        self.done, self.claimed = set(), set(claimed)

    def is_done(self, checkpoint):
        return step_of(checkpoint) in self.done

    def is_claimed(self, checkpoint):
        return step_of(checkpoint) in self.claimed


@pytest.fixture
def run_dir(tmp_path):
    """The checkpoints of a run of six steps, as far as follow() reads them."""
    for step in (2, 4, 6):
        folder = tmp_path / "checkpoints" / f"step-{step:08}"
        folder.mkdir(parents=True)
        facts = {"step": step, "config": {}, "data": {}, "tensors": {}, "stages": [["only", 6]]}
        (folder / MANIFEST).write_text(json.dumps({"format_version": FORMAT_VERSION, **facts}))
    return tmp_path


@pytest.fixture
def watched(run_dir, monkeypatch):
    """A function that follows the run: `later` is done in the third pause, checkpoint 2 is measured at `attempt`."""

    def watch(known, later, attempt=1):
        pauses, order, lines = [], [], []

        def pause(seconds):
            pauses.append(seconds)
            if len(pauses) == 3:
                later(known)
            assert len(pauses) < 10

        monkeypatch.setattr(following.time, "sleep", pause)
        for checkpoint in following.follow(run_dir, known, set(), Ranks(), lines.append):
            order.append(step_of(checkpoint))
            if order[-1] != 2 or order.count(2) >= attempt:
                known.done.add(order[-1])
        return order, len(pauses), lines

    return watch


def waiting(run_dir, step):
    return f"{run_dir}: waiting for the evaluation of {run_dir / 'checkpoints' / f'step-{step:08}'}"


def test_a_claimed_checkpoint_is_passed_over_and_taken_once_its_process_is_gone(run_dir, watched):
    order, pauses, lines = watched(Known(claimed=[2]), lambda known: known.claimed.clear())
    assert (order, pauses, lines) == ([4, 6, 2], 3, [waiting(run_dir, 2)])


def test_what_another_process_has_evaluated_is_not_evaluated_again(run_dir, watched):
    order, pauses, lines = watched(Known(claimed=[4, 6]), lambda known: known.done.update(known.claimed))
    assert (order, pauses, lines) == ([2], 3, [waiting(run_dir, 4)])


def test_a_checkpoint_whose_claim_is_gone_at_the_next_look_is_tried_again_after_a_pause(run_dir, watched):
    """The first attempt has found a claim."""
    assert watched(Known(), lambda known: None, attempt=2) == ([2, 2, 4, 6], 1, [waiting(run_dir, 2)])
