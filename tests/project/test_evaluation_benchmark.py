"""The benchmarks of benchmarks/evaluation, shortened: their figures are right, and they run."""

import json
import re
import sys

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.data import open_source
from launching import ROOT, run

sys.path.insert(0, str(ROOT / "benchmarks" / "evaluation"))
import in_turn
import meaning
import recipes


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits of scikit-learn at 32 pixels, as benchmarks/datasets.py writes them."""
    source = open_source(Config())
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, images=source.fetch_batch(np.arange(len(source))), labels=source.labels)
    return path


@pytest.mark.long
def test_worse_digits_are_farther_from_real_ones(digits, tmp_path, monkeypatch, capsys):
    """Features by hand: means of 8 x 8 pixels, of the picture and of its slopes, which blurring lowers."""
    (tmp_path / "coarse.py").write_text(
        "import tensorflow as tf\n\n"
        "def means(samples):\n"
        "    both = [samples, tf.abs(tf.image.sobel_edges(samples)[..., 0, :])]\n"
        "    return tf.concat([tf.nn.avg_pool2d(each, 8, 8, 'VALID') for each in both], axis=-1)\n"
    )
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out.json"
    flags = f"--data {digits} --features coarse:means --num 200 --out {out}"
    monkeypatch.setattr(sys, "argv", ["meaning.py", *flags.split()])
    meaning.main()
    printed, rows = capsys.readouterr().out, json.loads(out.read_text())
    assert re.search(r"\| real, draw 1 \| [\d.e-]+ \|", printed) and printed.count("\n") == 12
    assert rows["blurred, 2 pixels"]["spectrum"] > rows["blurred, 1 pixel"]["spectrum"]
    assert rows["one picture repeated"]["recall"] == 0
    same = {name: rows["real, draw 1"] for name in rows}
    assert len(meaning.unexpected(same)) > len(meaning.SHOWN_BY), "sets that are not worse are reported"


@pytest.mark.long
def test_a_recipe_and_its_keras_loop_are_compared_at_equal_steps(digits, tmp_path, monkeypatch, capsys):
    (tmp_path / "features.py").write_text(
        "import tensorflow as tf\n\ndef means(samples):\n    return tf.reduce_mean(samples, axis=(2, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(recipes, "POINTS", 2)
    monkeypatch.setitem(recipes.RECIPES, "wgan_gp", "--nf 2 --n-critic 1")
    flags = f"--data {digits} --features features:means --runs runs --images 256 --num 40 --seeds 1"
    more = "--recipes wgan_gp --picture curves.png --out out.json"
    monkeypatch.setattr(sys, "argv", ["recipes.py", *flags.split(), *more.split()])
    recipes.main()
    curves = json.loads((tmp_path / "out.json").read_text())["wgan_gp"]
    assert {side: len(some) for side, some in curves.items()} == {"hvdgan": 1, "Keras": 1}
    for (curve,) in curves.values():
        assert [point["step"] for point in curve] == [2, 4]
        assert all(point["frechet"] > 0 for point in curve)
        seconds = [point["seconds"] for point in curve]
        assert seconds == sorted(seconds) and seconds[0] > 0
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert re.search(r"\| wgan_gp \| [\d.e+]+ \| [\d.e+]+ \| [\d.]+ \([\d.]+ to ", capsys.readouterr().out)
    runs = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/curve.json")}
    recipes.main()
    assert {path: path.stat().st_mtime_ns for path in runs} == runs, "runs that are there are not repeated"


def test_seconds_of_training_are_those_of_all_steps(tmp_path):
    lines = [
        {"step": 10, "step_seconds": 0.5},
        {"step": 10, "eval/frechet": 3.0},
        {"step": 30, "step_seconds": 0.25},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert recipes.training_seconds(tmp_path / "metrics.jsonl") == {10: 5.0, 30: 10.0}


def test_a_recipe_is_summed_up_over_its_seeds():
    hvdgan = [[{"seconds": 5.0, "frechet": 9.0}, {"seconds": 10.0, "frechet": last}] for last in (1.0, 3.0)]
    keras = [[{"seconds": first, "frechet": 9.0}, {"seconds": 20.0, "frechet": 5.0}] for first in (15.0, 10.0)]
    assert recipes.summary(hvdgan, keras) == {
        "Fréchet, hvdgan": "2 ± 1.41",
        "Fréchet, Keras": "5 ± 0",
        "seconds, hvdgan / Keras": "0.50 (0.50 to 0.50)",
        "after the first evaluation": "0.75 (0.50 to 1.00)",
    }


def test_each_turn_is_compared_with_those_around_it():
    hvdgan, plain = [10.0, 10.0, 40.0, 60.0], [5.0, 15.0, 25.0, 55.0, 65.0]
    assert in_turn.line("x", hvdgan, plain).endswith("| 1.000 | 1.000 to 1.000 | 0.500 to 1.000 |")
    step = 1000 / in_turn.STEPS
    assert in_turn.line("x", hvdgan, plain).startswith(f"| x | {25 * step:.1f} | {25 * step:.1f} |")


@pytest.mark.long
def test_hvdgan_and_a_plain_loop_train_in_turn(digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(in_turn, "STEPS", 4)
    monkeypatch.setitem(in_turn.RECIPES, "wgan_gp", "--nf 2 --n-critic 2")
    monkeypatch.setattr(sys, "argv", f"in_turn.py --data {digits} --turns 3 --recipes wgan_gp".split())
    in_turn.main()
    assert re.search(r"(?m)^\| wgan_gp \| [\d.]+ \| [\d.]+ \| [\d.]+ \| [\d.]+ to ", capsys.readouterr().out)
    assert not list(tmp_path.iterdir()), "the run goes to a folder that is deleted"


@pytest.mark.long
def test_the_cost_is_measured_in_turn(tmp_path):
    flags = "--rounds 1 --num 64 --few 32 --many 64"
    command = [sys.executable, ROOT / "benchmarks" / "evaluation" / "cost.py", *flags.split()]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    timings = (
        r"(?m)^round 1: one rank [\d.]+ s, two ranks [\d.]+ s, two copies with half of the samples each [\d.]+ s; CPU "
    )
    assert re.search(timings, done.stdout), done.stdout
    few, many = map(int, re.search(r"(\d+) MiB with 32 samples, (\d+) MiB with 64$", done.stdout.strip()).groups())
    assert few > 100 and many > 100
