"""When a run is saved, which checkpoints stay, and what ends a run: in this process, with tiny recipes.
Modules: training.loop, training.stopping, training.observations,
training.changes, training.restore, training.session, training.summary"""

import json
import os
import shutil
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from building import values_of
from hvdgan.checkpoints import files
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError
from hvdgan.evaluation.comparison import Comparison
from hvdgan.evaluation.held_out import Evaluator
from hvdgan.training.build import build
from hvdgan.training.command import parse
from hvdgan.training.restore import restore
from hvdgan.training.saving import Commits
from hvdgan.training.step import StageStep
from hvdgan.training.stopping import Stopping
from saved import TINY, checkpoint, damage, manifest, rewrite, state, steps, tensors, train, untrained
from tiny import Tiny

STAGED = "--recipe tiny:Staged --image-size 8 --global-batch-size 8 --steps 4".split()


def test_the_last_of_each_stage_stays_and_is_saved_without_being_asked(tmp_path):
    assert train(tmp_path, "--checkpoint-every", "3", "--keep", "1", flags=STAGED) == 0
    assert steps(tmp_path) == [4, 8, 12]
    assert [manifest(tmp_path, step)["stage"] for step in (4, 8, 12)] == ["generator", "discriminator", "joint"]


class Known(Tiny):
    """Its held-out error is known."""

    def evaluate(self, nets, batch):
        return {"error": tf.ones_like(batch.images[:, 0, 0, 0])}


def test_the_best_is_saved_at_the_step_that_was_evaluated(tmp_path, monkeypatch):
    """No checkpoint counts with the value of another step, and the best one is there although no other is due.

    NaN is not the best: no later value would be better.
    """
    done = iter([float("nan"), 3.0, 9.0, 1.0])
    monkeypatch.setattr(Evaluator, "__call__", lambda _: {"eval/error": next(done)})
    flags = ["--recipe", "test_saving:Known", *TINY[2:], "--eval-every", "2", "--best-metric", "eval/error"]
    assert train(tmp_path, "--checkpoint-every", "3", "--keep", "0", flags=flags) == 0
    assert steps(tmp_path) == [3, 4, 6, 8]
    bests = [manifest(tmp_path, step)["best"] for step in steps(tmp_path)]
    assert [(best["step"], best["value"]) for best in bests] == [(None, None), (4, 3.0), (4, 3.0), (8, 1.0)]


def test_a_save_that_fails_is_reported_and_the_last_one_is_an_error(tmp_path, monkeypatch, capsys):
    write = files.write

    def broken(folder, snapshot):
        if snapshot.step in (4, 8):
            raise RunError("checkpoint cannot be written: [Errno 28] No space left on device")
        return write(folder, snapshot)

    monkeypatch.setattr(files, "write", broken)
    assert train(tmp_path, "--checkpoint-every", "2") == 1
    assert steps(tmp_path) == [2, 6]
    error = capsys.readouterr().err
    assert "warning: checkpoint cannot be written: [Errno 28]" in error
    assert error.splitlines()[-1].startswith("hvdgan: checkpoint cannot be written")


def test_a_best_of_another_scale_is_sought_anew(tmp_path, monkeypatch, capsys):
    """As with a distance of fewer samples, which is larger."""
    values = iter([1.0, 3.0, 2.0])
    monkeypatch.setattr(Comparison, "__call__", lambda *_: {"eval/histogram": next(values)})
    flags = [*TINY, "--eval-every", "2", "--best-metric", "eval/histogram", "--keep", "0"]
    assert train(tmp_path, "--steps", "2", "--eval-samples", "16", flags=flags) == 0
    assert manifest(tmp_path, 2)["best"]["value"] == 1.0
    assert train(tmp_path, "--steps", "6", "--eval-samples", "12", flags=flags) == 0
    assert "samples are compared in another way than before" in capsys.readouterr().err
    assert [manifest(tmp_path, step)["best"]["value"] for step in (4, 6)] == [3.0, 2.0]


def test_a_signal_saves_and_ends_with_75_and_the_same_command_resumes_exactly(tmp_path, monkeypatch, capsys):
    assert train(tmp_path / "whole") == 0
    before, step = signal.getsignal(signal.SIGTERM), StageStep.__call__

    def signalled(self, number, *others):
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, number, *others)

    with monkeypatch.context() as patch:
        patch.setattr(StageStep, "__call__", signalled)
        patch.setattr("hvdgan.training.stopping.CHECK_SECONDS", 0.0)
        assert train(tmp_path / "cut") == 75
    assert signal.getsignal(signal.SIGTERM) is before
    (at,) = steps(tmp_path / "cut")
    assert at in (3, 4)
    assert f"stopped after step {at} of 8 (rank 0: SIGTERM) and saved" in capsys.readouterr().err
    assert train(tmp_path / "cut") == 0
    assert state(tmp_path / "cut", 8) == state(tmp_path / "whole", 8)


def test_the_stop_file_and_the_time_budget_do_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hvdgan.training.stopping.CHECK_SECONDS", 0.0)
    tmp_path.joinpath("a").mkdir()
    (tmp_path / "a" / "stop").touch()
    assert train(tmp_path / "a") == 75
    said = capsys.readouterr().err
    assert "stopped before the first step, at step 0 of 8" in said and "stop exists" in said
    assert steps(tmp_path / "a") == []  # nothing was done: there is nothing to save
    clock = iter([0.0, 0.0, 60.0])
    monkeypatch.setattr(Stopping, "minutes", property(lambda self: next(clock)))
    assert train(tmp_path / "b", "--time-budget", "1") == 75
    assert "stopped after step 2 of 8 (rank 0: --time-budget is used up) and saved" in capsys.readouterr().err
    assert steps(tmp_path / "b") == [2]


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path, capsys):
    assert train(tmp_path, "--checkpoint-every", "2") == 0
    whole = state(tmp_path, 8)
    damage(checkpoint(tmp_path, 8))
    assert train(tmp_path, "--checkpoint-every", "2") == 0
    error = capsys.readouterr().err
    assert "step-00000008" in error and "resuming from step-00000006.safetensors instead" in error
    assert "resuming at step 6 of 8" in error
    assert state(tmp_path, 8) == whole
    for step in steps(tmp_path):
        damage(checkpoint(tmp_path, step))
    assert train(tmp_path) == 1, "without any good one it starts over"
    assert "no checkpoint in" in capsys.readouterr().err


def test_another_batch_size_continues_with_the_very_next_images(tmp_path, capsys):
    assert train(tmp_path, "--max-steps", "4") == 0
    assert train(tmp_path, "--max-steps", "6", "--global-batch-size", "16") == 0
    assert "warning: global_batch_size was 8 and is now 16" in capsys.readouterr().err
    assert [manifest(tmp_path, step)["samples_seen"] for step in (4, 6)] == [32, 64]
    assert train(tmp_path, "--max-steps", "8", "--global-batch-size", "8") == 0
    assert manifest(tmp_path, 8)["samples_seen"] == 80


class ScheduleFree(Tiny):
    """Its optimizers keep copies of the weights, from which the weights are computed in each step."""

    def optimizers(self):
        return {name: keras.optimizers.ScheduleFreeAdamW(1e-12) for name in ("generator", "discriminator")}


def test_networks_of_another_run_can_be_where_a_new_one_begins(tmp_path, capsys):
    assert train(tmp_path / "first", "--seed", "5") == 0
    source = str(tmp_path / "first")
    flags = ["--init-from", source, "--init-networks", "generator", "--recipe", "test_saving:ScheduleFree"]
    assert train(tmp_path / "second", *flags, "--max-steps", "2") == 0
    assert "generator taken from" in capsys.readouterr().err
    before, after = tensors(tmp_path / "first", 8), tensors(tmp_path / "second", 2)
    for name in (name for name in before if name.startswith("networks/") and name.endswith("kernel")):
        same = np.allclose(after[name], before[name], atol=1e-6)
        assert same == name.startswith("networks/generator/"), name
    saved = json.loads((tmp_path / "second/config.json").read_text())
    fact = manifest(tmp_path / "second", 2)["initial"]["generator"]
    assert saved["init_from"] == f"{checkpoint(tmp_path / 'first', 8)}#sha256={fact['sha256']}"
    assert train(tmp_path / "other", "--init-from", f"{saved['init_from'][:-1]}?") == 2
    assert f"its SHA-256 is {fact['sha256']}; restore" in capsys.readouterr().err
    assert train(tmp_path / "third", "--init-from", source, "--init-networks", "nobody") == 2
    assert "it has discriminator, generator, and this run generator, discriminator" in capsys.readouterr().err
    assert not (tmp_path / "third").exists()


class Moved(Tiny):
    """Keras numbers the layers from dense_1 on."""

    def networks(self):
        layers.Dense(1)
        return super().networks()


class Named(Tiny):
    """The layers of the generator have names of their own."""

    sizes = (("first", 16), ("second", 64))

    def networks(self):
        first, *others = (layers.Dense(size, name=name) for name, size in self.sizes)
        parts = [keras.Input((8,)), first, layers.ReLU(), *others, layers.Activation("tanh"), layers.Reshape((8, 8, 1))]
        return {**super().networks(), "generator": keras.Sequential(parts, name="generator")}


class Narrow(Named):
    sizes = (("first", 8), ("second", 64))


class Pair(Named):
    """Two layers have one shape."""

    sizes = (("first", 8), ("second", 8), ("last", 64))


class Exchanged(Named):
    sizes = (("second", 8), ("first", 8), ("last", 64))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    assert train(folder, "--ema-decay", "0.9", "--seed", "5") == 0
    return folder


def taken(folder, source, recipe, count):
    """What a new run takes of another one's generator and its averages: pairs of tensors, and the remark on it."""
    words = [f"test_saving:{recipe}" if word == "tiny:Tiny" else word for word in TINY]
    command = parse([*words, "--run-dir", str(folder), "--init-from", str(source), "--init-networks", "generator"])
    built = build(command.config, command.recipe, command.options, Ranks())
    point = restore(built, command.resume, Commits())
    point.lock.close()
    before, after = tensors(source, count), values_of(built)
    names = [
        [name for name in sorted(each) if name.startswith(("networks/generator/", "ema/generator/"))]
        for each in (before, after)
    ]
    return {one: (before[one], after[other]) for one, other in zip(*names, strict=True)}, *point.remarks


@pytest.mark.parametrize("recipe", ["Moved", pytest.param("Named", marks=pytest.mark.long)])
def test_a_network_whose_layers_have_other_names_is_taken_in_their_order(tmp_path, source, recipe):
    pairs, remark = taken(tmp_path / "run", source, recipe, 8)
    assert remark.endswith("; the layers of generator have moved, and are taken in order")
    assert len(pairs) == 8 and all(before.tobytes() == after.tobytes() for before, after in pairs.values())
    weights, averages = (pairs[f"{kind}/generator/generator/dense/kernel"][0] for kind in ("networks", "ema"))
    assert not np.array_equal(weights, averages)  # so that neither was taken for the other


def test_layers_whose_names_were_exchanged_are_taken_by_name(tmp_path):
    untrained(tmp_path / "pair", "test_saving:Pair")
    pairs, remark = taken(tmp_path / "run", tmp_path / "pair", "Exchanged", 2)
    assert remark.endswith("; the layers of generator have moved, and are taken by name")
    assert len(pairs) == 12 and all(before.tobytes() == after.tobytes() for before, after in pairs.values())


def test_only_the_networks_that_are_taken_are_read(tmp_path, source):
    saved = shutil.copytree(source, tmp_path / "first")
    rewrite(
        checkpoint(saved, 8), lambda values, _: [values.pop(name) for name in [*values] if "/discriminator" in name]
    )
    assert train(tmp_path / "run", "--init-from", str(saved), "--init-networks", "generator", "--max-steps", "1") == 0


def test_a_network_of_another_size_is_refused_by_its_first_difference(tmp_path, capsys, source):
    flags = ["--init-from", str(source), "--init-networks", "generator", "--recipe", "test_saving:Narrow"]
    assert train(tmp_path / "run", *flags) == 2
    error = capsys.readouterr().err
    assert "has networks/generator/generator/dense/kernel float32 (8, 16) where this run has" in error
    assert "generator/first/kernel float32 (8, 8)" in error and not (tmp_path / "run").exists()


class Frozen(Tiny):
    """The generator's first layer is frozen."""

    def networks(self):
        networks = super().networks()
        networks["generator"].layers[0].trainable = False
        return networks


def test_a_resume_with_a_frozen_layer_names_the_way_to_take_the_networks(tmp_path, capsys, source):
    shutil.copytree(source, tmp_path / "run")
    flags = ["--ema-decay", "0.9", "--seed", "5", "--steps", "9", "--recipe", "test_saving:Frozen"]
    assert train(tmp_path / "run", *flags, "--allow-changed", "recipe") == 2
    assert "this run has no optimizers/generator" in (error := capsys.readouterr().err) and "--init-from" in error
    flags += ["--init-from", str(source), "--max-steps", "1"]
    assert train(tmp_path / "new", *flags) == 0
