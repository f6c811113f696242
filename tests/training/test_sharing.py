"""Networks that share layers, and networks with several optimizers, compute what a plain loop of Keras computes.
Modules: recipe.sharing, training.optimizers, training.averages"""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run, trained, values_of
from hvdgan.checkpoints.contents import contents
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe import DataSpec, Update
from hvdgan.training.build import build
from hvdgan.training.command import parse
from hvdgan.training.restore import restore
from hvdgan.training.saving import Commits
from hvdgan.training.train_state import build_state
from saved import checkpoint, rewrite, tensors, train, untrained
from shared_layers import CoGAN, Combined, InsideAnother, TwoOptimizers
from tiny import TinyOptions


class Simultaneous(CoGAN):
    """Every update sees the weights from before the step."""

    def stages(self):
        return [dataclasses.replace(stage, together=True) for stage in super().stages()]


STEPPERS = {
    CoGAN: {"judge_1": ["critic_1"], "judge_2": ["critic_2"], "fool": ["first", "second"]},
    InsideAnother: {"judge": ["critic"], "reconstruct": ["autoencoder"], "fool": ["encoder"]},
    Combined: {"judge": ["critic"], "fool": ["generator"]},
    Simultaneous: {"judge_1": ["critic_1"], "judge_2": ["critic_2"], "fool": ["first", "second"]},
    TwoOptimizers: {"judge": ["critic"], "fit": ["generator/fitting"], "fool": ["generator/adversarial"]},
}
"""the optimizers of each update, in the order in which they take the variables that no other has taken"""


def plain(run, steps):
    """Train a run's networks in a plain loop, with new optimizers; an update leaves what it does not own as it was."""
    recipe, networks, optimizers = run.recipe, run.state.networks, {}
    for name, given in recipe.optimizers().items():
        choices = given.items() if isinstance(given, dict) else [("", given)]
        optimizers |= {f"{name}/{choice}".rstrip("/"): each for choice, each in choices}
    nets = SimpleNamespace(**{n: lambda x, model=model: model(x, training=True) for n, model in networks.items()})
    (stage,) = recipe.stages()
    for number in range(steps):
        waiting = []
        for update in stage.updates:
            owned = {id(v) for name in update.owns for v in networks[name].variables}
            kept = [(v, v.numpy()) for model in networks.values() for v in model.variables if id(v) not in owned]
            batch = run.steps[0].batch_at(tf.constant(number, tf.int64), data_of(run, number))
            with tf.GradientTape() as tape:
                loss, _ = update.loss(nets, batch)
            seen = set()
            shares = []
            for name in STEPPERS[type(recipe)][update.name]:
                variables = [v for v in networks[name.split("/")[0]].trainable_variables if id(v) not in seen]
                seen |= {id(v) for v in variables}
                shares.append((optimizers[name], variables))
            gradients = tape.gradient(loss, [[v.value for v in variables] for _, variables in shares])
            waiting += zip(shares, gradients, strict=True)
            for variable, value in kept:
                variable.assign(value)
            if update is stage.updates[-1] or not stage.together:
                for (optimizer, variables), some in waiting:
                    optimizer.apply(some, variables)
                waiting = []


@pytest.mark.parametrize("recipe", STEPPERS)
def test_they_train_as_in_a_plain_loop(recipe):
    run = tiny_run(recipe)
    start, found = values_of(run), trained(run, 3)
    for name, variable in run.state.tensors().items():
        variable.assign(start[name])
    plain(run, 3)
    expected = values_of(run)
    for name in expected:
        if name.startswith("networks/"):
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("recipe", [CoGAN, InsideAnother])
def test_a_shared_variable_is_saved_and_averaged_once(recipe):
    run = tiny_run(recipe, ema_decay=0.5)
    held = run.state.tensors()
    assert len({id(each) for each in held.values()}) == len(held)
    networks = {id(each): name for name, each in held.items() if name.startswith("networks/")}
    assert networks.keys() == {id(each) for network in run.state.networks.values() for each in network.variables}
    pairs = [pair for some in run.state.sampling_values().values() for pair in some]
    assert {f"ema/{networks[id(variable)].partition('/')[2]}" for variable, _ in pairs} == {
        name for name in held if name.startswith("ema/")
    }
    before = [average.numpy() for _, average in pairs]
    stage_step(run)(10, 0, data_of(run))
    for (variable, average), value in zip(pairs, before, strict=True):
        np.testing.assert_allclose(average, 0.5 * (value + variable), atol=1e-7)


@pytest.mark.parametrize("recipe", [pytest.param("CoGAN", marks=pytest.mark.long), "TwoOptimizers"])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path, recipe):
    words = ["--recipe", f"shared_layers:{recipe}", "--steps", "3"]
    assert train(tmp_path / "whole", *words) == train(tmp_path / "cut", *words, "--max-steps", "2") == 0
    assert train(tmp_path / "cut", *words) == 0
    whole, resumed = (tensors(tmp_path / name, 3) for name in ("whole", "cut"))
    assert whole.keys() == resumed.keys()
    assert all(whole[name].tobytes() == resumed[name].tobytes() for name in whole)


def test_each_optimizer_of_a_network_has_slots_a_rate_and_a_new_beginning_of_its_own(tmp_path):
    run = tiny_run(TwoOptimizers, lr_scaling="linear", lr_base_batch_size=8)
    fitting, adversarial = (run.state.optimizers[f"generator/{name}"] for name in ("fitting", "adversarial"))
    stage_step(run)(0, 0, data_of(run))
    assert [float(each.learning_rate) for each in (fitting, adversarial)] == pytest.approx([4e-3, 2e-3])
    run.state.reset_optimizers(run.recipe, ["generator"])
    slots = [each for name, each in run.state.tensors().items() if name.startswith("optimizers/generator/")]
    assert not any(each.numpy().any() for each in slots if "learning_rate" not in each.path)
    assert int(run.state.optimizers["critic"].iterations) == 1
    assert train(tmp_path, "--recipe", "shared_layers:TwoOptimizers", "--steps", "1") == 0
    told = contents(checkpoint(tmp_path, 1))["optimizers"]
    count = len(run.state.networks["generator"].trainable_variables)
    slots = [f"{name}/{slot}" for name in ("adversarial", "fitting") for slot in ("momentum", "velocity")]
    assert told["generator"]["slots"] == dict.fromkeys(slots, count)
    assert {"fitting/iteration", "adversarial/learning_rate"} <= {*told["generator"]["scalars"]}
    assert told["critic"]["scalars"] == ["iteration", "learning_rate"]


@pytest.mark.long
def test_a_new_run_takes_a_network_with_all_its_layers(tmp_path, capsys):
    """The averages of another one that shares them begin with these, too."""
    for recipe in (CoGAN, InsideAnother):
        untrained(tmp_path / recipe.__name__, f"shared_layers:{recipe.__name__}", TinyOptions())
    words = ["--init-from", str(tmp_path / "CoGAN"), "--init-networks", "second", "--recipe", "shared_layers:CoGAN"]
    assert train(tmp_path / "run", *words) == 2
    assert "second has layers of first; name both in --init-networks" in capsys.readouterr().err
    source = tmp_path / "InsideAnother"
    rewrite(checkpoint(source, 2), _without_averages)
    words = ["--init-from", str(source), "--init-networks", "encoder", "--recipe", "shared_layers:InsideAnother"]
    command = parse([*words, "--image-size", "8", "--run-dir", str(tmp_path / "run")])
    run = build(command.config, command.recipe, command.options, Ranks())
    restore(run, command.resume, Commits()).lock.close()
    saved, encoder = tensors(source, 2), {id(each) for each in run.state.networks["encoder"].variables}
    held = {id(each): name for name, each in run.state.tensors().items()}
    for variable, average in run.state.sampling_values()["autoencoder"]:
        if id(variable) in encoder:
            np.testing.assert_array_equal(variable, saved[held[id(variable)]])
            np.testing.assert_array_equal(variable, average)


def _without_averages(values, facts):
    for name in [name for name in values if name.startswith("ema/")]:
        del values[name], facts["tensors"][name]


class HalfFrozen(InsideAnother):
    def networks(self):
        networks = super().networks()
        networks["encoder"].trainable = False
        return networks


class Frozen(InsideAnother):
    def networks(self):
        networks = super().networks()
        networks["autoencoder"].trainable = False
        return networks


def test_frozen_networks_may_share_layers():
    state = build_state(Frozen(TinyOptions(), DataSpec((8, 8, 1), 100)), 0.9)
    assert [*state.frozen] == ["encoder", "decoder", "autoencoder"] and [*state.optimizers] == ["critic"]


class HalfLocal(CoGAN):
    def stages(self):
        (stage,) = super().stages()
        one, *others = stage.updates
        return [dataclasses.replace(stage, updates=[dataclasses.replace(one, reduce=False), *others])]


class Undecided(TwoOptimizers):
    choices = (None, "adversarial")


class Unknown(TwoOptimizers):
    choices = ("adverserial", "adversarial")


class Pointless(CoGAN):
    def stages(self):
        (stage,) = super().stages()
        return [dataclasses.replace(stage, updates=[dataclasses.replace(u, optimizer="one") for u in stage.updates])]


class WithoutOne(InsideAnother):
    def stages(self):
        (stage,) = super().stages()
        update = Update("repaint", owns=["decoder"], loss=self.reconstruct)
        return [dataclasses.replace(stage, updates=[*stage.updates, update])]


class NoOptimizer(TwoOptimizers):
    def optimizers(self):
        return {**super().optimizers(), "generator": {"fitting": 1e-3}}


@pytest.mark.parametrize(
    ("recipe", "complaint"),
    [
        ("HalfFrozen", "network autoencoder has dense/kernel of encoder, which is frozen; leave trainable = False out"),
        ("HalfLocal", "update judge_2: owns critic_2, whose variables an update with reduce=False trains, too; give"),
        ("Undecided", "has optimizer=None, and owns generator, whose optimizers are adversarial, fitting; name one"),
        ("Unknown", "has optimizer='adverserial', and owns generator, whose optimizers are adversarial, fitting; name"),
        ("Pointless", "has optimizer='one', and owns no network with several optimizers; leave it out"),
        ("WithoutOne", "update repaint: it owns decoder, for which optimizers() returns none; let it return one"),
        ("NoOptimizer", "optimizers() gives 'fitting' of generator as 0.001; it must return a dict of"),
    ],
)
def test_what_is_not_clear_is_refused_in_a_line(tmp_path, capsys, recipe, complaint):
    assert train(tmp_path / "run", "--recipe", f"test_sharing:{recipe}", "--steps", "1") == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1 and not (tmp_path / "run").exists(), error
