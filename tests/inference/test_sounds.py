"""Runs on wave files: their page plays samples, and hvdgan sample writes waves, also of arrays of any length.
Modules: files.wav"""

import base64
import io
import re
import wave

import numpy as np
import pytest

import saved
from hvdgan import report
from hvdgan.files.wav import load_wav
from hvdgan.sample import main as sample
from saved import records
from wave_files import RATE, write_waves

soundfile = pytest.importorskip("soundfile")
FLAGS = "--recipe tiny_waves:Waves --data speech --segment 2048 --global-batch-size 4 --log-every 1".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with waves, and a run on them."""
    folder = tmp_path_factory.mktemp("sounds")
    write_waves(folder / "speech")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert saved.train("run", flags=FLAGS) == 0
    return folder


@pytest.fixture
def folder(trained, monkeypatch):
    monkeypatch.chdir(trained)
    return trained


def heard(path):
    return load_wav(path, 10**6)[0]


def test_the_page_plays_the_newest_samples_and_the_real_ones(folder):
    assert all(each["fit/rate"] == RATE for each in records(folder / "run") if "fit/loss" in each)
    assert report.main(["run"]) == 0
    page = (folder / "run" / "report.html").read_text()
    uris = re.findall('<audio controls src="data:audio/wav;base64,(.*?)"', page)
    assert "media-src data:;" in page
    for name, uri in zip(("newest", "real"), uris, strict=True):
        with wave.open(io.BytesIO(base64.b64decode(uri))) as file:
            found = np.frombuffer(file.readframes(10**6), np.int16)
            assert file.getframerate() == RATE and len(found) == 8 * 2048 and found.std() > 100
        np.testing.assert_array_equal(found, soundfile.read(f"run/samples/{name}.wav", dtype="int16")[0])


def test_samples_of_the_data_are_written_as_waves(folder):
    assert sample("run --samples 3 --out three.wav --overwrite".split()) == 0
    assert sample("run --samples 3 --separate --out three --overwrite".split()) == 0
    each = [heard(folder / "three" / f"{number:06}.wav") for number in range(3)]
    assert {len(one) for one in each} == {2048}
    np.testing.assert_array_equal(np.concatenate(each), heard(folder / "three.wav"))


def test_waves_of_whole_length_are_made_of_arrays_of_any_length(folder):
    arrays = {name: np.random.default_rng(0).uniform(-1, 1, (size, 2)) for name, size in {"a": 3, "b/c": 700}.items()}
    np.savez("mels.npz", **arrays)
    np.save("one.npy", arrays["a"])
    for words in ("mels.npz --separate --out made", "mels.npz --out all.wav", "one.npy --out one.wav"):
        assert sample(["run", "--overwrite", "--data", *words.split()]) == 0
    each = [heard(folder / "made" / f"{name}.wav") for name in ("a", "b-c")]
    assert [len(one) for one in each] == [12, 2800]
    weights = saved.tensors(folder / "run", 4)
    kernel, bias = (weights[f"networks/generator/dense/{name}"] for name in ("kernel", "bias"))
    np.testing.assert_allclose(each[0].ravel(), np.tanh(arrays["a"] @ kernel + bias).ravel(), atol=1e-4)
    np.testing.assert_array_equal(np.concatenate(each), heard(folder / "all.wav"))
    np.testing.assert_array_equal(each[0], heard(folder / "one.wav"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--data wrong.npy --out x.wav", r"--data wrong.npy: its array \(5, 3\): translate\(\) fails"),
        ("--data nan.npy --out x.wav", "--data nan.npy: .*: expected finite numbers"),
        ("--data wrong.npy --out x.png", "--out x.png: waves are made of wrong.npy; expected --out NAME.wav"),
        ("--data wrong.npy --out x.wav --samples 3", "--samples: waves are made of wrong.npy"),
        ("--data missing.npy --out x.wav", "--data missing.npy: .*No such file"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(folder, capsys, words, expected):
    np.save("wrong.npy", np.zeros((5, 3)))
    np.save("nan.npy", np.full((5, 2), np.nan))
    assert sample(["run", *words.split()]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and re.search(expected, said), said
    assert not (folder / "x.wav").exists()


def test_a_run_on_pictures_writes_no_waves(tmp_path, capsys):
    saved.untrained(tmp_path / "run", "tiny:Tiny")
    assert sample([str(tmp_path / "run"), "--out", str(tmp_path / "x.wav")]) == 2
    assert "the run was not trained on wave files" in capsys.readouterr().err
