"""A user's mistake is one line that names it and exit code 2, and nothing is written.

Modules: training.run.
"""

import keras
import numpy as np
import pytest
from PIL import Image

from hvdgan.recipe import Recipe
from hvdgan.recipe.stages import Stage, Update
from hvdgan.train import main
from tiny import Tiny

TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 4 --steps 2".split()


class Unseen(Tiny):
    """No sample()."""

    sample = Recipe.sample


class Decaying(Tiny):
    """A learning rate where the optimizer has a schedule."""

    def optimizers(self):
        schedule = keras.optimizers.schedules.ExponentialDecay(1e-3, 10, 0.5)
        return {**super().optimizers(), "generator": keras.optimizers.Adam(schedule)}

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool, learning_rate=1e-3)
        return [Stage("adversarial", self.options.steps, [judge, fool])]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with data of every kind in data/."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    (data / "good").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (12, 12, 3), np.uint8)
    for number in range(8):
        Image.fromarray(pixels).save(data / "good" / f"{number}.png")
    (data / "notes.txt").write_text("no data")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--image-size 48 --recipe dcgan", "--image-size 48: DCGAN takes 32, 64, 128 or 256 pixels"),
        ("--run-dir data/notes.txt/run", "--run-dir data/notes.txt/run"),
        ("--resume data/good", "--resume data/good: expected auto, never, or the folder of a checkpoint"),
        ("--recipe tiny:Required", "every field of its Options needs a default"),
        ("--recipe tiny:UnknownEma", "ema names nobody, and networks() returns generator, discriminator"),
        ("--recipe tiny:Noisy", "network discriminator draws its own random numbers"),
        ("--recipe tiny:Overdrawn", "draw() returns images, which every batch has"),
        ("--recipe test_one_line:Unseen", "it has no sample(), which must return images (N, H, W, C)"),
        (
            "--recipe test_one_line:Decaying",
            "stage adversarial, update fool: it has a learning rate, and the optimizer of generator has a schedule",
        ),
        ("--recipe measured:Measured --best-metric eval/erorr", "--best-metric eval/erorr: the run has eval/"),
    ],
)
def test_one_line_exit_code_2_and_nothing_written(folder, capsys, arguments, complaint):
    before = sorted(folder.rglob("*"))
    given = arguments.split()
    defaults = [word for pair in zip(TINY[::2], TINY[1::2], strict=True) if pair[0] not in given for word in pair]
    assert main([*given, *defaults]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hvdgan: ") and complaint in error and error.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def test_other_data_and_other_images_under_the_same_name_are_refused(folder, capsys):
    assert main([*TINY, "--data", "data/good", "--run-dir", "run"]) == 0
    (folder / "data" / "good" / "0.png").unlink()
    assert main([*TINY, "--data", "data/good", "--run-dir", "run"]) == 2
    assert (
        "was made with other images than those of data/good, or other --channels (8 images then, 7 now)"
        in capsys.readouterr().err
    )
    assert main([*TINY, "--run-dir", "run", "--data", "synthetic", "--channels", "1"]) == 2
    assert "was made with other images than those of synthetic" in capsys.readouterr().err
