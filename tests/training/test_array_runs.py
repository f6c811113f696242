"""Volumes, sequences and pairs of fields through the whole trainer: every promise of pictures holds for them."""

import json

import numpy as np
import pytest

from hvdgan.prepare import main as prepare
from hvdgan.sample import main as sample
from hvdgan.train import main
from launching import train as launch
from saved import manifest, measured, state
from tiny_arrays import UNITS, maps, pairs, volumes

VOLUMES = ["--recipe", "tiny_arrays:Volumes", "--data", "v.npz:ECAL", "--conditions", "energy,theta", *UNITS]
VOLUMES += ["--axes", "DHW", "--global-batch-size", "12", "--log-every", "1"]
SEQUENCES = ["--recipe", "tiny_arrays:Volumes", "--data", "q.npz:ECAL", "--conditions", "energy,theta", *UNITS]
SEQUENCES += ["--axes", "WC", "--crop", "16", "--flip-axes", "width", "--global-batch-size", "12", "--log-every", "1"]
PAIRS = ["--recipe", "tiny_arrays:Pairs", "--data", "p.npz", "--constants", "ground", "--global-batch-size", "8"]
PAIRS += ["--values", "none", "--input-values", "none", "--log-every", "1"]
MAPS = ["--recipe", "tiny_arrays:Maps", "--arrays", "signs,coarse,spectrum", "--values", "none", "--log-every", "1"]
MAPS += ["--values-of", "signs=onehot:2;spectrum=standard", "--global-batch-size", "8", "--holdout", "0.2"]
MAPS += ["--eval-every", "2", "--crop", "4,6", "--flip-axes", "height,width", "--data"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    volumes(tmp_path / "v.npz")
    volumes(tmp_path / "q.npz", shape=(24,), channels=(2,))
    pairs(tmp_path / "p.npz")
    np.savez(tmp_path / "m.npz", **maps())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def metrics(run_dir):
    return [record for record in measured(run_dir) if "eval/distance" not in record]


@pytest.mark.parametrize(
    "flags",
    [pytest.param(SEQUENCES, marks=pytest.mark.long), pytest.param(PAIRS, marks=pytest.mark.long), [*MAPS, "m.npz"]],
    ids=["sequences", "pairs", "maps"],
)
def test_a_resumed_run_equals_the_uninterrupted_one(folder, flags):
    assert main([*flags, "--run-dir", "whole"]) == 0
    assert main([*flags, "--run-dir", "parts", "--max-steps", "2"]) == 0
    assert main([*flags, "--run-dir", "parts"]) == 0
    assert state(folder / "whole", 4) == state(folder / "parts", 4)
    assert metrics(folder / "whole") == metrics(folder / "parts")


@pytest.mark.long
def test_all_settings_together_work_on_volumes(folder):
    more = "--accumulate 2 --precision mixed_float16 --cache memory --flip-axes width,height --holdout 0.2".split()
    more += "--diff-augment color,translation,cutout --eval-every 2".split()
    assert main([*VOLUMES, "--run-dir", "run", *more]) == 0
    final = metrics(folder / "run")[-1]
    assert all(np.isfinite(value) for value in final.values() if isinstance(value, float))


def test_crops_and_flips_of_a_pair_show_the_same_region(folder):
    assert main([*PAIRS, "--crop", "8,12", "--flip-axes", "height,width", "--run-dir", "run"]) == 0
    assert all(record["fit/apart"] < 1e-5 for record in metrics(folder / "run"))


def test_two_ranks_compute_what_one_computes_and_resume_on_one(folder):
    """The first steps differ by the order of sums alone, with BatchNorm over the global batch."""
    words = [*VOLUMES, "--sync-batch-norm", "--check-ranks-every", "1", "--run-dir"]
    assert main([*words, "one"]) == 0
    launch(folder, *words, "two", "--max-steps", "2", ranks=2)
    assert main([*words, "two"]) == 0
    for mine, theirs in zip(metrics(folder / "one"), metrics(folder / "two"), strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            # On two ranks the mean of a rank's first energy is another one.
            if isinstance(value, float) and name != "judge/energy":
                assert theirs[name] == pytest.approx(value, rel=2e-3, abs=1e-4), name


def test_the_maps_stand_in_the_settings_the_checkpoint_and_the_start_lines(folder, capsys):
    ecal, _ = volumes(folder / "v.npz")
    assert main([*VOLUMES, "--run-dir", "run", "--holdout", "0"]) == 0
    said = capsys.readouterr().err
    assert "96 float32 arrays of shape (4, 6, 8, 1)" in said and "images: log1p+standard (mean" in said
    assert "energy=range:0,100; theta=none" in said
    assert json.loads((folder / "run" / "config.json").read_text())["values"] == "log1p+standard"
    saved = manifest(folder / "run", 4)["data"]["spec"]["values"]["images"]
    (_, _), (name, [[mean], [deviation]]) = saved["chains"][0]
    mapped = np.log1p(ecal.astype(np.float64))
    assert name == "standard" and mean == pytest.approx(mapped.mean()) and deviation == pytest.approx(mapped.std())


@pytest.mark.long
def test_arrays_beside_the_samples_are_cropped_mirrored_packed_and_cut_with_them(folder):
    assert main([*MAPS, "m.npz", "--run-dir", "one"]) == 0
    assert prepare(["m.npz", "packed", "--arrays", "signs,coarse,spectrum", "--shards", "3"]) == 0
    assert main([*MAPS, "packed", "--run-dir", "packed-run", "--cache", "memory", "--accumulate", "2"]) == 0
    launch(folder, *MAPS, "m.npz", "--run-dir", "two", ranks=2)
    for number, data in enumerate(("m.npz", "packed")):
        assert sample(["one", "--samples", "6", "--data", data, "--out", f"{number}.npy"]) == 0
    np.testing.assert_array_equal(np.load("0.npy"), np.load("1.npy"))
    runs = [measured(folder / name) for name in ("one", "packed-run", "two")]
    assert len(runs[0]) == 6
    for one, *others in zip(*runs, strict=True):
        assert all(value < 1e-5 for name, value in one.items() if name.endswith("apart"))
        assert "eval/apart" in one or one["fit/spectrum"] == pytest.approx(1, abs=0.5)
        for other in others:
            numbers = {name: value for name, value in one.items() if name.startswith(("fit/loss", "fit/spec", "eval/"))}
            assert numbers == pytest.approx({name: other[name] for name in numbers}, rel=1e-5, abs=1e-5)
