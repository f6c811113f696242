"""The command hvdgan.evaluate, on runs of a few steps: the figures, each once, on any number of ranks, beside a run.

Modules: inference.evaluating, inference.following, cli.evaluation_config, training.periodic.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from hvdgan.evaluate import main as evaluate
from hvdgan.evaluation import results
from hvdgan.train import main as train
from launching import CONTROLLERS, environment, launcher, run
from launching import train as train_ranks

TINY = "--image-size 8 --global-batch-size 8 --checkpoint-every 2 --keep 0".split()
FEW = "--num 120 --eval-features pooled:pooled --batch-size 16".split()
FIGURES = (
    "frechet",
    "kid",
    "precision",
    "recall",
    "density",
    "coverage",
    "sliced_wasserstein",
    "histogram",
    "spectrum",
)


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


def test_the_newest_checkpoint_is_measured_once(folder, capsys):
    assert evaluate([str(folder), *FEW]) == 0
    (record,) = printed(capsys)
    assert record == records(folder)[0] and record["step"] == 6
    assert all(np.isfinite(record[f"eval/{name}"]) for name in FIGURES)
    facts = {
        name: record[name] for name in ("samples", "real_samples", "features", "resize", "weights", "seed", "ranks")
    }
    assert facts == {
        "samples": 120,
        "real_samples": 120,
        "features": "pooled:pooled",
        "resize": "none",
        "weights": "averaged",
        "seed": 0,
        "ranks": 1,
    }
    assert len(record["features_sha256"]) == len(record["data_fingerprint"]) == 64 and record["ema_decay"] == 0.995
    assert evaluate([str(folder), *FEW]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == record and len(records(folder)) == 1
    assert f"figures of {record['time']}, from {folder / 'evaluation.jsonl'}" in said.err
    for other in (["--seed", "1"], ["--weights", "trained"], ["--truncation", "1"], ["--data", "digits"]):
        assert evaluate([str(folder), *FEW, *other]) == 0
    assert evaluate([str(folder), "--num", "100"]) == 0
    figures = [record["eval/sliced_wasserstein"] for record in records(folder)]
    assert len(set(figures)) == len(figures) == 4  # a truncation by 1 and the run's own data change nothing


def test_all_checkpoints_are_measured_and_one_that_is_damaged_is_named(folder, capsys):
    state = folder / "checkpoints" / "step-00000004" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-50])
    assert evaluate([str(folder), *FEW, "--all-checkpoints"]) == 1
    assert [record["step"] for record in records(folder)] == [2, 6]
    said = capsys.readouterr().err
    assert "step-00000004" in said and "checkpoints that could not be evaluated" in said and "Traceback" not in said


def test_the_numbers_of_samples_and_of_real_ones_may_differ(folder):
    for flags, real in ((["200"], 200), (["0"], None), (["60"], 60)):
        assert evaluate([str(folder), *FEW, "--real-samples", *flags]) == 0
        record = records(folder)[-1]
        assert record["samples"] == 120 and record["real_samples"] == (real or record["kept_real_samples"])
        assert all(np.isfinite(record[f"eval/{name}"]) for name in FIGURES)
    assert len({record["eval/frechet"] for record in records(folder)}) == 3
    assert records(folder)[1]["real_samples"] > 1500


def test_a_checkpoint_folder_is_measured_in_and_out_of_its_run(folder, tmp_path, capsys):
    checkpoint = folder / "checkpoints" / "step-00000002"
    assert evaluate([str(checkpoint), *FEW]) == 0
    assert [record["step"] for record in records(folder)] == [2]
    shutil.copytree(checkpoint, tmp_path / "alone")
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    assert evaluate([str(tmp_path / "alone"), *FEW]) == 0
    assert printed(capsys)[0]["eval/frechet"] == records(folder)[0]["eval/frechet"]
    assert sorted(tmp_path.rglob("*")) == before


def test_the_figures_in_training_are_those_afterwards(tmp_path, capsys):
    flags = "--steps 4 --eval-samples 120 --eval-features pooled:pooled --eval-every 2 --flip".split()
    assert train(["--recipe", "tiny:Tiny", *TINY, *flags, "--run-dir", str(tmp_path)]) == 0
    assert evaluate([str(tmp_path), "--num", "120", "--all-checkpoints"]) == 0
    first, second = records(tmp_path)[:2], records(tmp_path)[2:]
    assert [record["by"] for record in first + second] == ["training"] * 2 + ["evaluate"] * 2
    same = ("step", "run_id", "samples_seen", "mirrored", "samples", "real_samples", "features_sha256", "weights")
    assert [record["samples_seen"] for record in first] == [16, 32] and first[0]["mirrored"] == ["width"]
    for one, other in zip(first, second, strict=True):
        assert set(other) - set(one) == {"checkpoint", "identity", "images", "standing_statistics"}
        assert not set(one) - set(other)
        assert [one[name] for name in same] == [other[name] for name in same]
        for name in FIGURES:
            assert one[f"eval/{name}"] == pytest.approx(other[f"eval/{name}"], rel=1e-5, abs=1e-7)
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [each["eval/frechet"] for each in logged if "eval/frechet" in each] == [r["eval/frechet"] for r in first]


def test_a_run_that_resumes_on_other_ranks_measures_the_same(tmp_path):
    """The learning rate is too small to change a weight: what differs between ranks is not the training."""
    flags = "--learning-rate 1e-12 --eval-samples 120 --eval-features pooled:pooled --eval-every 2 --run-dir".split()
    words = ["--recipe", "tiny:Tiny", *TINY, "--steps", "4", *flags]
    assert train([*words, str(tmp_path / "whole")]) == 0
    assert train([*words, str(tmp_path / "resumed"), "--max-steps", "2"]) == 0
    train_ranks(tmp_path, *words, "resumed", ranks=2)
    for one, other in zip(records(tmp_path / "whole"), records(tmp_path / "resumed"), strict=True):
        for name in FIGURES:
            assert one[f"eval/{name}"] == pytest.approx(other[f"eval/{name}"], rel=1e-5, abs=1e-7), name


@pytest.fixture(scope="module")
def coloured(tmp_path_factory):
    """A run of two steps that has every kind of distance but that to conditions, and its record by one rank."""
    folder = tmp_path_factory.mktemp("runs") / "coloured"
    flags = ["--recipe", "tiny:Conditional", *TINY, "--channels", "3", "--steps", "2", "--run-dir", str(folder)]
    assert train(flags) == evaluate([str(folder), *FEW]) == 0
    (alone,) = records(folder)
    (folder / "evaluation.jsonl").unlink()
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return folder, alone


@pytest.mark.parametrize(("ranks", "controller"), [(2, CONTROLLERS[-1]), (3, "gloo")])
def test_several_ranks_give_the_figures_of_one(coloured, tmp_path, ranks, controller):
    made, alone = coloured
    folder = shutil.copytree(made, tmp_path / "run")
    command = [*launcher(ranks, controller), sys.executable, "-m", "hvdgan.evaluate", folder, "--samples", "120"]
    done = run([*command, *FEW[2:]], folder.parent, forked=True)
    assert done.returncode == 0, done.stderr
    (together,) = records(folder)
    assert together["ranks"] == ranks
    names = {name for name in alone if name.startswith("eval/")}
    more = ("channel_correlation", "kid_deviation", "inception_score", "intra_frechet", "intra_sliced_wasserstein")
    assert names > {f"eval/{name}" for name in (*FIGURES, *more)}
    for name in names:
        assert together[name] == (alone[name] and pytest.approx(alone[name], rel=1e-5)), name  # one of them is null


def test_held_out_samples_are_measured_as_in_training(tmp_path, capsys):
    flags = "--recipe vae_gan --nf 2 --latent-size 4 --global-batch-size 8 --max-steps 4 --learning-rate 0.05".split()
    assert train([*flags, "--run-dir", str(tmp_path)]) == 0
    assert evaluate([str(tmp_path), "--num", "20"]) == 0
    (record,) = records(tmp_path)
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (held_out,) = [each for each in logged if "eval/psnr" in each]
    assert record["eval/psnr"] == pytest.approx(held_out["eval/psnr"], rel=1e-6)
    assert evaluate([str(tmp_path), "--num", "20", "--weights", "trained"]) == 0
    assert records(tmp_path)[1]["eval/psnr"] != record["eval/psnr"]


def test_standing_statistics_are_those_of_all_ranks(tmp_path):
    """The moving averages of two steps are far from the statistics of the samples."""
    flags = ["--recipe", "tiny:Tiny", "--norm", "batch", *TINY, "--steps", "2", "--run-dir", str(tmp_path / "run")]
    assert train(flags) == 0
    few = ["--num", "120", "--batch-size", "16"]
    assert evaluate([str(tmp_path / "run"), *few]) == 0
    assert evaluate([str(tmp_path / "run"), *few, "--standing-statistics", "5"]) == 0
    words = [*launcher(2), sys.executable, "-m", "hvdgan.evaluate", "run", "--samples", "120", "--standing-statistics"]
    done = run([*words, "5", "--batch-size", "16", "--seed", "0", "--truncation", "1"], tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    moving, alone = records(tmp_path / "run")
    assert alone["standing_statistics"] == 5 and alone["eval/histogram"] != moving["eval/histogram"]
    assert json.loads(done.stdout.splitlines()[-1].partition(":")[2]) == alone  # done by one rank, and not again
    (tmp_path / "run" / "evaluation.jsonl").unlink()
    run([*words, "5", "--batch-size", "16"], tmp_path, forked=True)
    (together,) = records(tmp_path / "run")
    assert together["eval/histogram"] == pytest.approx(alone["eval/histogram"], rel=1e-5) and together["ranks"] == 2


def test_standing_statistics_of_other_batches_are_other_figures(tmp_path):
    flags = ["--recipe", "tiny:Tiny", "--norm", "batch", *TINY, "--steps", "2", "--run-dir", str(tmp_path)]
    assert train(flags) == 0
    words = [str(tmp_path), "--num", "120", "--standing-statistics", "2", "--batch-size"]
    for size in ("16", "4", "16"):
        assert evaluate([*words, size]) == 0
    large, small = records(tmp_path)
    assert (large["batch_size"], small["batch_size"]) == (16, 4)
    assert large["eval/histogram"] != small["eval/histogram"]


def test_samples_of_another_program_are_measured(folder, tmp_path, capsys):
    """The digits themselves are near, in a folder of PNGs and in an array; noise is far."""
    from hvdgan.cli.config import Config
    from hvdgan.data import open_source

    digits = open_source(Config(image_size=8)).fetch_batch(np.arange(1000, 1200))
    (tmp_path / "digits").mkdir()
    for number, pixels in enumerate(digits):
        Image.fromarray(pixels[..., 0]).save(tmp_path / "digits" / f"{number}.png")
    np.save(tmp_path / "digits.npy", digits)
    np.save(tmp_path / "noise.npy", np.random.default_rng(0).integers(0, 256, digits.shape, np.uint8))
    for name in ("digits", "digits.npy", "noise.npy"):
        assert evaluate([str(folder), *FEW, "--images", str(tmp_path / name)]) == 0
    pictures, array, noise = (record["eval/frechet"] for record in records(folder))
    assert pictures == pytest.approx(array, rel=0.5) and noise > 3 * max(pictures, array)


def test_other_samples_under_the_same_name_are_measured_anew(folder, tmp_path, capsys):
    """An array is written over by one of the same shape; the record does not name weights of the run."""
    path, random = tmp_path / "samples.npy", np.random.default_rng(0)
    words = [str(folder), "--num", "100", "--images", str(path)]
    for most in (256, 100):
        np.save(path, random.integers(0, most, (120, 8, 8), np.uint8))
        assert evaluate(words) == evaluate(words) == 0
    bright, dark = records(folder)
    assert printed(capsys) == [bright, bright, dark, dark] and bright["eval/histogram"] != dark["eval/histogram"]
    assert bright["images_fingerprint"] != dark["images_fingerprint"] and bright["images"] == str(path)
    assert all(bright[name] is None for name in ("weights", "ema_decay", "seed", "truncation"))


def test_networks_that_have_diverged_are_named(folder, capsys):
    """The weights of the newest checkpoint become NaN, with its checksums."""
    checkpoint = folder / "checkpoints" / "step-00000006"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    tensors = load_file(checkpoint / "state.safetensors")
    for name, value in tensors.items():
        if name.startswith(("ema/", "networks/")) and value.dtype == np.float32:
            tensors[name] = np.full_like(value, np.nan)
    from hvdgan.checkpoints.files import describe

    manifest["tensors"] = {name: describe(value) for name, value in tensors.items()}
    save_file(tensors, checkpoint / "state.safetensors")
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    assert evaluate([str(folder), *FEW]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "sample 0 is not finite" in said and "the networks have diverged" in said
    assert not records(folder)


MISTAKES = [
    (["nowhere"], "nowhere: no such folder"),
    (["RUN", "--num", "5"], "the distances need at least 6"),
    (["RUN", "--eval-features", "inception"], "python -m hvdgan.features fetch"),
    (["RUN", "--eval-features", "gone.keras"], "--eval-features gone.keras"),
    (["RUN", "--eval-features", "recipe"], "it has no features(self, nets, batch)"),
    (["RUN", "--truncation", "0.5"], "cannot truncate"),
    (["RUN", "--images", "gone"], "gone"),
    (["RUN", "--images", "digits", "--watch"], "leave out --watch"),
    (["RUN", "--images", "digits", "--seed", "3"], "leave out --seed"),
    (["RUN", "--data", "wide.npy"], "each picture has 16 x 8 pixels"),
    (["RUN", "--eval-resize", "nearest"], "nearest"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_is_one_line(folder, monkeypatch, capsys, words, said):
    monkeypatch.chdir(folder.parent)
    monkeypatch.delenv("HVDGAN_INCEPTION", raising=False)
    np.save("wide.npy", np.zeros((20, 8, 16), np.uint8))
    assert evaluate([str(folder) if word == "RUN" else word for word in words]) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("hvdgan: ")]
    assert said in line
    assert not records(folder)


@pytest.mark.parametrize("blocked", ["evaluation.jsonl", "cache"])
def test_a_run_folder_that_cannot_be_written_is_one_line(folder, capsys, blocked):
    if blocked == "cache":
        shutil.rmtree(folder / "cache", ignore_errors=True)
        (folder / "cache").write_text("a file in the place of a folder")
    else:
        (folder / blocked).mkdir()
    assert evaluate([str(folder), *FEW]) == 1
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("hvdgan: ")]
    assert str(folder) in line and "cannot be written" in line


def started(words, cwd, **env):
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.Popen(command, cwd=cwd, env=environment(**env), stderr=subprocess.PIPE, text=True)


@pytest.mark.long
def test_a_run_is_followed_by_two_evaluators_of_which_one_is_killed(tmp_path):
    """All checkpoints are measured, each once, and the one that is left ends after the last."""
    folder, brake = tmp_path / "run", tmp_path / "brake"
    brake.touch()
    evaluators = [started(["hvdgan.evaluate", folder, *FEW, "--watch"], tmp_path) for _ in range(2)]
    try:
        assert "waiting for the next checkpoint" in evaluators[0].stderr.readline()
        flags = ["--recipe", "paced:Paced", *TINY, "--steps", "10", "--run-dir", str(folder)]
        trainer = started(["hvdgan.train", *flags], tmp_path, HVDGAN_BRAKE=str(brake))
        for line in evaluators[0].stderr:
            if "compared with" in line:
                break
        os.kill(evaluators[0].pid, signal.SIGKILL)
        brake.unlink()
        trainer.communicate(timeout=200)
        assert trainer.returncode == 0
        evaluators[1].communicate(timeout=200)
        assert evaluators[1].returncode == 0
    finally:
        for process in [*evaluators, trainer]:
            process.kill()
            process.wait(timeout=60)
    assert sorted(record["step"] for record in records(folder)) == [2, 4, 6, 8, 10]


def test_a_checkpoint_that_another_process_evaluates_is_passed_over_until_it_is_free(folder, tmp_path):
    """The claim of this process stands for that of another evaluator."""
    other, said = shutil.copytree(folder, tmp_path / "other"), []
    assert evaluate([str(other), *FEW, "--all-checkpoints"]) == 0
    key = records(other)[0]["identity"]
    claimed = results.claim(folder, key)
    watching = started(["hvdgan.evaluate", folder, *FEW, "--watch"], tmp_path)
    try:
        for line in watching.stderr:
            said.append(line)
            if "waiting for the evaluation of" in line:
                break
        assert [record["step"] for record in records(folder)] == [4, 6]
        results.release(folder, key, claimed)
        said.append(watching.communicate(timeout=200)[1])
        assert watching.returncode == 0
    finally:
        watching.kill()
        watching.wait(timeout=60)
    assert [record["step"] for record in records(folder)] == [4, 6, 2]
    assert "".join(said).count("another process evaluates it") == 1


def test_only_a_run_folder_is_watched(folder, tmp_path, capsys):
    (tmp_path / "file").touch()
    found = {
        folder / "checkpoints" / "step-00000002": f"is a checkpoint; expected a run folder, such as {folder};",
        folder / "checkpoints": f"is a folder of checkpoints; expected a run folder, such as {folder};",
        tmp_path / "file": "is a file; expected a run folder, such as runs/dcgan;",
    }
    for path, said in found.items():
        assert evaluate([str(path), *FEW, "--watch"]) == 2
        (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("hvdgan: ")]
        assert f"--watch: {path} {said}" in line


def test_the_best_checkpoint_and_the_end_of_a_stage_follow_the_distance(tmp_path):
    flags = "--recipe ending:EndingOnDistance --eval-every 2 --eval-samples 60 --best-metric eval/histogram"
    assert train([*flags.split(), *TINY, "--run-dir", str(tmp_path)]) == 0
    steps = [record["step"] for record in records(tmp_path)]
    figures = [record["eval/histogram"] for record in records(tmp_path)]
    assert steps[-1] == 12
    assert "eval/histogram no longer improves" in (tmp_path / "log.txt").read_text()
    manifest = json.loads((tmp_path / "checkpoints" / f"step-{steps[-1]:08}" / "manifest.json").read_text())
    assert manifest["best"]["metric"] == "eval/histogram" and manifest["best"]["value"] == min(figures)
