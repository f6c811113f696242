"""The command hvdgan.evaluate on samples and data that are broken, or that were written over under the same names.

Modules: inference.evaluating, evaluation.comparison.
"""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from hvdgan.data.kinds import spread
from hvdgan.evaluate import main as evaluate
from hvdgan.train import main as train
from tiny_arrays import UNITS, volumes

COUNT = 130
TINY = "--recipe tiny:Tiny --image-size 8 --channels 1 --global-batch-size 8".split()


def write(folder, suffix, most=256, numbers=range(COUNT)):
    """Write grey pictures of one size in bytes, or write some of them over."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        pixels = np.random.default_rng(number).integers(0, most, (8, 8), np.uint8)
        path = folder / f"{number:03}.{suffix}"
        np.save(path, pixels) if suffix == "npy" else Image.fromarray(pixels).save(path)


def write_over(folder, suffix):
    """Darken all pictures that the fingerprint of arrays does not look at."""
    write(folder, suffix, most=30, numbers=sorted(set(range(COUNT)) - set(spread(COUNT).tolist())))


@pytest.fixture
def data(tmp_path):
    write(tmp_path / "data", "bmp")
    return tmp_path / "data"


@pytest.fixture
def run_dir(tmp_path, data):
    assert train([*TINY, "--steps", "2", "--data", str(data), "--run-dir", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def records(run_dir):
    return [json.loads(line) for line in (run_dir / "evaluation.jsonl").read_text().splitlines()]


def refused(capsys):
    """The line with which the command has refused."""
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("hvdgan: ")]
    return line


def test_data_that_were_written_over_are_measured_anew(run_dir, data, capsys):
    words = [str(run_dir), "--num", str(COUNT)]
    for _ in range(2):
        assert evaluate(words) == evaluate(words) == 0
        write_over(data, "bmp")
    before, after = records(run_dir)
    assert before["data_fingerprint"] == after["data_fingerprint"] and before["identity"] != after["identity"]
    assert before["eval/histogram"] != after["eval/histogram"]
    assert "real samples read" not in capsys.readouterr().err


def test_a_copy_of_the_data_is_the_same_to_a_run_that_resumes(tmp_path, data):
    """The copies are younger; the distances have the same scale, so that the best checkpoint stays."""
    flags = "--eval-samples 40 --eval-every 2 --best-metric eval/histogram --run-dir".split()
    words = [*TINY, "--steps", "4", *flags, str(tmp_path / "run")]
    assert train([*words, "--max-steps", "2", "--data", str(data)]) == 0
    shutil.copytree(data, tmp_path / "copy", copy_function=shutil.copyfile)
    assert train([*words, "--data", str(tmp_path / "copy")]) == 0
    assert "compared in another way" not in (tmp_path / "run" / "log.txt").read_text()
    assert [record["step"] for record in records(tmp_path / "run")] == [2, 4]


@pytest.mark.parametrize("suffix", ["bmp", "npy"])
def test_samples_that_were_written_over_are_measured_anew(run_dir, tmp_path, suffix):
    samples = tmp_path / "samples"
    write(samples, suffix)
    for _ in range(2):
        words = [str(run_dir), "--num", str(COUNT), "--images", str(samples)]
        assert evaluate(words) == evaluate(words) == 0
        write_over(samples, suffix)
    before, after = records(run_dir)
    assert before["images_fingerprint"] == after["images_fingerprint"]
    assert before["images_stamp"] != after["images_stamp"] and before["eval/histogram"] != after["eval/histogram"]


def test_broken_samples_are_counted_and_named_and_too_many_are_refused(run_dir, tmp_path, capsys):
    """The run allows 1 of 100."""
    samples = tmp_path / "samples"
    write(samples, "bmp")

    def damage(*numbers):
        for number in numbers:
            path = samples / f"{number:03}.bmp"
            path.write_bytes(path.read_bytes()[:-20])

    words = [str(run_dir), "--num", str(COUNT), "--images", str(samples)]
    damage(7)
    assert evaluate(words) == 0
    (record,) = records(run_dir)
    assert record["samples"] == COUNT - 1
    said = capsys.readouterr().err
    assert f"--images {samples}: 1 of {COUNT} samples cannot be read; the first: 007.bmp: " in said
    damage(3, 4)
    assert evaluate(words) == 1
    line = refused(capsys)
    assert f"--images {samples}: 3 of {COUNT} samples cannot be read; the first: 003.bmp: " in line
    assert "the run allows a fraction of 0.01 (--max-bad-fraction)" in line
    damage(*range(8, COUNT))
    assert evaluate(words) == 1
    assert "the distances need at least 6" in refused(capsys)
    assert records(run_dir) == [record]


def test_samples_with_nan_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    samples, _ = volumes(tmp_path / "v.npz", count=100)
    flags = ["--recipe", "tiny_arrays:Volumes", "--data", "v.npz:ECAL", "--conditions", "energy,theta", *UNITS]
    assert train([*flags, "--axes", "DHW", "--global-batch-size", "12", "--run-dir", "run"]) == 0
    for broken, code in ((1, 0), (2, 1), (96, 1)):
        samples[:broken, 1, 2, 3] = np.nan
        np.save("samples.npy", samples)
        assert evaluate(["run", "--num", "100", "--images", "samples.npy"]) == code
        said = capsys.readouterr().err
        assert f"--images samples.npy: {broken} of 100 samples cannot be read; the first: samples.npy" in said
        assert "[0]: 1 of 192 numbers are NaN" in said and "Traceback" not in said
    assert "the distances need at least 6" in said
    assert [record["samples"] for record in records(tmp_path / "run")] == [99]


def test_the_record_says_in_which_precision_the_networks_computed(tmp_path, data):
    """In training it is that of the training, and afterwards float32."""
    mixed = "--steps 2 --precision mixed_bfloat16 --eval-samples 40".split()
    assert train([*TINY, *mixed, "--data", str(data), "--run-dir", str(tmp_path / "run")]) == 0
    words = [str(tmp_path / "run"), "--num", "40"]
    assert evaluate(words) == evaluate([*words, "--images", str(data)]) == 0
    assert [record["precision"] for record in records(tmp_path / "run")] == ["mixed_bfloat16", "float32", None]


def test_too_few_samples_for_the_features_are_named_at_the_start(tmp_path, data, capsys):
    few = "--steps 2 --eval-samples 16 --eval-features pooled:pooled".split()
    assert train([*TINY, *few, "--data", str(data), "--run-dir", str(tmp_path / "run")]) == 0
    before, said, after = (tmp_path / "run" / "log.txt").read_text().partition("warning: 16 samples for 16 features")
    assert said and said not in after and "statistics of" not in before
    capsys.readouterr()
    assert evaluate([str(tmp_path / "run"), "--num", "16"]) == 0
    assert capsys.readouterr().err.count(said) == 1
