"""A user's mistake is one line that names it and exit code 2, and nothing is written.

Modules: training.run.
"""

import json
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from hvdgan.recipe import Recipe
from hvdgan.recipe.stages import Stage, Update
from hvdgan.train import main
from tiny import Tiny

TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 4 --steps 2".split()


class Unseen(Tiny):
    """No sample()."""

    sample = Recipe.sample


class Misspelt(Tiny):
    """A network that is not there."""

    def sample(self, nets, batch):
        return nets.genrator(batch.latents)


class Flat(Tiny):
    """Logits for images."""

    def sample(self, nets, batch):
        return nets.discriminator(batch.images)


class Nothing(Tiny):
    def sample(self, nets, batch):
        nets.generator(batch.latents)


class Mean(Tiny):
    """One number for all held-out images."""

    def evaluate(self, nets, batch):
        return {"bright": tf.reduce_mean(batch.images)}


class Unnamed(Tiny):
    def evaluate(self, nets, batch):
        return tf.reduce_mean(batch.images, axis=(1, 2, 3))


class Missing(Tiny):
    """A draw that is not there."""

    def evaluate(self, nets, batch):
        return {"bright": batch.mask}


class Decaying(Tiny):
    """A learning rate where the optimizer has a schedule."""

    def optimizers(self):
        schedule = keras.optimizers.schedules.ExponentialDecay(1e-3, 10, 0.5)
        return {**super().optimizers(), "generator": keras.optimizers.Adam(schedule)}

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool, learning_rate=1e-3)
        return [Stage("adversarial", self.options.steps, [judge, fool])]


class Momentum(Tiny):
    """Betas for an optimizer that has none."""

    def optimizers(self):
        return {name: keras.optimizers.SGD() for name in ("generator", "discriminator")}

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool, betas=(0.5, 0.9))
        return [Stage("adversarial", self.options.steps, [judge, fool])]


def line_of(*texts):
    """The number of the first line of this file that holds the last text, after the lines that hold the others."""
    lines = Path(__file__).read_text().splitlines()
    number = 0
    for text in texts:
        number = next(later for later in range(number + 1, len(lines) + 1) if text in lines[later - 1])
    return number


LINES = {
    "Unseen": line_of("class Unseen"),
    "Misspelt": line_of("class Misspelt", "genrator"),
    "Flat": line_of("class Flat", "def sample"),
    "Nothing": line_of("class Nothing", "def sample"),
    "Mean": line_of("class Mean", "def evaluate"),
    "Unnamed": line_of("class Unnamed", "def evaluate"),
    "Missing": line_of("class Missing", "batch.mask"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with data of every kind in data/."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    for name in ("good", "empty", "text", "half"):
        (data / name).mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (12, 12, 3), np.uint8)
    for number in range(8):
        Image.fromarray(pixels).save(data / "good" / f"{number}.png")
        Image.fromarray(pixels).save(data / "half" / f"{number}.png")
    for number in range(4):
        path = data / "half" / f"{number}.png"
        path.write_bytes(path.read_bytes()[:100])
    (data / "text" / "a.png").write_text("no image")
    (data / "broken.npy").write_bytes(b"\x93NUMPY")
    (data / "notes.txt").write_text("no data")
    np.save(data / "flat.npy", np.zeros(5, np.uint8))
    np.save(data / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(data / "two.npz", first=np.zeros((2, 8, 8), np.uint8), second=np.zeros((2, 8, 8), np.uint8))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--image-size 48 --recipe dcgan", "--image-size 48: DCGAN takes 32, 64, 128 or 256 pixels"),
        ("--image-size 4", "--image-size 4: the digits have 8 x 8 pixels"),
        ("--imagesize 8", "--imagesize"),
        ("--seed x", '"x" is not a whole number'),
        ("--data nowhere", "--data nowhere: no such file or folder"),
        ("--data data/empty", "--data data/empty: found no images in it"),
        ("--data data/text", "--data data/text: none of 1 images that were tried can be read: a.png"),
        ("--data data/broken.npy", "--data data/broken.npy"),
        ("--data data/flat.npy", "--data data/flat.npy"),
        ("--data data/objects.npy", "--data data/objects.npy"),
        ("--data data/two.npz", "--data data/two.npz"),
        ("--data data/notes.txt", "--data data/notes.txt: of no known kind; expected digits, synthetic, a folder"),
        ("--run-dir data/notes.txt", "--run-dir data/notes.txt"),
        ("--run-dir data/notes.txt/run", "--run-dir data/notes.txt/run"),
        ("--resume sometimes", "--resume sometimes: expected auto, never, or the folder of a checkpoint"),
        ("--expect-size 2", "--expect-size 2: there are 1 ranks"),
        ("--steps 0", "stage adversarial: 0 steps"),
        ("--config data/notes.txt", "--config data/notes.txt: cannot be read as JSON"),
        ("--recipe nobody", "--recipe nobody: there is no module hvdgan.recipes.nobody"),
        ("--recipe :X", '--recipe ":X": expected one of calo3d, completion, dcgan, downscale, pix2pix,'),
        ("--recipe ..x:Y", '--recipe "..x:Y": expected one of'),
        ("--recipe=", '--recipe "": expected one of'),
        ("--recipe tiny:Required", "every field of its Options needs a default"),
        ("--recipe tiny:UnknownEma", "ema names nobody, and networks() returns generator, discriminator"),
        ("--recipe tiny:OneOptimizer", "optimizers() gives one optimizer to two networks"),
        ("--recipe tiny:Noisy", "network discriminator draws its own random numbers"),
        ("--recipe tiny:Untouched", "update fool: the loss does not depend on generator/dense"),
        ("--recipe tiny:TwoLosses", "stage joint, update judge: a metric is named loss"),
        ("--recipe tiny:Overdrawn", "draw() returns images, which every batch has"),
        (
            "--recipe test_one_line:Unseen",
            "recipe Unseen (test_one_line.py, line N): it has no sample(), which must return images (N, H, W, C)",
        ),
        (
            "--recipe test_one_line:Misspelt",
            "recipe Misspelt (test_one_line.py, line N): sample() fails: AttributeError: there is no network genrator",
        ),
        (
            "--recipe test_one_line:Flat",
            "recipe Flat (test_one_line.py, line N): sample() returns float32 (64, 1); it must",
        ),
        (
            "--recipe test_one_line:Nothing",
            "recipe Nothing (test_one_line.py, line N): sample() returns None; it must return",
        ),
        (
            "--recipe test_one_line:Mean",
            "recipe Mean (test_one_line.py, line N): evaluate() returns bright as float32 (); it must",
        ),
        (
            "--recipe test_one_line:Unnamed",
            "recipe Unnamed (test_one_line.py, line N): evaluate() returns float32 (4,); it must",
        ),
        (
            "--recipe test_one_line:Missing",
            "recipe Missing (test_one_line.py, line N): evaluate() fails: AttributeError: the batch has no mask",
        ),
        (
            "--recipe test_one_line:Decaying",
            "stage adversarial, update fool: it has a learning rate, and the optimizer of generator has a schedule",
        ),
        (
            "--recipe test_one_line:Momentum",
            "stage adversarial, update fool: it has betas, and the optimizer of generator has none",
        ),
        ("--recipe measured:Measured --best-metric eval/erorr", "--best-metric eval/erorr: the run has eval/"),
        ("--stages adversarial=0", "stage adversarial: 0 steps"),
        ("--data=", "--data"),
        ("--resume data/good", "--resume data/good: expected auto, never, or the folder of a checkpoint"),
        (f"--resume {'x' * 300}", "File name too long"),
        (f"--run-dir {'x' * 300}", "File name too long"),
    ],
)
def test_one_line_exit_code_2_and_nothing_written(folder, capsys, arguments, complaint):
    before = sorted(folder.rglob("*"))
    complaint = complaint.replace("line N", f"line {LINES.get(arguments.rpartition(':')[2])}")
    given = arguments.split()
    defaults = [word for pair in zip(TINY[::2], TINY[1::2], strict=True) if pair[0] not in given for word in pair]
    assert main([*given, *defaults]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hvdgan: ") and complaint in error and error.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def test_too_many_files_that_break_while_training_end_the_run(folder, capsys):
    assert main([*TINY, "--data", "data/half"]) == 1
    error = capsys.readouterr().err
    assert re.search(r"[1-4] of 8 images cannot be read", error), error  # several threads meet them
    assert "--max-bad-fraction" in error and "Traceback" not in error


def test_broken_files_are_skipped_by_name_and_counted(folder, capsys):
    assert main([*TINY, "--data", "data/half", "--max-bad-fraction", "0.5", "--run-dir", "run"]) == 0
    log = (folder / "run" / "log.txt").read_text()
    assert all(f"skipped {number}.png: " in log for number in range(4))
    record = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["bad_files"] == 4


def test_a_resumed_run_with_other_settings_is_refused_by_field(folder, capsys):
    assert main([*TINY, "--run-dir", "run"]) == 0
    capsys.readouterr()
    for flag, value, field in (("--seed", "1", "seed 0, and this run has 1"), ("--norm", "batch", "norm 'none'")):
        assert main([*TINY, "--run-dir", "run", flag, value]) == 2
        assert field in capsys.readouterr().err
    assert main([*TINY, "--run-dir", "run", "--data", "synthetic", "--channels", "1"]) == 2
    assert "was made with other images than those of synthetic" in capsys.readouterr().err


def test_a_resumed_run_may_be_longer_and_log_otherwise(folder, capsys):
    assert main([*TINY, "--run-dir", "run"]) == 0
    longer = [*TINY[:-1], "5", "--run-dir", "run", "--log-every", "1", "--pipeline.prefetch", "1"]
    assert main(longer) == 0
    assert "resuming at step 2 of 5" in capsys.readouterr().err
    steps = [json.loads(line)["step"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [2, 3, 4, 5]


def test_other_images_under_the_same_name_are_refused(folder, capsys):
    assert main([*TINY, "--data", "data/good", "--run-dir", "run"]) == 0
    (folder / "data" / "good" / "0.png").unlink()
    assert main([*TINY, "--data", "data/good", "--run-dir", "run"]) == 2
    assert (
        "was made with other images than those of data/good, or other --channels (8 images then, 7 now)"
        in capsys.readouterr().err
    )


def test_a_run_that_ended_before_its_first_checkpoint_keeps_its_settings(folder, capsys):
    assert main([*TINY, "--run-dir", "run"]) == 0
    shutil.rmtree(folder / "run" / "checkpoints")
    assert main([*TINY, "--run-dir", "run", "--seed", "7"]) == 2
    assert "run/config.json was made with seed 0, and this run has 7" in capsys.readouterr().err
    assert main([*TINY, "--run-dir", "run"]) == 0


def test_the_run_folder_of_another_run_is_not_its_checkpoint(folder, capsys):
    assert main([*TINY, "--run-dir", "a"]) == 0
    assert main([*TINY, "--run-dir", "b", "--resume", "a"]) == 2
    assert "did you mean a/checkpoints/step-00000002?" in capsys.readouterr().err


def test_a_run_that_resumes_from_elsewhere_stands_by_itself_at_once(folder, capsys):
    """It is killed here before its first checkpoint is due, and the same command resumes."""
    assert main([*TINY, "--run-dir", "a", "--checkpoint-every", "1"]) == 0
    elsewhere = [*TINY, "--run-dir", "b", "--resume", "a/checkpoints/step-00000001/", "--max-steps", "1"]
    assert main(elsewhere) == 0
    assert (folder / "b" / "checkpoints" / "latest").read_text() == "step-00000001\n"
    assert main([*TINY, "--run-dir", "b"]) == 0
    assert "resuming at step 1 of 2" in capsys.readouterr().err


def test_a_finished_run_is_left_as_it_is(folder, capsys):
    assert main([*TINY, "--run-dir", "run"]) == 0
    before = (folder / "run" / "config.json").read_bytes()
    assert main([*TINY, "--run-dir", "run", "--max-steps", "1"]) == 0
    assert "step 2 of 1 is reached; raise --max-steps to continue" in capsys.readouterr().err
    assert (folder / "run" / "config.json").read_bytes() == before


@pytest.mark.parametrize(("blocked", "code"), [("metrics.jsonl", 2), ("checkpoints/latest", 1)])
def test_output_that_cannot_be_written_is_one_line(folder, capsys, blocked, code):
    (folder / "run" / blocked).mkdir(parents=True)
    assert main([*TINY, "--run-dir", "run"]) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("hvdgan: ") and blocked.split("/")[-1] in last


def test_a_picture_that_cannot_be_written_is_reported_and_training_continues(folder, capsys):
    (folder / "run" / "samples" / "step-00000002.png").mkdir(parents=True)
    assert main([*TINY, "--run-dir", "run"]) == 0
    assert "warning: samples cannot be written" in capsys.readouterr().err
    assert (folder / "run" / "checkpoints" / "step-00000002").is_dir()


def test_a_named_checkpoint_never_drops_a_runs_later_steps(folder, capsys):
    assert main([*TINY, "--run-dir", "run", "--checkpoint-every", "1"]) == 0
    before = (folder / "run" / "metrics.jsonl").read_text()
    assert main([*TINY, "--run-dir", "run", "--resume", "run/checkpoints/step-00000001"]) == 2
    assert "run holds a run that did not begin there, whose steps would be lost" in capsys.readouterr().err
    assert (folder / "run" / "metrics.jsonl").read_text() == before
