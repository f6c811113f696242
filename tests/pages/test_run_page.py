"""The page of a real run: what it has, and in which order."""

import re

import pytest

import saved
from hvdgan import report


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a run with two evaluations and a best checkpoint."""
    run = tmp_path_factory.mktemp("runs") / "run"
    words = ["--eval-samples", "16", "--eval-every", "4", "--best-metric", "eval/histogram", "--learning-rate", "0.01"]
    assert saved.train(run, *words) == 0
    assert report.main([str(run)]) == 0
    return (run / "report.html").read_text()


def section(page, name):
    """The part of the page below a heading."""
    return re.search(rf'(?s)<h2 id="{name}">.*?</section>', page)[0]


def test_the_best_checkpoint_is_named_and_marked(page):
    shown = section(page, "evaluations")
    assert re.search(r"Best checkpoint: eval/histogram [\d.]+ at step [48] \(the smallest value is the best\)", shown)
    assert "var(--mark)" in shown


def test_only_options_that_differ_are_listed_and_the_others_are_folded(page):
    shown, _, folded = section(page, "settings").partition("<details>")
    assert "--learning-rate" in shown and "--norm" not in shown and "norm" in folded


def test_the_sections_follow_each_other_from_the_result_to_its_origins(page):
    ids = re.findall('<h2 id="(.*?)">', page)
    assert ids == "samples metrics evaluations speed data trained settings machine checkpoints".split()
    assert re.findall('<a href="#(.*?)">', page) == ids
    assert "tiny:Tiny" in section(page, "trained") and "TensorFlow" not in section(page, "trained")
    assert "TensorFlow" in section(page, "machine") and "CPU" in section(page, "machine")
