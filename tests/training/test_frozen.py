"""Frozen networks, and what else a run reads and never changes: the same on every rank and after a resume."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from safetensors.numpy import load_file

from building import changed, data_of, stage_step, tiny_run, values_of
from frozen_parts import Layerwise, Perceptual, make_features
from hvdgan.cli.errors import UserError
from hvdgan.networks.layer_state import is_frozen
from hvdgan.recipe.nets import Nets
from launching import launcher, run, train
from saved import manifest
from tiny import Counter, Tiny

SIZE = "--image-size 8 --global-batch-size 16 --sample-every 0 --report never --run-dir run".split()
MODULE = [sys.executable, "-m"]


def state_of(folder, step):
    return load_file(folder / f"run/checkpoints/step-{step:08d}/state.safetensors")


def refused(command, cwd):
    """The line with which a command ends that a user can correct; horovodrun has an exit code of its own."""
    done = run(command, cwd, forked=True)
    assert done.returncode == (1 if command[0] == "horovodrun" else 2), done.stdout + done.stderr
    assert "<stderr>:Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if "hvdgan: " in line][-1]


def trained_in_two(folder, recipe, ranks):
    """Checkpoints of four steps, of one run and of one that was cut in the middle, which the second resumes."""
    for name, launches in (("whole", ("4",)), ("cut", ("2", "4"))):
        (folder / name).mkdir()
        make_features().save(folder / name / "features.keras")
        for steps in launches:
            words = "--recipe", f"frozen_parts:{recipe}", *SIZE, "--steps", steps
            done = train(folder / name, *words, ranks=ranks)
    whole, cut = (state_of(folder / name, 4) for name in ("whole", "cut"))
    assert whole.keys() == cut.keys() and all(whole[name].tobytes() == cut[name].tobytes() for name in whole)
    return cut, done


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_with_a_frozen_network_resumes_to_the_same_bits_and_refuses_another_file(tmp_path, ranks):
    saved, done = trained_in_two(tmp_path, "Perceptual", ranks)
    assert not [name for name in saved if "features" in name]
    assert "features 0 trainable parameters, 926 other, frozen" in " ".join(done.stderr.split())
    frozen = manifest(tmp_path / "cut/run", 4)["frozen"]
    assert list(frozen) == ["the frozen network features"] and len(frozen["the frozen network features"]) == 64
    make_features(1).save(tmp_path / "cut/features.keras")
    again = [*MODULE, "hvdgan.train", "--recipe", "frozen_parts:Perceptual", *SIZE, "--steps", "6"]
    assert refused([*launcher(ranks), *again], tmp_path / "cut").endswith(
        "--resume: run/checkpoints/step-00000004 was made with other values of the frozen network features; "
        "restore the file that it is loaded from, start anew in another --run-dir, or allow it with --allow-changed "
        "frozen"
    )
    if ranks == 1:
        done = run([*again, "--allow-changed", "frozen"], tmp_path / "cut", forked=True)
        assert done.returncode == 0 and "warning: run/checkpoints/step-00000004 was made with other" in done.stderr


def test_ranks_with_other_files_are_refused(tmp_path):
    make_features().save(tmp_path / "features.keras")
    make_features(1).save(tmp_path / "features-1.keras")
    command = [*MODULE, "hvdgan.train", "--recipe", "frozen_parts:OnRank1", *SIZE, "--dry-run"]
    line = refused([*launcher(2), *command], tmp_path)
    assert "the frozen network features has other values on rank 1 than on rank 0; load it from the same file" in line


def test_commands_use_it_as_it_was_in_training_or_not_at_all(tmp_path):
    make_features().save(tmp_path / "features.keras")
    train(tmp_path, "--recipe", "frozen_parts:Judged", *SIZE, "--steps", "2")
    export = [*MODULE, "hvdgan.export", "run", "--network", "features", "--units", "network", "--out", "new.keras"]
    evaluate = [*MODULE, "hvdgan.evaluate", "run", "--samples"]
    inspect = run([*MODULE, "hvdgan.inspect", "run"], tmp_path, forked=True).stdout
    assert (
        f"frozen network features: SHA-256 {next(iter(manifest(tmp_path / 'run', 2)['frozen'].values()))[:12]}"
        in inspect
    )
    for command in (export, [*evaluate, "16"]):
        done = run(command, tmp_path, forked=True)
        assert done.returncode == 0, done.stderr
    exported = keras.models.load_model(tmp_path / "new.keras")
    assert all(np.array_equal(a, b) for a, b in zip(exported.get_weights(), make_features().get_weights(), strict=True))
    make_features(1).save(tmp_path / "features.keras")
    sample = [*MODULE, "hvdgan.sample", "run", "--num", "4", "--out", "four.png"]
    for command in (sample, [*export, "--overwrite"], [*evaluate, "32"]):
        assert "step-00000002: the frozen network features has other values than in training" in refused(
            command, tmp_path
        )


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder with the file of the frozen network."""
    make_features().save(tmp_path / "features.keras")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("recipe", [Perceptual, Layerwise])
def test_it_runs_in_inference_mode_and_an_update_leaves_it_as_it_is(here, recipe):
    built = tiny_run(recipe)
    features, before = built.state.frozen["features"], values_of(built)
    frozen = [value.copy() for value in features.get_weights()]
    images = data_of(built)["images"]
    images = tf.cast(images, tf.float32) / 127.5 - 1
    nets = Nets(built.state.networks, frozen=built.state.frozen, training=True)
    np.testing.assert_array_equal(nets.features(images), features(images, training=False))
    assert not np.array_equal(nets.features(images), features(images, training=True))
    metrics, finite = stage_step(built)(0, 0, data_of(built))
    assert all(finite) and np.isfinite(metrics["fool/loss"])
    assert {name.split("/")[1] for name in changed(before, values_of(built))} >= {"generator", "discriminator"}
    assert all(np.array_equal(one, other) for one, other in zip(frozen, features.get_weights(), strict=True))


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_in_half_precision(here, precision, accumulate):
    built = tiny_run(Perceptual, precision=precision, accumulate=accumulate)
    metrics, finite = stage_step(built)(0, 0, data_of(built))
    assert all(finite) and all(np.isfinite(float(value)) for value in metrics.values())


class Unowned(Tiny):
    """A network that no update owns, and that is not frozen."""

    def networks(self):
        return {**super().networks(), "features": make_features()}

    def optimizers(self):
        return {**super().optimizers(), "features": keras.optimizers.SGD()}


def test_a_network_that_no_update_owns_must_be_frozen():
    with pytest.raises(
        UserError, match="no update owns features; name it in some update's owns, set its trainable = F"
    ):
        tiny_run(Unowned)


def test_what_is_frozen():
    weights, state = make_features(), keras.Sequential([keras.Input((2,)), Counter()])
    assert not is_frozen(weights) and not is_frozen(state)
    assert is_frozen(keras.Sequential([keras.Input((2,)), layers.Rescaling(0.5)]))
    for network in (weights, state):
        network.trainable = False
        assert is_frozen(network)


def test_what_is_made_at_import_or_in_init_is_the_same_on_all_ranks_and_after_a_resume(tmp_path):
    trained_in_two(tmp_path, "Outside", 2)
    frozen = manifest(tmp_path / "cut/run", 4)["frozen"]
    assert [name.split(" ")[1] for name in frozen].count("variable") == 3  # scale, kernel, bias
    assert [name.split(" ")[1] for name in frozen].count("constant") == 1
    assert frozen == manifest(tmp_path / "whole/run", 4)["frozen"]


def test_else_it_is_refused_by_name(tmp_path):
    command = [*MODULE, "hvdgan.train", "--recipe", "frozen_parts:Unseeded", *SIZE]
    line = refused([*launcher(2), *command, "--dry-run"], tmp_path)
    assert "the variable scale outside of the networks has other values on rank 1 than on rank 0; load it" in line
    train(tmp_path, *command[3:], "--steps", "2")
    line = refused([*command, "--steps", "4"], tmp_path)
    assert "was made with other values of the variable scale outside of the networks; restore the file" in line
