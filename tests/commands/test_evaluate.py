"""The command hvdgan.evaluate, on runs of a few steps: the figures, each once, on any number of ranks, beside a run.

Figures are made anew where samples or a recipe's code have changed since.
Modules: inference.evaluating, inference.inputs, settings.evaluation, evaluation.held_out, evaluation.comparison"""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import saved
from hvdgan.data.store import spread
from hvdgan.evaluate import main as evaluate
from hvdgan.runs.evaluation_log import lock_evaluations
from hvdgan.train import main as train
from launching import environment
from launching import train as train_ranks
from messages import refused as refused_of
from pooled import pooled

TINY = "--image-size 8 --global-batch-size 8 --checkpoint-every 2 --keep 0 --report never".split()
FEW = ["--samples", "120", "--eval-features", pooled(), "--batch-size", "16", "--json"]
FIGURES = "frechet kid precision recall density coverage sliced_wasserstein histogram spectrum".split()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of six steps with checkpoints after 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert train(["--recipe", "tiny:Tiny", *TINY, "--steps", "6", "--run-dir", str(folder)]) == 0
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "run")


def records(folder):
    path = folder / "evaluation.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def printed(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def refused(capsys):
    """The line with which the command has refused."""
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("hvdgan: ")]
    return line


@pytest.mark.long
def test_the_newest_checkpoint_is_measured_once(folder, capsys):
    assert evaluate([str(folder), *FEW]) == 0
    (record,) = printed(capsys)
    assert record == records(folder)[0] and record["step"] == 6
    assert all(np.isfinite(record[f"eval/{name}"]) for name in FIGURES)
    facts = {"samples": 120, "real_samples": 120, "features": pooled(), "weights": "averaged", "seed": 0, "ranks": 1}
    assert {name: record[name] for name in facts} == facts
    assert len(record["features_sha256"]) == len(record["data_fingerprint"]) == 64 and record["ema_decay"] == 0.995
    assert evaluate([str(folder), *FEW]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == record and len(records(folder)) == 1
    assert f"figures of {record['time']}, from {folder / 'evaluation.jsonl'}" in said.err
    assert evaluate([str(folder), *FEW[:-1]]) == 0
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.endswith(f"step-00000006.safetensors: 120 generated and 120 real samples, features: {pooled()}")
    shown = {row.split()[0]: row.split()[1] for row in rows}
    assert {name: None if value == "undefined" else float(value) for name, value in shown.items()} == {
        name: value if value is None else pytest.approx(value, rel=1e-5)
        for name, value in record.items()
        if name.startswith("eval/")
    }
    for other in (["--seed", "1"], ["--weights", "trained"], ["--truncation", "1"], ["--data", "digits"]):
        assert evaluate([str(folder), *FEW, *other]) == 0
    assert evaluate([str(folder), *FEW, "--real-samples", "0"]) == 0
    assert records(folder)[-1]["real_samples"] > 1500
    figures = [record["eval/frechet"] for record in records(folder)]
    assert len(set(figures)) == len(figures) == 4  # a truncation by 1 and the run's own data change nothing


def test_an_interrupted_evaluation_of_all_checkpoints_resumes_and_a_damaged_one_is_named(folder, capsys):
    assert evaluate([str(saved.checkpoint(folder, 2)), *FEW]) == 0
    cut = saved.checkpoint(folder, 4)
    cut.write_bytes(cut.read_bytes()[:-50])
    for words in (["--all-checkpoints"], ["--watch"]):
        capsys.readouterr()
        assert evaluate([str(folder), *FEW, *words]) == 1
        assert [record["step"] for record in records(folder)] == [2, 6]
        said = capsys.readouterr().err
        assert said.count(f"checkpoints that could not be evaluated: {cut}") == 1 and "Traceback" not in said


def test_the_figures_in_training_are_those_afterwards_and_on_other_ranks(tmp_path):
    """The learning rate is too small to change a weight: what differs between ranks is not the training."""
    flags = ["--eval-samples", "120", "--eval-features", pooled(), *"--eval-every 2 --flip --run-dir".split()]
    words = ["--recipe", "tiny:Tiny", *TINY, "--steps", "4", "--learning-rate", "1e-12", *flags]
    assert train([*words, str(tmp_path / "whole")]) == 0
    assert train([*words, str(tmp_path / "resumed"), "--max-steps", "2"]) == 0
    train_ranks(tmp_path, *words, "resumed", ranks=2)
    assert evaluate([str(tmp_path / "whole"), "--samples", "120", "--all-checkpoints"]) == 0
    first, afterwards = records(tmp_path / "whole")[:2], records(tmp_path / "whole")[2:]
    same = ("step", "run_id", "samples_seen", "mirrored", "samples", "real_samples", "features_sha256", "weights")
    assert [record["samples_seen"] for record in first] == [16, 32] and first[0]["mirrored"] == ["width"]
    for one, after, resumed in zip(first, afterwards, records(tmp_path / "resumed"), strict=True):
        assert (one["by"], after["by"]) == ("training", "evaluate")
        assert set(after) - set(one) == {"checkpoint", "identity", "images", "standing_statistics"}
        assert [one[name] for name in same] == [after[name] for name in same]
        for name in FIGURES:
            for other in (after, resumed):
                assert one[f"eval/{name}"] == pytest.approx(other[f"eval/{name}"], rel=1e-5, abs=1e-7), name
    logged = saved.records(tmp_path / "whole")
    assert [each["eval/frechet"] for each in logged if "eval/frechet" in each] == [r["eval/frechet"] for r in first]


@pytest.mark.parametrize("words", refused_of("evaluate"))
def test_a_mistake_is_one_line(made, monkeypatch, messages, words):
    monkeypatch.chdir(made.parent)
    monkeypatch.delenv("HVDGAN_INCEPTION", raising=False)
    np.save("wide.npy", np.zeros((20, 8, 16), np.uint8))
    messages.refuses("evaluate", evaluate, words, folder=made.parent)


def started(words, cwd, **env):
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.Popen(command, cwd=cwd, env=environment(**env), stderr=subprocess.PIPE, text=True)


def test_a_second_evaluation_of_a_run_is_refused(folder, capsys):
    with lock_evaluations(folder):
        assert evaluate([str(folder), "--samples", "120"]) == 2
    assert f", pid {os.getpid()}); wait for its end" in refused(capsys) and not records(folder)


@pytest.mark.long
def test_a_run_is_followed_while_it_trains(tmp_path):
    """The folder is not there yet; all checkpoints are measured, each once, and the evaluator ends after the last."""
    folder, brake = tmp_path / "run", tmp_path / "brake"
    brake.touch()
    evaluator = started(["hvdgan.evaluate", folder, *FEW, "--watch"], tmp_path)
    flags = ["--recipe", "paced:Paced", *TINY, "--steps", "10", "--run-dir", str(folder)]
    trainer = started(["hvdgan.train", *flags], tmp_path, HVDGAN_BRAKE=str(brake))
    try:
        assert "waiting for the next checkpoint" in evaluator.stderr.readline()
        assert any("compared with" in line for line in evaluator.stderr)  # the first, during the run
        brake.unlink()
        for process in (trainer, evaluator):
            process.communicate(timeout=200)
            assert process.returncode == 0
    finally:
        for process in (trainer, evaluator):
            process.kill()
            process.wait(timeout=60)
    assert [record["step"] for record in records(folder)] == [2, 4, 6, 8, 10]


EDITED = """
from tiny import Tiny

class Edited(Tiny):
    def sample(self, nets, batch):
        return {scale} * nets.generator(batch.latents)
"""


def trained(recipe):
    assert train(["--recipe", recipe, *TINY, "--channels", "1", "--steps", "2", "--run-dir", "run"]) == 0


def test_a_recipe_that_was_edited_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for scale, named in ((1, []), (1, []), (10, ["--recipe", "edited_recipe:Edited"])):
        (tmp_path / "edited_recipe.py").write_text(EDITED.format(scale=scale))
        sys.modules.pop("edited_recipe", None)
        if not (tmp_path / "run").exists():
            trained("edited_recipe:Edited")
        assert evaluate(["run", "--samples", "60", "--batch-size", "16", *named]) == 0
    before, after = records(tmp_path / "run")
    assert before["eval/histogram"] != after["eval/histogram"]


COUNT = 130


def write(folder, most=256, numbers=range(COUNT)):
    """Write grey pictures of one size in bytes, or write some of them over."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        pixels = np.random.default_rng(number).integers(0, most, (8, 8), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.bmp")


def test_samples_that_were_written_over_are_measured_anew(tmp_path, monkeypatch):
    """Those of another program, also where the fingerprint does not look at the ones that have changed."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "samples")
    trained("tiny:Tiny")
    words = ["run", "--samples", str(COUNT), "--images", "samples"]
    for _ in range(2):
        assert evaluate(words) == evaluate(words) == 0
        write(tmp_path / "samples", most=30, numbers=sorted(set(range(COUNT)) - set(spread(COUNT).tolist())))
    before, after = records(tmp_path / "run")
    assert before["eval/histogram"] != after["eval/histogram"]
    assert before["images_fingerprint"] == after["images_fingerprint"]
    assert all(before[name] is None for name in ("weights", "ema_decay", "seed", "truncation", "precision"))


def test_broken_samples_are_counted_and_named_and_too_many_are_refused(tmp_path, monkeypatch, capsys):
    """The run allows 1 of 100."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "samples")
    trained("tiny:Tiny")

    def damage(*numbers):
        for number in numbers:
            path = tmp_path / "samples" / f"{number:03}.bmp"
            path.write_bytes(path.read_bytes()[:-20])

    words = ["run", "--samples", str(COUNT), "--images", "samples"]
    damage(7)
    assert evaluate(words) == 0
    assert [record["samples"] for record in records(tmp_path / "run")] == [COUNT - 1]
    assert f"--images samples: 1 of {COUNT} samples cannot be read; the first: 007.bmp: " in capsys.readouterr().err
    damage(3, 4)
    assert evaluate(words) == 1
    line = refused(capsys)
    assert f"--images samples: 3 of {COUNT} samples cannot be read; the first: 003.bmp: " in line
    assert "the run allows a fraction of 0.01 (--max-bad-fraction)" in line
    damage(*range(8, COUNT))
    assert evaluate(words) == 1
    assert "the distances need at least 6" in refused(capsys) and len(records(tmp_path / "run")) == 1
