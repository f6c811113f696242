"""A stage that ends on a plateau."""

import json

import numpy as np

from hvdgan.distributed.ranks import Ranks
from hvdgan.pages.reading import run_folder
from hvdgan.pages.verdict import judge
from hvdgan.recipe.stages import Plateau
from hvdgan.train import main
from hvdgan.training.window import Watch

RULE = Plateau("fool/loss", window=2, patience=2)


def ends_at(values, rule=RULE):
    """After how many steps the stage ends, with an interruption before each; None: it does not."""
    watch = Watch(rule)
    for step, value in enumerate(values, start=1):
        watch = Watch(rule, json.loads(json.dumps(watch.state())))
        watch.add({rule.metric: value, "other": 0.0})
        if watch.is_over(step, Ranks(), [1.0]):
            return step
    return None


def test_it_ends_after_patience_windows_that_are_not_better():
    assert ends_at([5, 5, 4, 4, 3, 3, 3, 3, 3, 3]) == 10
    assert ends_at([5, 5, 4, 4, 3, 3, 3, 3, 2, 2, 9, 9]) is None
    assert ends_at([5, 1, 1, 5, 5, 1]) == 6  # means count, and equal is not better


def test_what_is_better_can_be_said():
    rule = Plateau("fool/loss", window=1, patience=2, min_delta=0.5)
    assert ends_at([5, 4.4, 4.2, 4.1], rule) == 4
    assert ends_at([5, 4.4, 4.2, 3.8], rule) is None
    assert ends_at([1, 2, 3, 4], Plateau("fool/loss", window=1, patience=2, mode="max")) is None
    assert ends_at([4, 3, 2], Plateau("fool/loss", window=1, patience=2, mode="max")) == 3
    assert ends_at([4, 3, 2], Plateau("eval/psnr", window=1, patience=2)) == 3  # more is better
    nan = float("nan")  # not better, and no best
    assert ends_at([nan, nan, 5, 4, 3, 2, 1], Plateau("fool/loss", window=1, patience=3)) is None
    assert ends_at([nan, 5, 4, nan, 4, nan], Plateau("fool/loss", window=1, patience=3)) == 6


def records(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def train(tmp_path, name, *arguments):
    flags = "--image-size 8 --global-batch-size 4 --log-every 1 --checkpoint-every 1".split()
    return main(["--recipe", "ending:Ending", *flags, "--run-dir", str(tmp_path / name), *arguments])


def test_the_next_stage_begins_where_the_first_has_ended_also_after_a_resume(tmp_path):
    """Windows of 2: the first is the best, two more are not better: 6 steps of 40."""
    assert train(tmp_path, "whole") == 0
    assert [record["stage"] for record in records(tmp_path / "whole")] == ["first"] * 6 + ["second"] * 3
    log = (tmp_path / "whole" / "log.txt").read_text()
    assert "stage first ends after 6 of 40 steps: judge/steady no longer improves; this run ends at step 9" in log
    verdict = judge(run_folder.read(tmp_path / "whole"))
    assert (verdict.sentence, verdict.resume) == ("Finished at step 9", "")
    for stop in (3, 8):
        assert train(tmp_path, f"cut-{stop}", "--max-steps", str(stop)) == 0
        assert train(tmp_path, f"cut-{stop}", "--max-steps", "100") == 0
        assert [r["stage"] for r in records(tmp_path / f"cut-{stop}")] == ["first"] * 6 + ["second"] * 3
        tensors = [
            (tmp_path / name / "checkpoints" / "step-00000009" / "state.safetensors").read_bytes()
            for name in ("whole", f"cut-{stop}")
        ]
        assert tensors[0] == tensors[1]


def test_the_records_of_an_interrupted_window_are_those_of_a_whole_one(tmp_path):
    """Stopped in the middle of a log's window: the means that follow have the same bits."""
    flags = (
        "--recipe tiny:Tiny --steps 8 --image-size 8 --global-batch-size 4 --log-every 4 --checkpoint-every 1".split()
    )
    assert main([*flags, "--run-dir", str(tmp_path / "whole")]) == 0
    assert main([*flags, "--run-dir", str(tmp_path / "cut"), "--max-steps", "6"]) == 0
    assert main([*flags, "--run-dir", str(tmp_path / "cut"), "--max-steps", "8"]) == 0
    losses = [
        [(r["step"], r["judge/loss"], r["fool/loss"]) for r in records(tmp_path / name) if r["step"] in (4, 8)]
        for name in ("whole", "cut")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 2
    assert np.isfinite(losses[0]).all()
