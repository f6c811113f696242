"""hvdgan verify: what hvdgan brings passes, and each broken promise is named.

Modules: diagnostics.agreement, diagnostics.children, diagnostics.ownership, diagnostics.trial, inference.exported
"""

import json
import shutil
import sys

import numpy as np
import pytest

from hvdgan import verify
from launching import ROOT, run
from messages import refused
from small import RECIPES, data_flags, flags, write_showers

TINY = "--image-size 8 --global-batch-size 16".split()
NORMED = ("completion", "dcgan", "pix2pix", "sngan", "srgan", "vae_gan", "wgan_gp")
"""recipes with BatchNorm"""
OF_TABLES = "--sync-batch-norm --pack 2 --values 0=standard;1=log1p+standard;2=none;3=none;4=none;5=none;6=none"
EXAMPLES = {
    "my_gan:MyGAN": "--image-size 8",
    "my_conv_gan:MyConvGAN": "--image-size 8",
    "my_translator:MyTranslator": "--image-size 8",
    "my_table_gan:MyTableGAN": f"--data data.npy {OF_TABLES}",
    "my_audio_gan:MyAudioGAN": "--data data.npy --axes WC",
    **{f"my_losses:{name}": "--image-size 8" for name in ("MeanTeacher", "BYOL", "Codebook", "LearntWeights")},
}
LONG = pytest.mark.long
pytestmark = pytest.mark.timeout(1000)  # stylegan2 traces for minutes on a busy machine


def rows_of(folder, *words, code=0):
    """The rows of verify.json, each verdict with what it says, by the names of the checks."""
    before = {*folder.iterdir()}
    done = run([sys.executable, "-m", "hvdgan.verify", *words], folder, forked=True, seconds=900)
    assert done.returncode == code, done.stdout + done.stderr
    assert {path.name for path in {*folder.iterdir()} - before} - {"__pycache__"} == {"verify.json"}
    results = json.loads((folder / "verify.json").read_text())
    assert results["verdict"] == ("fail" if code else "ok") and results["sentence"] in done.stdout
    return {row["check"]: (row["verdict"], f"{row['found']}; {row['hint']}") for row in results["rows"]}


@LONG
@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_passes(tmp_path, name):
    write_showers(tmp_path / "showers.npz")
    words = ["--recipe", name, *flags(name), *data_flags(name, tmp_path), "--global-batch-size", "8"]
    assert len(rows_of(tmp_path, *words, *["--sync-batch-norm"] * (name in NORMED))) == 6


@LONG
@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_passes(tmp_path, name):
    file = f"{name.partition(':')[0]}.py"
    shutil.copy(ROOT / "examples" / file, tmp_path)
    if "data.npy" in EXAMPLES[name]:
        assert run([sys.executable, file, "data.npy"], tmp_path).returncode == 0
    words = f"--recipe {name} --width 4 --global-batch-size 8 {EXAMPLES[name]}".split()
    assert len(rows_of(tmp_path, *words)) == 6


@pytest.mark.parametrize(
    ("recipe", "named"),
    [
        (
            "planted:Several",
            {
                "ownership": ["update fool", "discriminator"],
                "ranks": ["update judge", "batch.mean", "batch.gather"],
                "samples": ["images"],
                "non-finite": ["update judge"],
            },
        ),
        pytest.param("planted:NoMeanLater", {"ranks": ["update fool", "batch.mean"]}, marks=LONG),
        pytest.param("planted:OwnState", {"ranks": ["discriminator/follows/seen", "state()"]}, marks=LONG),
        pytest.param("planted:Forgets", {"resume": ["differs", "no checkpoint holds"]}, marks=LONG),
        pytest.param("planted:NotServed", {"exports": ["sample()"]}, marks=LONG),
        pytest.param("tiny:Tiny --norm batch", {"ranks": ["BatchNorm", "--sync-batch-norm"]}, marks=LONG),
    ],
)
def test_each_broken_promise_fails_by_its_name_and_no_other(tmp_path, recipe, named):
    rows = rows_of(tmp_path, "--recipe", *recipe.split(), *TINY, code=1)
    assert {name for name, (verdict, _) in rows.items() if verdict == "fail"} == named.keys(), rows
    assert all(word in rows[check][1] for check, words in named.items() for word in words), rows


@pytest.mark.long
def test_a_run_folder_stands_for_its_settings_and_without_horovod_two_ranks_are_not_checked(tmp_path):
    (tmp_path / "run").mkdir()
    settings = {"recipe": "tiny:Staged", "data": "digits", "image_size": 8, "global_batch_size": 16, "steps": 100}
    (tmp_path / "run" / "config.json").write_text(json.dumps(settings))
    without = "import sys; sys.modules['horovod'] = None; from hvdgan import verify; sys.exit(verify.main(['run']))"
    done = run([sys.executable, "-c", without], tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "verify.json").read_text())
    unchecked = [(row["check"], "Horovod" in row["hint"]) for row in results["rows"] if row["verdict"] == "warn"]
    assert unchecked == [("ranks", True), ("samples", True)] and "two ranks" not in results["sentence"]
    assert "for 6 steps" in results["sentence"]  # two of each of three stages
    assert results["settings"]["steps"] == 100 and "tiny.py" in results["code"]


@LONG
def test_data_that_are_not_finite_are_named(tmp_path):
    np.save(tmp_path / "nan.npy", np.full((20, 8, 8, 1), np.nan, np.float32))
    words = [sys.executable, "-m", "hvdgan.verify", "--recipe", "tiny:Tiny", "--data", "nan.npy"]
    done = run(words, tmp_path, forked=True)
    assert done.returncode == 2 and "nan.npy" in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.parametrize("words", refused("verify"))
def test_mistakes_are_one_line(tmp_path, monkeypatch, messages, words):
    monkeypatch.chdir(tmp_path)
    messages.refuses("verify", verify.main, words, folder=tmp_path)
