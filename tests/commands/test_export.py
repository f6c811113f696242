"""The command hvdgan.export: a process that cannot import hvdgan loads its files. Modules: inference.serving"""

import dataclasses
import json
import shutil
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan import export, sample
from hvdgan.inference.inputs import data_inputs
from hvdgan.inference.trained import load_trained
from hvdgan.recipe import DataSpec
from hvdgan.recipe.loading import load_recipe
from hvdgan.values import sample_values
from hvdgan.values.value_map import parse
from launching import ROOT
from launching import run as run_process
from messages import refused
from saved import checkpoint, shared_by_a_group, tensors, untrained
from small import small, spec

pytestmark = pytest.mark.slow
# What anyone might do with the files; -I keeps even the working folder out.
_ELSEWHERE = """
import pathlib, sys
sys.modules["hvdgan"] = None
import keras, numpy as np, tensorflow as tf
for given in sorted(pathlib.Path(sys.argv[1]).glob("*.inputs.npz")):
    stem = str(given).removesuffix(".inputs.npz")
    inputs = list(np.load(given).values())
    inputs = inputs if len(inputs) > 1 else inputs[0]
    if pathlib.Path(stem).is_dir():
        loaded = tf.saved_model.load(stem)
        outputs = loaded.serve(inputs)
    else:
        outputs = keras.models.load_model(stem + ".keras")(inputs)
    np.savez(stem + ".outputs.npz", *keras.tree.flatten(outputs))
"""
# The samples of a SavedModel of sample(), from draws of their numbers and what else is given; also two alone.
_SERVED = """
import pathlib, sys
sys.modules["hvdgan"] = None
import numpy as np, tensorflow as tf
for given in sorted(pathlib.Path(sys.argv[1]).glob("*.given.npz")):
    stem = str(given).removesuffix(".given.npz")
    loaded, given = tf.saved_model.load(stem), {name: tf.constant(each) for name, each in np.load(given).items()}
    numbers = tf.range(6, dtype=tf.int64)
    given |= loaded.draw(numbers=numbers) | ({"numbers": numbers} if "noisy" in stem else {})
    some = loaded.signatures["serving_default"](**{name: each[2:4] for name, each in given.items()})
    np.savez(f"{stem}.served.npz", all=loaded.serve(**given)["samples"], some=some["samples"])
"""
_NETWORKS = {"dcgan": ["generator.keras"], "pix2pix": ["generator.keras"], "sngan": ["generator"]}
"""exports of each run; what Keras alone cannot load is a SavedModel"""


def snippet_with(text):
    """The code of docs/using.md that contains a text."""
    snippets = [part.split("```")[0] for part in (ROOT / "docs" / "using.md").read_text().split("```python\n")[1:]]
    (snippet,) = [part for part in snippets if text in part]
    return snippet


def example(network, random):
    """Random inputs of a network, six of each."""
    return [
        random.integers(0, 10, 6).astype(np.int32)
        if tensor.dtype == "int32"
        else random.normal(size=(6, *tensor.shape[1:])).astype(np.float32)
        for tensor in network.inputs
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of some recipes."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("calo3d", "dcgan", "pix2pix", "sngan", "stylegan2"):
        untrained(folder / name, name, small(name)[1], spec(name, num_classes=10 if name == "sngan" else 0))
    return folder


@pytest.mark.long
def test_others_compute_what_the_run_does_and_it_says_what_it_wrote(runs, tmp_path, capsys):
    random, here = np.random.default_rng(1), {}
    for run, names in _NETWORKS.items():
        trained = load_trained(runs / run)
        for file in names:
            name, ending, _ = file.partition(".keras")
            network, stem = trained.state.networks[name], f"{run}-{name}-{len(here)}"
            inputs = example(network, random)
            values = getattr(trained.nets("averaged"), name)(inputs if len(inputs) > 1 else inputs[0])
            out = tmp_path / f"{stem}{ending}"
            assert export.main([str(runs / run), "--only", name, "--out", str(out)]) == 0
            np.savez(tmp_path / f"{stem}.inputs.npz", *inputs)
            here[stem] = [np.asarray(value) for value in keras.tree.flatten(values)]
    said = capsys.readouterr().out.splitlines()
    kind = "averaged: latents (B, 128), classes (B,) int32 -> images (B, 32, 32, 1)"
    assert any(line.endswith(f"generator of {checkpoint(runs / 'sngan', 2)}, step 2, {kind}") for line in said)
    done = run_process([sys.executable, "-I", "-c", _ELSEWHERE, str(tmp_path)], tmp_path)
    assert done.returncode == 0, done.stderr
    for stem, mine in here.items():
        for one, other in zip(mine, np.load(tmp_path / f"{stem}.outputs.npz").values(), strict=True):
            assert one.std() > 0
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5, err_msg=stem)


def test_what_sample_computes_is_served_without_hvdgan(tmp_path, monkeypatch, capsys):
    """The numbers of hvdgan.sample, from its latents: pictures as bytes, arrays in the units of the data."""
    for run, name in (("dcgan",) * 2, ("pairs", "downscale"), ("calo3d",) * 2):
        data = spec(name)
        if run == "pairs":
            data = dataclasses.replace(data, values=sample_values.of_pixels(1, paired=True))
        untrained(tmp_path / "runs" / run, name, small(name)[1], data, 0.2)
    values = sample_values.SampleValues(parse("asinh:0.5+range:-2,3", "--values", ("0",)))
    noisy = DataSpec((8, 8, 1), 100, 10, values=values)
    untrained(tmp_path / "runs" / "noisy", "tiny:Conditional", spec=noisy, scale=0.2)
    runs = tmp_path / "runs"
    energies = np.stack([np.linspace(20, 90, 6), np.linspace(1, 2, 6)], axis=1).astype(np.float32)
    np.save(tmp_path / "rows.npy", energies)
    conditions = "--conditions", str(tmp_path / "rows.npy")
    trained = load_trained(runs / "pairs")
    inputs = np.stack([one["inputs"] for one, _ in zip(data_inputs(trained, None, 0), range(6), strict=False)])
    wanted = {
        "dcgan": ((), {}, "latents (B, 100) -> samples (B, 32, 32, 1) uint8"),
        "pairs": ((), {"inputs": inputs}, "inputs (B, 32, 32, 1) uint8 -> samples (B, 32, 32, 1) uint8"),
        "calo3d": (conditions, {"conditions": energies}, "conditions (B, 2) -> samples (B, 8, 8, 8, 1)"),
        "noisy": ((), {}, "classes (B,) int32, numbers (B,) int64 -> samples (B, 8, 8, 1)"),
    }
    for run, (words, given, said) in wanted.items():
        assert export.main([str(runs / run), "--out", str(tmp_path / run)]) == 0
        assert said in capsys.readouterr().out
        assert sample.main([str(runs / run), "--samples", "6", "--out", str(tmp_path / f"{run}.npy"), *words]) == 0
        np.savez(tmp_path / f"{run}.given.npz", **given)
    done = run_process([sys.executable, "-I", "-c", _SERVED, str(tmp_path)], tmp_path)
    assert done.returncode == 0, done.stderr
    for run in wanted:
        mine, served = np.load(tmp_path / f"{run}.npy"), np.load(tmp_path / f"{run}.served.npz")
        assert served["all"].dtype == mine.dtype and mine.std() > (9 if mine.dtype == np.uint8 else 0.1)
        for there, here in ((served["all"], mine), (served["some"], mine[2:4])):
            np.testing.assert_allclose(there.astype(float), here, rtol=1e-4, atol=1 if mine.dtype == np.uint8 else 1e-4)
    monkeypatch.chdir(tmp_path)
    shutil.copytree("dcgan", "samples")
    found = {}
    exec(snippet_with("model.draw"), found)
    np.testing.assert_allclose(found["samples"][:6].numpy().astype(float), np.load("dcgan.npy"), atol=1)


@pytest.mark.long
def test_convolutional_networks_take_any_size_and_others_are_refused_by_the_layer(tmp_path, capsys):
    options = load_recipe("downscale").Options(nf=2, blocks=1, noise_channels=2, periodic="both")
    maps = parse("range:0,8", "--values", ("t",)), parse("range:0,4", "--input-values", ("a", "b"))
    spec = DataSpec((16, 16, 1), 9, input_shape=(4, 4, 2), values=sample_values.SampleValues(*maps))
    untrained(tmp_path / "run", "downscale", options, spec)
    words = [str(tmp_path / "run"), "--only", "generator", "--out"]
    made = []
    for more in ([], ["--any-size"]):
        out = tmp_path / f"generator{len(more)}.keras"
        assert export.main([*words, str(out), *more]) == 0
        made.append(keras.models.load_model(out))
    assert "noise (B, any, any, 2) -> " in capsys.readouterr().out
    fixed, free = made
    numbers = np.random.default_rng(0).uniform(0, 4, (1, 4, 4, 4)).astype(np.float32)
    given = [numbers[..., :2], numbers[..., 2:]]
    once = np.asarray(fixed(given))
    np.testing.assert_allclose(free(given), once, rtol=1e-5)
    # A periodic field of two periods.
    twice = np.asarray(free([np.tile(each, (1, 2, 3, 1)) for each in given]))
    np.testing.assert_allclose(twice, np.tile(once, (1, 2, 3, 1)), rtol=1e-4, atol=1e-5)
    untrained(tmp_path / "dcgan", "dcgan", load_recipe("dcgan").Options(nf=2), DataSpec((32, 32, 1), 9))
    words = [str(tmp_path / "dcgan"), "--any-size", "--out", str(tmp_path / "no.keras")]
    assert export.main([*words, "--only", "discriminator"]) == 2
    assert "--any-size: network discriminator, layer " in capsys.readouterr().err
    assert export.main([*words[:-1], str(tmp_path / "no"), "--only", "generator"]) == 2


def test_npz_holds_the_weights_under_their_names(runs, tmp_path):
    saved = tensors(runs / "dcgan", 2)
    out = tmp_path / "new" / "averaged.npz"
    assert export.main([str(runs / "dcgan"), "--only", "generator", "--out", str(out)]) == 0
    begin, written = "ema/generator/", np.load(out)
    wanted = {name.removeprefix(begin): value for name, value in saved.items() if name.startswith(begin)}
    assert sorted(written) == sorted(wanted) and "block_4/kernel" in wanted
    assert all(np.array_equal(written[name], value) for name, value in wanted.items())


@pytest.mark.long
def test_exports_list_the_value_maps_of_arrays(runs, tmp_path, monkeypatch, capsys):
    """Read as docs/using.md says, from copies."""
    monkeypatch.chdir(tmp_path)
    for out in ("g.keras", "g"):
        with shared_by_a_group(tmp_path):
            assert export.main([str(runs / "calo3d"), "--only", "generator", "--out", out]) == 0
        assert capsys.readouterr().out.endswith("the maps of the numbers are listed in its value_maps.json\n")
    shutil.copy("g.keras", "generator.keras")
    shutil.copytree("g", "generator")
    found = {}
    exec(snippet_with("value_maps"), found)
    assert found["of_keras"] == found["of_saved_model"]
    maps = found["of_keras"]["value_maps"]
    assert len(found["of_keras"]["applied"]) == 2 and maps["images"]["map"] == "power:0.85"
    assert sample_values.of_json(maps) == spec("calo3d").values
    assert keras.models.load_model("generator.keras").name == "generator"
    assert list(tf.saved_model.load("generator").signatures)
    assert export.main([str(runs / "calo3d"), "--only", "generator", "--out", "w.npz"]) == 0
    assert json.loads(str(np.load("w.npz")["value_maps"])) == maps


@pytest.fixture
def folder(tmp_path, monkeypatch, runs):
    """The working folder, with the runs and things in the way."""
    monkeypatch.chdir(tmp_path)
    for name in ("dcgan", "sngan", "stylegan2"):
        (tmp_path / name).symlink_to(runs / name)
    (tmp_path / "there.keras").write_bytes(b"there")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "diary.txt").write_text("dear")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "saved_model.pb").write_bytes(b"old")
    return tmp_path


@pytest.mark.parametrize("arguments", refused("export"))
def test_a_mistake_is_one_line_and_nothing_is_written(folder, messages, arguments):
    messages.refuses(
        "export", export.main, arguments, *([] if "--out" in arguments else ["--out", "new.keras"]), folder=folder
    )
