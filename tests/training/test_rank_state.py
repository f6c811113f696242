"""What differs between the ranks, and state of a recipe or of a layer beside the weights: exact after a resume.
Modules: recipe.batch, training.train_state, checkpoints.tensor_names, networks.layers"""

import shutil
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe import UserError
from hvdgan.train import main
from hvdgan.training.build import build
from hvdgan.training.command import parse
from hvdgan.training.rank_state import RankState
from hvdgan.training.restore import restore
from hvdgan.training.saving import Commits
from launching import CONTROLLERS, launcher, run, train
from saved import tensors
from stateful import PLACES, Pooled, faulty

G = 6
WORDS = f"--recipe stateful:Pooled --image-size 8 --global-batch-size {G} --sample-every 0 --run-dir run".split()
KEPT = ("ranks/state/pool", "ranks/state/filled", "state/weight", "state/judged")
EVERYTHING = f"--recipe stateful:Everything {' '.join(WORDS[2:-2])} --norm batch --run-dir run"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """The folder of a run of four steps on one rank."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main([*WORDS[:-1], str(folder), "--steps", "4"]) == 0
    return folder


@pytest.fixture(scope="module")
def whole(run_dir):
    return tensors(run_dir, 4)


def test_a_pool_and_a_controller_do_what_they_say(whole):
    assert whole["ranks/state/pool"].shape == (G, PLACES, 8, 8, 1)
    assert list(whole["ranks/state/filled"]) == [4] * G
    assert len({picture.tobytes() for picture in whole["ranks/state/pool"].reshape(G * PLACES, -1)}) == G * PLACES
    assert 0 < abs(float(whole["state/weight"]) - 1.0) <= 0.5 and list(whole["state/judged"]) == [4, 4]


def test_another_batch_size_has_other_places_and_is_refused_by_name(run_dir, capsys):
    words = [word.replace(str(G), "12") for word in WORDS[:-1]]
    assert main([*words, str(run_dir), "--steps", "5"]) == 2
    assert "--global-batch-size 6, and this run has 12; the recipe's state per sample" in capsys.readouterr().err


def test_micro_batches_see_their_part(tmp_path, whole):
    assert main([*WORDS[:-1], str(tmp_path / "run"), "--steps", "4", "--accumulate", "2"]) == 0
    found = tensors(tmp_path / "run", 4)
    for name in KEPT:
        np.testing.assert_allclose(found[name], whole[name], atol=1e-4, err_msg=name)


def test_an_update_that_is_not_finite_leaves_all_state_as_it_is():
    def judge(self, nets, batch):
        loss, metrics, state = Pooled.judge(self, nets, batch)
        return loss * tf.where(tf.equal(batch.random.step, 1), float("nan"), 1.0), metrics, state

    run = tiny_run(faulty(judge=judge))
    stage_step(run)(0, 0, data_of(run))
    kept = {**run.state.declared_state.shared(), **run.state.declared_state.own()}
    before = {name: variable.numpy() for name, variable in kept.items()}
    _, finite = stage_step(run)(1, 1, data_of(run))
    assert list(finite.numpy()) == [False, True]
    assert all(np.array_equal(variable.numpy(), before[name]) for name, variable in kept.items())
    stage_step(run)(2, 2, data_of(run))
    assert not np.array_equal(run.state.declared_state.own()["state/pool"].numpy(), before["state/pool"])


@pytest.mark.parametrize(
    ("methods", "complaint"),
    [
        (
            {"judge": lambda self, nets, batch: (*Pooled.judge(self, nets, batch)[:2], {"filled": tf.zeros((2, 2))})},
            "update judge: the loss gives filled as",
        ),
        (
            {"judge": lambda self, nets, batch: batch.state.pol},
            "there is no state pol; state() declares filled, judged",
        ),
        ({"control": lambda self, state, metrics: {"weight": metrics["no"]}}, "control() fails: KeyError"),
        # The slice of a rank is no state of all.
        ({"control": lambda self, state, metrics: {"weight": state.pool}}, "there is no state pool"),
    ],
)
def test_mistakes_are_named_before_the_first_step(methods, complaint):
    with pytest.raises(UserError) as caught:
        tiny_run(faulty(**methods))
    assert complaint in str(caught.value)


def trained(folder, steps, ranks=2, recipe="Everything"):
    """The tensors after training to a step: two of the discriminators and the pool, then those of the generator."""
    folder.mkdir(exist_ok=True)
    words = f"{EVERYTHING.replace('Everything', recipe)} --check-ranks-every 1 --checkpoint-every 1 --keep 0"
    train(folder, *words.split(), "--max-steps", str(steps), ranks=ranks)
    return tensors(folder / "run", steps)


def of_ranks(saved, kind=""):
    """What a checkpoint has of all ranks, by the name that one rank has."""
    return {name[6:]: rows for name, rows in saved.items() if name.startswith(f"ranks/{kind}")}


def local(saved):
    """The networks, slots and averages of each rank."""
    return {name: rows for name, rows in of_ranks(saved).items() if "discriminator" in name}


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A run of two ranks that has stopped after its third step, the first that trains the generator."""
    folder = tmp_path_factory.mktemp("cut")
    trained(folder, 3)
    return folder


def test_each_rank_follows_the_gradient_of_its_own_samples(cut, tmp_path):
    """With SGD, the mean of the ranks' first steps is the step of the reduced gradient."""
    saved, reduced = tensors(cut / "run", 1), trained(tmp_path, 1, recipe="Reduced")
    kernels = {name: rows for name, rows in of_ranks(saved, "networks/discriminator").items() if "kernel" in name}
    assert kernels and all(len(rows) == 2 and not np.allclose(*rows, atol=1e-6) for rows in kernels.values())
    assert not saved.keys() & kernels.keys()  # they are in the file once
    for name, rows in kernels.items():
        np.testing.assert_allclose(rows.mean(axis=0), reduced[name], atol=1e-7)


def test_two_ranks_that_resume_have_the_bits_of_an_uninterrupted_run(cut, tmp_path):
    whole, resumed = trained(tmp_path / "whole", 4), trained(shutil.copytree(cut, tmp_path / "two"), 4)
    assert whole.keys() == resumed.keys()
    assert all(whole[name].tobytes() == resumed[name].tobytes() for name in whole)


def test_one_rank_takes_the_means_of_the_statistics_the_first_networks_and_all_of_the_pool(cut):
    saved, command = tensors(cut / "run", 3), parse([*EVERYTHING.split()[:-1], str(cut / "run"), "--max-steps", "3"])
    run = build(command.config, command.recipe, command.options, Ranks())
    restore(run, command.resume, Commits()).lock.close()
    found = {**values_of(run), **{name: each.numpy() for name, each in run.state.declared_state.own().items()}}
    for name, rows in of_ranks(saved).items():
        mean = rows.astype(np.float64).mean(axis=0).astype(rows.dtype)
        expected = rows if name.startswith("state/") else rows[0] if name in local(saved) else mean
        np.testing.assert_array_equal(found[name], expected, err_msg=name)
    differ = [name for name, rows in of_ranks(saved).items() if name.startswith("state/") or not np.allclose(*rows)]
    assert {"networks/generator", "networks/discriminator", "ema/generator", "ema/discriminator", "state/pool"} <= {
        "/".join(name.split("/")[:2]) for name in differ
    }


class Root(Ranks):
    """A rank that has a commit which the others need, without them."""

    def broadcast_array(self, values, root=0):
        assert root == self.rank
        return values


def test_any_rank_may_be_the_one_that_gives_the_others_their_part():
    own = [keras.Variable(np.zeros(2, np.float32)) for _ in range(3)]
    declared = SimpleNamespace(own=lambda: {"c": own[2]})
    state = SimpleNamespace(statistics=lambda: {"a": own[0]}, of_local=lambda: {"b": own[1]}, declared_state=declared)
    rank_state = RankState(state, Root(rank=1, size=2), 4)
    rows = np.arange(4, dtype=np.float32)
    rank_state.scatter({"a": rows.reshape(2, 2), "b": rows.reshape(2, 2), "c": rows}, 2, root=1)
    assert [variable.numpy().tolist() for variable in own] == [[2.0, 3.0]] * 3


@pytest.mark.long
def test_two_ranks_take_the_networks_and_the_pool_of_one(tmp_path):
    before, after = trained(tmp_path, 2, ranks=1), trained(tmp_path, 3)
    assert local(before) and local(before).keys() == local(after).keys()
    for name, rows in local(after).items():
        np.testing.assert_array_equal(rows, np.repeat(local(before)[name], 2, axis=0), err_msg=name)
    for name, whole in of_ranks(after, "state").items():
        np.testing.assert_array_equal(whole, of_ranks(before)[name], err_msg=name)


KEEPS = ("--image-size", "8", "--global-batch-size", "16", "--norm", "batch", "--run-dir", "run")
CONTROLLER = CONTROLLERS[-1]


def test_state_that_is_the_same_on_all_ranks_is_saved_exactly_and_resumes_with_any_number_of_them(tmp_path):
    for steps, ranks in ((2, 2), (4, 1)):
        train(tmp_path, "--recipe", "tiny:Counting", *KEEPS, "--steps", str(steps), ranks=ranks, controller=CONTROLLER)
        saved = tensors(tmp_path / "run", steps)
        calls = 2 * steps  # real and fake, by the update that owns the network
        for kind in ("whole", "wide"):
            count = saved[f"networks/discriminator/judging/keeps/{kind}"]
            assert count == 2**40 + 1 + calls and count.dtype == {"whole": np.int64, "wide": np.float64}[kind]
        assert saved["networks/discriminator/judging/keeps/odd"].dtype == bool
        if ranks == 2:  # BatchNorm's statistics and their averages, and nothing of the counter
            everyones = {name: rows.shape for name, rows in saved.items() if name.startswith("ranks/")}
            assert len(everyones) == 6 and set(everyones.values()) == {(2, 16)}, everyones


def test_state_that_depends_on_the_samples_of_a_rank_is_refused_by_name_after_the_first_step(tmp_path):
    command = [*launcher(2, CONTROLLER), sys.executable, "-m", "hvdgan.train", "--recipe", "tiny:Pooled", *KEEPS]
    done = run(command, tmp_path, forked=True)
    assert done.returncode in {1, 2}, done.stdout + done.stderr  # horovodrun over Gloo makes a 1 of a rank's 2
    named = "step 1, stage adversarial: network discriminator, layer keeps: judging/keeps/images differs between the"
    said = [line for line in done.stderr.splitlines() if named in line]
    assert said and all('aggregation="mean"' in line and "batch.mean" in line for line in said), done.stderr
    assert "<stderr>:Traceback" not in done.stderr  # of a rank; over Gloo horovodrun prints its own
    assert not list(tmp_path.glob("run/checkpoints/step-*"))


def test_other_networks_of_each_rank_are_refused_by_name(cut, tmp_path, capsys):
    words = [*EVERYTHING.split()[:-1], str(shutil.copytree(cut, tmp_path / "copy") / "run"), "--ema-decay", "0"]
    assert main([*words, "--max-steps", "4", "--allow-changed", "ema_decay"]) == 2
    assert "ema/discriminator/discriminator/dense" in (error := capsys.readouterr().err) and "of all ranks is" in error
