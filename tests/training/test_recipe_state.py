"""State of a recipe that belongs to no network, and networks that each rank trains for itself: exact after a resume.
Modules: recipe.batch"""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan import sample
from hvdgan.inference.trained import load_trained
from hvdgan.recipe import State, UserError
from hvdgan.train import main
from launching import train
from saved import tensors
from stateful import PLACES, Pooled, faulty

G = 6
WORDS = f"--recipe stateful:Pooled --image-size 8 --global-batch-size {G} --sample-every 0 --run-dir run".split()
KEPT = ("state/pool", "state/filled", "state/weight")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a run of four steps on one rank, and of one that has stopped after two."""
    folder = tmp_path_factory.mktemp("runs")
    for name, steps in (("whole", "4"), ("cut", "2")):
        assert main([*WORDS[:-1], str(folder / name / "run"), "--steps", steps]) == 0
    return folder


@pytest.fixture(scope="module")
def whole(runs):
    return tensors(runs / "whole" / "run", 4)


def test_a_pool_and_a_controller_do_what_they_say(whole):
    assert whole["state/pool"].shape == (G, PLACES, 8, 8, 1)
    assert list(whole["state/filled"]) == [4] * G
    assert len({picture.tobytes() for picture in whole["state/pool"].reshape(G * PLACES, -1)}) == G * PLACES
    assert 0 < abs(float(whole["state/weight"]) - 1.0) <= 0.5


def test_two_ranks_resume_it_and_keep_the_same(tmp_path, runs, whole):
    shutil.copytree(runs / "cut", tmp_path, dirs_exist_ok=True)
    done = train(tmp_path, *WORDS, "--steps", "4", ranks=2)
    assert f"state: pool ({PLACES}, 8, 8, 1) per sample; filled () per sample; weight ()" in done.stderr
    found = tensors(tmp_path / "run", 4)
    for name in KEPT:
        np.testing.assert_allclose(found[name], whole[name], atol=1e-5, err_msg=name)


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path, runs, whole):
    shutil.copytree(runs / "cut", tmp_path, dirs_exist_ok=True)
    assert main([*WORDS[:-1], str(tmp_path / "run"), "--steps", "4"]) == 0
    found = tensors(tmp_path / "run", 4)
    assert whole.keys() == found.keys() and set(KEPT) < whole.keys()
    assert all(whole[name].tobytes() == found[name].tobytes() for name in whole)


class Beginning(Pooled):
    """A value of all ranks, whose name begins that of a pool."""

    def state(self):
        return {**super().state(), "p": State(0.5)}


def test_a_run_can_be_used_if_the_name_of_a_state_begins_another(tmp_path):
    words = ["--recipe", "test_recipe_state:Beginning", *WORDS[2:-1], str(tmp_path / "run"), "--steps", "2"]
    assert main(words) == 0
    assert sample.main([str(tmp_path / "run"), "--samples", "4", "--out", str(tmp_path / "four.png")]) == 0
    kept = load_trained(tmp_path / "run").state.recipe_state.shared()
    found = tensors(tmp_path / "run", 2)
    assert {name: float(variable.numpy()) for name, variable in kept.items()} == {
        name: float(found[name]) for name in ("state/p", "state/weight")
    }


def test_another_batch_size_has_other_places_and_is_refused_by_name(tmp_path, runs, capsys):
    shutil.copytree(runs / "cut", tmp_path, dirs_exist_ok=True)
    words = [word.replace(str(G), "12") for word in WORDS[:-1]]
    assert main([*words, str(tmp_path / "run"), "--steps", "4"]) == 2
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
    kept = {**run.state.recipe_state.shared(), **run.state.recipe_state.own()}
    before = {name: variable.numpy() for name, variable in kept.items()}
    _, finite = stage_step(run)(1, 1, data_of(run))
    assert list(finite.numpy()) == [False, True]
    assert all(np.array_equal(variable.numpy(), before[name]) for name, variable in kept.items())
    stage_step(run)(2, 2, data_of(run))
    assert not np.array_equal(run.state.recipe_state.own()["state/pool"].numpy(), before["state/pool"])


@pytest.mark.parametrize(
    ("methods", "complaint"),
    [
        (
            {"judge": lambda self, nets, batch: (*Pooled.judge(self, nets, batch)[:2], {"filled": tf.zeros((2, 2))})},
            "update judge: the loss gives filled as",
        ),
        ({"judge": lambda self, nets, batch: batch.state.pol}, "there is no state pol; state() declares filled, pool"),
        ({"control": lambda self, state, metrics: {"weight": metrics["no"]}}, "control() fails: KeyError"),
        # The slice of a rank is no state of all.
        ({"control": lambda self, state, metrics: {"weight": state.pool}}, "there is no state pool"),
    ],
)
def test_mistakes_are_named_before_the_first_step(methods, complaint):
    with pytest.raises(UserError) as caught:
        tiny_run(faulty(**methods))
    assert complaint in str(caught.value)


def trained(folder, steps, ranks=2, recipe="Local", more=""):
    """The tensors after training to a step."""
    folder.mkdir(exist_ok=True)
    words = f"--recipe stateful:{recipe} --image-size 8 --global-batch-size 6 --sample-every 0 --norm batch"
    words += f" --check-ranks-every 1 --checkpoint-every 1 --keep 0 --max-steps {steps} --run-dir run"
    train(folder, *words.split(), *more.split(), ranks=ranks)
    return tensors(folder / "run", steps)


def kernels(saved):
    """The first kernel of the discriminator on all ranks, (ranks, 64, 16), and as the file has it of rank 0."""
    (name,) = (n for n in saved if n.startswith("local/networks/") and saved[n].shape[1:] == (64, 16))
    return saved[name], saved[name.removeprefix("local/")]


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A run of two ranks that has stopped after its second step, when the discriminators are trained."""
    folder = tmp_path_factory.mktemp("cut")
    trained(folder, 2)
    return folder


def test_each_rank_follows_the_gradient_of_its_own_samples(cut, tmp_path):
    """With SGD, the mean of the ranks' first steps is the step of the reduced gradient."""
    everyones, of_root = kernels(tensors(cut / "run", 1))
    reduced = trained(tmp_path, 1, recipe="Reduced")
    (name,) = (n for n in reduced if n.startswith("networks/discriminator") and reduced[n].shape == (64, 16))
    assert len(everyones) == 2 and not np.allclose(*everyones, atol=1e-6)
    np.testing.assert_array_equal(everyones[0], of_root)
    np.testing.assert_allclose(everyones.mean(axis=0), reduced[name], atol=1e-7)


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one_and_another_number_of_ranks_takes_the_first(cut, tmp_path):
    one, two = (shutil.copytree(cut, tmp_path / name) for name in ("one", "two"))
    whole, resumed = trained(tmp_path / "whole", 4), trained(two, 4)
    assert whole.keys() == resumed.keys()
    assert all(whole[name].tobytes() == resumed[name].tobytes() for name in whole)
    before, _ = kernels(tensors(cut / "run", 2))
    np.testing.assert_array_equal(kernels(trained(one, 4, ranks=1))[0], before[:1])


def test_averages_that_a_checkpoint_lacks_begin_at_the_weights_of_each_rank(tmp_path):
    before, _ = kernels(trained(tmp_path, 1, recipe="Averaged", more="--ema-decay 0"))
    found = trained(tmp_path, 2, recipe="Averaged", more="--ema-decay 0.9 --allow-changed ema_decay")
    after, _ = kernels(found)
    (averages,) = (found[n] for n in found if n.startswith("local/ema/") and found[n].shape[1:] == (64, 16))
    # The second step's share of the weights in their average is 1 - 2 / 11.
    np.testing.assert_allclose(averages, before * 2 / 11 + after * 9 / 11, atol=1e-6)
