"""Frozen networks, and what else a run reads and never changes: the same on every rank and after a resume.
Modules: training.digests"""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from building import changed, data_of, stage_step, tiny_run, values_of
from frozen_parts import Layerwise, Perceptual, make_features
from hvdgan.recipe.nets import Nets
from launching import launcher, run, train
from saved import manifest, tensors

SIZE = "--image-size 8 --global-batch-size 16 --sample-every 0 --report never --run-dir run".split()
MODULE = [sys.executable, "-m"]


def refused(command, cwd):
    """The line with which a command ends that a user can correct; horovodrun has an exit code of its own."""
    done = run(command, cwd, forked=True)
    assert done.returncode == (1 if command[0] == "horovodrun" else 2), done.stdout + done.stderr
    assert "<stderr>:Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if "hvdgan: " in line][-1]


def test_a_run_with_a_frozen_network_resumes_to_the_same_bits_and_refuses_another_file(tmp_path):
    for name, launches in (("whole", ("4",)), ("cut", ("2", "4"))):
        (tmp_path / name).mkdir()
        make_features().save(tmp_path / name / "features.keras")
        for steps in launches:
            words = "--recipe", "frozen_parts:Perceptual", *SIZE, "--steps", steps
            done = train(tmp_path / name, *words)
    whole, saved = (tensors(tmp_path / name / "run", 4) for name in ("whole", "cut"))
    assert whole.keys() == saved.keys() and all(whole[name].tobytes() == saved[name].tobytes() for name in whole)
    assert not [name for name in saved if "features" in name]
    assert "features 0 trainable parameters, 926 other, frozen" in " ".join(done.stderr.split())
    frozen = manifest(tmp_path / "cut/run", 4)["frozen"]
    assert list(frozen) == ["the frozen network features"] and len(frozen["the frozen network features"]) == 64
    make_features(1).save(tmp_path / "cut/features.keras")
    again = [*MODULE, "hvdgan.train", "--recipe", "frozen_parts:Perceptual", *SIZE, "--steps", "6"]
    assert refused(again, tmp_path / "cut").endswith(
        "--resume: run/checkpoints/step-00000004.safetensors was made with other values of the frozen network "
        "features; give the same --init-from, restore the file that it is loaded from, start anew in another "
        "--run-dir, or allow it with --allow-changed frozen"
    )
    done = run([*again, "--allow-changed", "frozen"], tmp_path / "cut", forked=True)
    assert done.returncode == 0 and "warning: run/checkpoints/step-00000004.safetensors was made" in done.stderr


@pytest.mark.long
def test_commands_use_it_as_it_was_in_training_or_not_at_all(tmp_path):
    make_features().save(tmp_path / "features.keras")
    train(tmp_path, "--recipe", "frozen_parts:Judged", *SIZE, "--steps", "2")
    export = [*MODULE, "hvdgan.export", "run", "--only", "features", "--units", "network", "--out", "new.keras"]
    evaluate = [*MODULE, "hvdgan.evaluate", "run", "--samples"]
    for command in (export, [*evaluate, "16"]):
        done = run(command, tmp_path, forked=True)
        assert done.returncode == 0, done.stderr
    exported = keras.models.load_model(tmp_path / "new.keras")
    assert all(np.array_equal(a, b) for a, b in zip(exported.get_weights(), make_features().get_weights(), strict=True))
    make_features(1).save(tmp_path / "features.keras")
    line = refused([*export, "--overwrite"], tmp_path)
    assert "step-00000002.safetensors: the frozen network features has other values than in training" in line


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


def test_a_network_without_weights_augments_in_a_loss_alone():
    augmenter = keras.Sequential([keras.Input((4,)), keras.layers.GaussianNoise(1.0)])
    loss, sample = (Nets({}, frozen={"augmenter": augmenter}, training=each) for each in (True, False))
    assert np.ptp(loss.augmenter(tf.zeros((2, 4)))) > 0.0 and np.ptp(sample.augmenter(tf.zeros((2, 4)))) == 0.0


@pytest.mark.long
def test_a_variable_outside_of_the_networks_that_is_not_the_same_everywhere_is_refused_by_name(tmp_path):
    command = [*MODULE, "hvdgan.train", "--recipe", "frozen_parts:Unseeded", *SIZE]
    line = refused([*launcher(2), *command, "--dry-run"], tmp_path)
    assert "the variable scale outside of the networks has other values on rank 1 than on rank 0; load it" in line
    train(tmp_path, *command[3:], "--steps", "2")
    line = refused([*command, "--steps", "4"], tmp_path)
    assert "was made with other values of the variable scale outside of the networks; give the same" in line
