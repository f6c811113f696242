"""Settings, data and distances that may differ when a run is resumed, above all the steps of its last stage."""

import dataclasses
import re
import shutil
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import launching
from hvdgan.recipe import Schedule, Stage
from hvdgan.train import main
from saved import checkpoint, rewrite, state
from tiny import Staged, Tiny, TinyOptions

SIZE = "--global-batch-size 8"
FLAGS = f"--image-size 8 {SIZE}".split()


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnOptions(TinyOptions):
    """Options of the recipes of one's own."""

    warmup: int = 2
    """steps of the first stage"""


class Own(Tiny):
    """A recipe that says nothing of what may change."""

    Options = OwnOptions

    def stages(self):
        judge, fool = super().stages()[0].updates
        return [Stage("warmup", self.options.warmup, [judge]), Stage("both", self.options.steps, [judge, fool])]


class Each(Staged):
    """One option for the steps of every stage."""


class Moving(Tiny):
    """Its only stage moves four values over all of its steps."""

    level, rate, betas = Schedule(0, 1), Schedule(1e-3, 0, "cosine"), (0.5, Schedule(0.9, 0.99))

    def stages(self):
        (stage,) = super().stages()
        updates = [dataclasses.replace(each, learning_rate=self.rate, betas=self.betas) for each in stage.updates]
        return [dataclasses.replace(stage, updates=updates, schedules={"level": self.level})]


class Staying(Moving):
    """Its values do not depend on the number of steps."""

    level, rate, betas = Schedule(1), Schedule(1e-3, kind="exponential", factor=0.5, epochs=1), (0.5, 0.9)


def train(run_dir, recipe, *arguments):
    return main(["--recipe", f"test_changes:{recipe}", *FLAGS, "--run-dir", str(run_dir), *arguments])


def log(run_dir):
    return (run_dir / "log.txt").read_text()


@pytest.mark.parametrize(
    ("recipe", "flag", "before", "after", "last"),
    [
        ("Own", "--steps", "4", "6", 8),
        pytest.param("Each", "--stages", "joint=2,generator=2", "joint=2,generator=4", 6, marks=pytest.mark.long),
    ],
)
def test_the_last_stage_may_grow_however_its_steps_are_given(tmp_path, capsys, recipe, flag, before, after, last):
    assert train(tmp_path / "grown", recipe, flag, before) == 0
    assert train(tmp_path / "grown", recipe, flag, after) == 0, capsys.readouterr().err
    assert train(tmp_path / "whole", recipe, flag, after) == 0
    assert state(tmp_path / "grown", last) == state(tmp_path / "whole", last)
    assert "is now" in log(tmp_path / "grown") and "warning" not in log(tmp_path / "grown")


@pytest.mark.parametrize(
    ("recipe", "moved"),
    [
        ("Moving", ["level, learning rate of judge, beta_2 of judge, learning rate of fool, beta_2 of fool"]),
        ("Staying", []),
    ],
)
def test_a_longer_last_stage_names_the_schedules_whose_values_it_moves(tmp_path, recipe, moved):
    for steps in ("2", "4"):
        assert train(tmp_path, recipe, "--steps", steps) == 0
    assert re.findall(r"warning: (.*): move over all steps of stage adversarial", log(tmp_path)) == moved
    assert "what else reads steps differs from before" in log(tmp_path)


@pytest.mark.long
def test_one_option_for_all_stages_is_refused_and_the_message_tells_how_the_last_one_grows(tmp_path, capsys):
    assert train(tmp_path, "Each", "--steps", "2") == 0
    assert train(tmp_path, "Each", "--steps", "4") == 2
    error = capsys.readouterr().err
    assert "was made with steps 2, and this run has 4; keep it, and give the last stage alone more steps" in error
    (stages,) = re.findall(r"with (--stages [\w=,]+), start", error)
    assert train(tmp_path, "Each", "--steps", "2", *stages.split()) == 0
    assert train(tmp_path, "Each", "--steps", "2", "--stages", "generator=2,discriminator=3,joint=4") == 2
    longer = stages.replace("joint=4", "joint=6").split()
    assert train(tmp_path, "Each", "--steps", "2", *longer, "--learning-rate", "0.1") == 2
    assert "allow it with --allow-changed learning_rate\n" in capsys.readouterr().err
    assert train(tmp_path, "Each", "--steps", "2", *stages.split(), "--norm", "batch") == 2
    assert "--allow-changed" not in capsys.readouterr().err  # the saved networks have no BatchNorm


def test_a_run_resumes_with_other_versions_and_logs_them(tmp_path, capsys):
    words = ["--recipe", "tiny:Tiny", *FLAGS, "--run-dir", str(tmp_path / "run")]
    assert main([*words, "--max-steps", "2"]) == 0
    others = {"tensorflow": "2.0.0", "keras": "3.0.0"}
    rewrite(checkpoint(tmp_path / "run", 2), lambda _, manifest: manifest["versions"].update(others))
    assert main([*words, "--max-steps", "4"]) == 0
    expected = f"TensorFlow was 2.0.0 and is now {tf.__version__}, Keras was 3.0.0 and is now {keras.__version__}: "
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count(f"{expected}the run resumes where it was, and its last bits may differ from here on\n") == 1


def test_an_edited_recipe_or_module_of_its_folder_is_warned_of_by_name(tmp_path):
    """In two processes, as a module is imported once; the checkpoint after the resume is one of the edited code."""
    (tmp_path / "my_losses.py").write_text("FACTOR = 1.0\n")
    code = """
        import my_losses
        from tiny import Tiny

        class Mine(Tiny):
            def judge(self, nets, batch):
                loss, metrics = super().judge(nets, batch)
                return my_losses.FACTOR * loss, metrics
    """
    (tmp_path / "my_gan.py").write_text(textwrap.dedent(code))
    words = ["--recipe", "my_gan:Mine", *FLAGS, "--run-dir", "run", "--max-steps"]
    launching.train(tmp_path, *words, "2")
    (tmp_path / "my_losses.py").write_text("FACTOR = 100.0\n")
    launching.train(tmp_path, *words, "3")
    launching.train(tmp_path, *words, "4")
    lines = [line for line in (tmp_path / "run" / "log.txt").read_text().splitlines() if "edited" in line]
    assert len(lines) == 1
    assert "warning: my_losses.py: edited since step-00000002.safetensors was made; the run resumes with" in lines[0]


def test_statistics_stay_those_of_the_checkpoint_and_other_data_are_refused_unless_they_are_allowed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    fields = np.random.default_rng(0).normal(0, 1, (200, 8, 8, 1)).astype(np.float32)
    words = "--recipe tiny:Tiny --data a.npy --values standard --holdout 0 --global-batch-size 8 --run-dir run".split()
    was = f"standard (mean {fields.mean(dtype=np.float64):.6g}; "
    for moved, more, code, said in (
        (np.s_[:0], ["--max-steps", "2"], 0, f"values of images: {was}"),
        (np.s_[1:2], ["--max-steps", "3"], 0, f"values of images: {was}"),  # it is none of the 64 of the fingerprint
        (np.s_[:], [], 2, "was made with other images than those of a.npy"),
        (np.s_[:0], ["--allow-changed", "data"], 0, f"the value map of the images has changed: it was {was}"),
    ):
        fields[moved] += 100
        np.save("a.npy", fields)
        assert main([*words, *more]) == code
        assert said in capsys.readouterr().err


def test_files_that_were_written_to_behind_the_same_fingerprint_are_named_once(tmp_path, monkeypatch):
    """Data that were moved with their times are not."""
    monkeypatch.chdir(tmp_path)
    fields = np.random.default_rng(0).uniform(-1, 1, (200, 8, 8)).astype(np.float32)
    np.save("a.npy", fields)
    for last, named in (("2", 0), ("3", 0), ("4", 1), ("5", 1)):
        words = f"--recipe tiny:Tiny --data a.npy --values none {SIZE} --run-dir run --max-steps {last}"
        assert main(words.split()) == 0
        assert log(tmp_path / "run").count("other sizes or times than at step-00000003") == named
        if last == "2":
            shutil.copy2("a.npy", "moved.npy")
            Path("moved.npy").replace("a.npy")
        elif last == "3":
            fields[1] = 0  # it is none of the 64 of the fingerprint
            np.save("a.npy", fields)


def test_options_of_data_that_have_changed_are_logged(tmp_path, monkeypatch):
    code = "import numpy\n\ndef fields(n, more=0):\n    return numpy.linspace(-1, 1, 64 * n).reshape(n, 8, 8)\n"
    (tmp_path / "fields_of_changes.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = f"--recipe tiny:Tiny --data fields_of_changes:fields --values none {SIZE} --run-dir run".split()
    for options, last in (("n=100", "2"), ("n=100,more=1", "3")):
        assert main([*words, "--data-options", options, "--max-steps", last]) == 0
    assert log(tmp_path / "run").count("data_options was ['n=100'] and is now ['n=100', 'more=1']") == 1


def test_classes_keep_their_numbers_when_a_run_is_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(8):
            Image.fromarray(pixels + np.uint8(number)).save(tmp_path / "photos" / name / f"{number}.png")
    words = "--recipe tiny:Tiny --data photos --image-size 8 --holdout 0 --global-batch-size 8 --run-dir run".split()
    words += ["--steps", "9", "--max-steps"]
    photos = tmp_path / "photos"
    assert main([*words, "2"]) == 0
    assert "in 2 classes (0: cat, 1: dog)" in capsys.readouterr().err
    (photos / "dog").rename(photos / "ant")
    for more, said in (([], "other images"), (["--allow-changed", "data"], "class cat as number 0, which is now 1")):
        assert main([*words, "3", *more]) == 2
        assert said in capsys.readouterr().err
    (photos / "ant").rename(photos / "hound")
    assert main([*words, "3", "--allow-changed", "data"]) == 0
    assert "warning: class dog is now hound" in capsys.readouterr().err
