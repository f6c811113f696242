"""Settings, data and distances that may differ when a run is resumed, above all the steps of its last stage."""

import dataclasses
import json
import re
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import launching
from building import tiny_run
from hvdgan.checkpoints import checkpoint
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.data import statistics
from hvdgan.recipe.stages import LearningRate, Plateau, Stage, Update
from hvdgan.train import main
from hvdgan.training import restore
from hvdgan.training.command import Resume
from hvdgan.training.saving import snapshot
from pooled import pooled
from tiny import Staged, Tiny, TinyOptions

FLAGS = "--image-size 8 --global-batch-size 8".split()
LAST = {"steps": 4}
FIRST = {"steps": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnOptions(TinyOptions):
    """Options of the recipes of one's own."""

    warmup: int = 2
    """steps of the first stage"""
    epochs: float = 1.0
    """length of the last stage, in tens of steps"""


class Own(Tiny):
    """A recipe that says nothing of what may change."""

    Options = OwnOptions
    rate: float | LearningRate | None = None
    until: Plateau | None = None

    def updates(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge, learning_rate=self.rate)
        return [judge, Update("fool", owns=["generator"], loss=self.fool)]

    def stages(self):
        updates = self.updates()
        last = Stage("both", self.options.steps, updates, until=self.until)
        return [Stage("warmup", self.options.warmup, updates[:1]), last]


class Decaying(Own):
    """The rate decays over the last stage."""

    rate = LearningRate(1e-3, "linear")


class Fixed(Own):
    """The steps stand in the file."""

    def stages(self):
        first, last = super().stages()
        return [dataclasses.replace(first, **FIRST), dataclasses.replace(last, **LAST)]


class Each(Staged):
    """One option for the steps of every stage."""


def train(run_dir, recipe, *arguments):
    return main(["--recipe", f"test_changes:{recipe}", *FLAGS, "--run-dir", str(run_dir), *arguments])


def log(run_dir):
    return (run_dir / "log.txt").read_text()


def state(run_dir, step):
    return (run_dir / f"checkpoints/step-{step:08d}/state.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("recipe", "flag", "before", "after", "last"),
    [("Own", "--steps", "4", "6", 8), ("Each", "--stages", "joint=2,generator=2", "joint=2,generator=4", 6)],
)
def test_the_last_stage_may_grow_however_its_steps_are_given(tmp_path, capsys, recipe, flag, before, after, last):
    assert train(tmp_path / "grown", recipe, flag, before) == 0
    assert train(tmp_path / "grown", recipe, flag, after) == 0, capsys.readouterr().err
    assert train(tmp_path / "whole", recipe, flag, after) == 0
    assert state(tmp_path / "grown", last) == state(tmp_path / "whole", last)
    assert "is now" in log(tmp_path / "grown") and "warning" not in log(tmp_path / "grown")


def test_steps_that_stand_in_the_file_may_grow_in_the_last_stage_alone(tmp_path, monkeypatch, capsys):
    assert train(tmp_path, "Fixed") == 0
    monkeypatch.setitem(LAST, "steps", 6)
    assert train(tmp_path, "Fixed") == 0
    monkeypatch.setitem(FIRST, "steps", 3)
    assert train(tmp_path, "Fixed") == 2
    assert "with the stages warmup=2,both=6, and this run has warmup=3,both=6" in capsys.readouterr().err
    assert train(tmp_path, "Fixed", "--allow-changed", "stages") == 0


def test_one_option_for_all_stages_is_refused_and_the_message_tells_how_the_last_one_grows(tmp_path, capsys):
    assert train(tmp_path, "Each", "--steps", "2") == 0
    assert train(tmp_path, "Each", "--steps", "4") == 2
    error = capsys.readouterr().err
    assert "was made with steps 2, and this run has 4; keep it, and give the last stage alone more steps" in error
    (stages,) = re.findall(r"with (--stages [\w=,]+), start", error)
    assert train(tmp_path, "Each", "--steps", "2", *stages.split()) == 0
    assert train(tmp_path, "Each", "--steps", "2", "--stages", "generator=2,discriminator=3,joint=4") == 2


def test_a_rate_that_decays_over_the_steps_is_warned_of_if_its_stage_has_begun_and_the_steps_count(tmp_path):
    assert train(tmp_path / "begun", "Decaying", "--steps", "4") == 0
    assert train(tmp_path / "begun", "Decaying", "--steps", "6") == 0
    assert "warning: the learning rate of judge decays over the steps of stage both" in log(tmp_path / "begun")
    stages = ("--stages", "warmup=1,both=2")
    assert train(tmp_path / "b", "Decaying", *stages, "--max-steps", "2") == 0
    assert train(tmp_path / "b", "Decaying", *stages, "--steps", "6") == 0
    assert "without effect on the steps" in log(tmp_path / "b") and "warning" not in log(tmp_path / "b")


def test_a_run_resumes_with_other_versions_and_logs_them(tmp_path, capsys):
    words = ["--recipe", "tiny:Tiny", *FLAGS, "--run-dir", str(tmp_path / "run")]
    assert main([*words, "--max-steps", "2"]) == 0
    path = tmp_path / "run" / "checkpoints" / "step-00000002" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["versions"] |= {"tensorflow": "2.0.0", "keras": "3.0.0"}
    path.write_text(json.dumps(manifest))
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
    assert "warning: my_losses.py: edited since step-00000002 was made; the run resumes with the code as it" in lines[0]


def built(folder):
    arrays = ArrayConfig(values="standard")
    return tiny_run(data=str(folder / "a.npy"), arrays=arrays, run_dir=folder / "run", holdout=0.0)


def lines_of_resume(folder, *allowed):
    """The lines that a resume logs."""
    found = restore.from_disk(built(folder), Resume(allow_changed=allowed))
    found.lock.close()
    return found.remarks


@pytest.fixture
def fields(tmp_path):
    """200 fields, and a checkpoint of a run on them."""
    fields = np.random.default_rng(0).normal(0, 1, (200, 8, 8, 1)).astype(np.float32)
    np.save(tmp_path / "a.npy", fields)
    run = built(tmp_path)
    checkpoint.write(run.checkpoints, snapshot(run, 3, 48, "id", (run.state.statistics.read()[None], {}), {}))
    return fields


def test_a_resumed_run_takes_the_statistics_of_its_checkpoint(fields, tmp_path, monkeypatch):
    """The data may be large: a start reads 64 of them for the fingerprint, and not all for their mean."""
    flags = f"--recipe tiny:Tiny --data {tmp_path}/a.npy --values standard --global-batch-size 4 --report never".split()
    assert main([*flags, "--steps", "1", "--run-dir", str(tmp_path / "other")]) == 0
    monkeypatch.setattr(statistics, "moments_of", lambda numbers: pytest.fail("they are computed again"))
    assert main([*flags, "--steps", "2", "--run-dir", str(tmp_path / "other")]) == 0


def test_data_with_other_statistics_are_refused_unless_they_are_allowed(fields, tmp_path):
    """Also where the one sample that differs is none of the 64 of the fingerprint."""
    (was,) = built(tmp_path).recipe.data.values.images.chains[0][0].means
    fields[1] += 100
    np.save(tmp_path / "a.npy", fields)
    with pytest.raises(UserError, match="another value map of the images: .*--allow-changed data"):
        lines_of_resume(tmp_path)
    (line,) = (line for line in lines_of_resume(tmp_path, "data") if "value map of the images" in line)
    assert f"mean {was:.6g}" in line and f"mean {fields.mean(dtype=np.float64):.6g}" in line


COMPARING = ["--recipe", "tiny:Tiny", *FLAGS, *"--steps 8 --eval-every 2 --checkpoint-every 2 --keep 0".split()]
COMPARING += ["--eval-features", pooled(), "--best-metric", "eval/frechet"]
LINE = "samples are compared in another way than before"


@pytest.fixture
def compared(tmp_path):
    """A function that trains to a step and returns the best one; no distance is less than the one saved at step 2."""

    def train(last, samples):
        flags = [*COMPARING, "--max-steps", str(last), "--eval-samples", str(samples), "--run-dir", str(tmp_path)]
        assert main(flags) == 0
        return json.loads((tmp_path / "checkpoints" / f"step-{last:08}" / "manifest.json").read_text())["best"]["step"]

    assert train(2, 60) == 2
    path = tmp_path / "checkpoints" / "step-00000002" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["progress"]["best"]["value"] = -1.0
    path.write_text(json.dumps(manifest))
    return train


@pytest.mark.parametrize(("samples", "best"), [(60, 2), (70, 4)])
def test_the_best_checkpoint_is_sought_anew_if_the_distance_is_another_one(compared, tmp_path, samples, best):
    assert compared(4, samples) == best
    said = (tmp_path / "log.txt").read_text()
    assert said.count(LINE) == (samples != 60)
    assert ("(real_samples, samples)" in said and "the best checkpoint will be sought anew" in said) == (samples != 60)
    compared(6, samples)
    assert (tmp_path / "log.txt").read_text().count(LINE) == (samples != 60)
